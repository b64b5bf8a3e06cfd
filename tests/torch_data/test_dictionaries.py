"""Examples and batches as dictionaries, through every loader."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ChainDataset, ConcatDataset, DataLoader, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from tfds_torch import (
    DevicePrefetcher,
    EvalPreprocess,
    ImageDataset,
    IndexedImageDataset,
    ParserMapStyle,
    ParserTfds,
    create_loader,
    demo,
)
from tfds_torch.errors import ConfigError

NAMES = {"pixel_values": "image", "labels": "label", "which": "index"}


pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # Torchdata's call, torch's warning.


@pytest.fixture(scope="module")
def digits() -> Path:
    return demo.prepare("digits")


def ready(digits: Path, **options: Any) -> ImageDataset:
    """Whole batches."""
    preprocess = EvalPreprocess(8, crop_pct=1)
    parser = ParserTfds(digits, "digits", "train[:200]", None, True, 16, preprocess=preprocess)
    return ImageDataset(parser, **options)


def singles(digits: Path, **options: Any) -> ImageDataset:
    """Single examples, which a loader collates."""
    parser = ParserTfds(digits, "digits", "train[:200]", None, True, 16)
    return ImageDataset(parser, lambda image: torch.from_numpy(np.array(image)), **options)


LOADERS: dict[str, Callable[[ImageDataset], Any]] = {
    "create_loader": create_loader,
    "create_loader, 2 workers": lambda dataset: create_loader(dataset, num_workers=2),
    "DataLoader": lambda dataset: DataLoader(dataset, None if dataset.is_batched else 16),
    "DataLoader, 2 workers": lambda dataset: DataLoader(dataset, None if dataset.is_batched else 16, num_workers=2),
    "StatefulDataLoader": lambda dataset: StatefulDataLoader(
        dataset, None if dataset.is_batched else 16, num_workers=2
    ),
    "DevicePrefetcher": lambda dataset: DevicePrefetcher(create_loader(dataset), "cpu"),
}


@pytest.mark.parametrize("make", [ready, singles])
@pytest.mark.parametrize("loader", LOADERS)
def test_every_loader_gives_the_values_of_tuples_by_name(digits: Path, make: Any, loader: str) -> None:
    as_dict = LOADERS[loader](make(digits, fields=NAMES))
    as_tuple = LOADERS[loader](make(digits, fields=tuple(NAMES.values())))
    num_batches = 0
    for batch, values in zip(as_dict, as_tuple, strict=True):
        assert type(batch) is dict
        assert list(batch) == list(NAMES)
        assert all(torch.equal(*pair) for pair in zip(batch.values(), values, strict=True))
        num_batches += 1
    assert num_batches == 13


def rest_of(loader: Iterable[Any]) -> list[list[int]]:
    return [batch["which"].tolist() for batch in loader]


@pytest.mark.parametrize("make", [ready, singles])
@pytest.mark.parametrize("loader", ["create_loader, 2 workers", "StatefulDataLoader"])
def test_a_loader_of_dictionaries_resumes(digits: Path, make: Any, loader: str) -> None:
    whole = rest_of(LOADERS[loader](make(digits, fields=NAMES)))
    stopped = LOADERS[loader](make(digits, fields=NAMES))
    batches: Iterator[Any] = iter(stopped)
    for _ in range(5):
        next(batches)
    state = stopped.state_dict()
    other = LOADERS[loader](make(digits, fields=NAMES))
    other.load_state_dict(state)
    assert rest_of(other) == whole[5:]


def test_a_plain_dataloader_resumes_by_the_number_of_batches(digits: Path) -> None:
    dataset = ready(digits, fields=NAMES)
    whole = rest_of(DataLoader(ready(digits, fields=NAMES), None))
    list(itertools.islice(DataLoader(dataset, None, num_workers=2), 5))
    other = ready(digits, fields=NAMES)
    other.load_state_dict(dataset.state_dict(5))
    assert rest_of(DataLoader(other, None, num_workers=1)) == whole[5:]


def test_images_of_a_dictionary_are_normalised(digits: Path) -> None:
    loader = create_loader(ready(digits, fields=NAMES), mean=[0.5] * 3, std=[0.25] * 3)
    plain = create_loader(ready(digits, fields=NAMES))
    batch, other = next(iter(loader)), next(iter(plain))
    assert torch.allclose(batch["pixel_values"], (other["pixel_values"] / 255 - 0.5) / 0.25)
    assert torch.equal(batch["labels"], other["labels"])


MASKED: dict[str, tuple[Any, Any, Any]] = {
    "tuples": (("mask", "image"), 0, 1),
    "dictionaries": ({"image": "mask", "picture": "image"}, "image", "picture"),
    "all": ("all", "mask", "photo"),
}
"""Fields, and where a batch has the mask and, after it, the image; the mask is as an image of one channel."""


def masked() -> ParserMapStyle:
    rows = [{"mask": np.full((4, 4, 1), n, np.uint8), "photo": np.full((4, 4, 1), 255, np.uint8)} for n in range(8)]
    preprocess = EvalPreprocess(4, crop_pct=1, also=("mask",))
    return ParserMapStyle(rows, batch_size=4, image_key="photo", target_key=None, image_mode="L", preprocess=preprocess)


def indexed(fields: Any) -> IndexedImageDataset:
    return IndexedImageDataset(masked(), fields=fields)


READERS: dict[str, Callable[..., Any]] = {
    "create_loader": lambda fields, **how: create_loader(ImageDataset(masked(), fields=fields), **how),
    "2 workers": lambda fields, **how: create_loader(ImageDataset(masked(), fields=fields), 2, **how),
    "a chain": lambda fields, **how: create_loader(ChainDataset([ImageDataset(masked(), fields=fields)]), **how),
    "a prefetcher of a Loader": lambda fields, **how: DevicePrefetcher(
        create_loader(ImageDataset(masked(), fields=fields)), "cpu", **how
    ),
    "of a DataLoader": lambda fields, **how: DevicePrefetcher(
        DataLoader(ImageDataset(masked(), fields=fields), None), "cpu", **how
    ),
    "of a dataset": lambda fields, **how: DevicePrefetcher(ImageDataset(masked(), fields=fields), "cpu", **how),
    "indexed": lambda fields, **how: create_loader(indexed(fields), batch_size=4, **how),
    "indexed, 1 worker": lambda fields, **how: create_loader(indexed(fields), 1, batch_size=4, **how),
    "indexed DataLoader": lambda fields, **how: DevicePrefetcher(DataLoader(indexed(fields), 4), "cpu", **how),
    "part of a sum": lambda fields, **how: create_loader(
        Subset(ConcatDataset([indexed(fields)] * 2), range(8)), batch_size=4, **how
    ),
}


@pytest.mark.parametrize("fields", MASKED)
@pytest.mark.parametrize("reader", READERS)
def test_the_field_image_is_normalised_whatever_comes_before_it(reader: str, fields: str) -> None:
    asked, mask, image = MASKED[fields]
    for options, value in (({"mean": 0.5, "std": 0.5}, 1), ({"dtype": "float32"}, 255)):
        batches = list(READERS[reader](asked, **options))
        assert len(batches) == 2
        for batch in batches:
            assert batch[mask].dtype == torch.uint8
            torch.testing.assert_close(batch[image], torch.full((4, 1, 4, 4), float(value)))


def swapped(batch: Any) -> Any:
    return batch[1], batch[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda dataset: create_loader(dataset, collate_fn=swapped, dtype="float32"),
        lambda dataset: DevicePrefetcher(DataLoader(dataset, None, collate_fn=swapped), "cpu", dtype="float32"),
    ],
    ids=["Loader", "DataLoader"],
)
def test_a_collation_of_the_users_decides_where_images_are(make: Any) -> None:
    for batch in make(ImageDataset(masked(), fields=("mask", "image"))):
        assert [one.dtype for one in batch] == [torch.float32, torch.uint8]


def test_datasets_that_disagree_about_the_place_of_images_have_none() -> None:
    both = ConcatDataset([indexed(("mask", "image", "index")), indexed(("mask", "index", "image"))])
    batch = next(iter(create_loader(both, batch_size=4, dtype="float32")))
    assert [one.dtype for one in batch] == [torch.float32, torch.uint8, torch.int64]


def test_all_fields_have_flat_names_lists_where_a_side_varies_and_padded_ones() -> None:
    root = demo.prepare_fake("voc/2007", num_examples=8, progress=False)
    parser = ParserTfds(root, "voc/2007", batch_size=4, preprocess=EvalPreprocess(32))
    batch = next(iter(ImageDataset(parser, fields="all", pad={"objects/bbox": 0})))
    parts = ("bbox", "is_difficult", "is_truncated", "label", "pose")
    assert list(batch)[:2] == ["image", "image/filename"]
    assert [name for name in batch if name.startswith("objects/")] == [f"objects/{name}" for name in parts]
    assert batch["image"].shape == (4, 3, 32, 32)
    assert batch["objects/bbox"].lengths.tolist() == [len(one) for one in batch["objects/label"]]
    assert isinstance(batch["objects/label"], list)


def test_all_has_the_names_of_the_dataset_and_its_image_and_label_as_a_batch_has_them() -> None:
    rows = [{"picture": np.full((4, 4, 3), n, np.uint8), "kind": n, "x": 0.5} for n in range(8)]
    parser = ParserMapStyle(rows, batch_size=4, image_key="picture", target_key="kind", preprocess=EvalPreprocess(2))
    batch = next(iter(ImageDataset(parser, fields="all")))
    assert sorted(batch) == ["kind", "picture", "x"]
    assert batch["picture"].shape == (4, 3, 2, 2)


def test_indexed_examples_batches_and_single_examples_are_dictionaries_too(digits: Path) -> None:
    parser = ParserTfds(digits, "digits", "train[:20]", batch_size=4)
    dataset = IndexedImageDataset(parser, lambda image: np.array(image), fields=NAMES)
    batch = next(iter(DataLoader(dataset, 4)))
    assert list(batch) == list(NAMES)
    assert batch["which"].tolist() == [0, 1, 2, 3]
    assert list(IndexedImageDataset(parser, fields=["label"], as_dict=True)[3]) == ["label"]
    assert list(parser[3].as_dict()) == ["image", "label", "index", "id"]
    first = next(parser.batches(fields=["label"])).as_dict()
    assert list(first) == ["label", "valid", "index", "id"]
    assert first["index"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fields": "everything"}, "a dictionary of names in the batch and their fields"),
        ({"fields": {"image", "label"}}, "must be a sequence of field names"),
        ({"fields": {}}, "must be a sequence of field names"),
        ({"fields": {"x": 3}}, "must be a sequence of field names"),
        ({"fields": {"pixel_values": "imge"}}, "imge"),
        ({"fields": ["image", "image"], "as_dict": True}, "a dictionary has 'image' once only"),
        ({"as_dict": 1}, "must be True or False"),
        ({"fields": "all", "pad": {"boxes": 0}}, "which is not among fields"),
    ],
)
def test_what_cannot_be_meant_is_refused(digits: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ready(digits, **options)


def test_a_collation_of_timm_is_refused_as_it_takes_tuples(digits: Path) -> None:
    def fast_collate(batch: Any) -> Any:
        raise AssertionError

    fast_collate.__module__ = "timm.data.loader"
    with pytest.raises(ConfigError, match=r"fast_collate of timm takes tuples.* fields=\('image', 'label'\)"):
        create_loader(singles(digits, fields=NAMES), collate_fn=fast_collate)
