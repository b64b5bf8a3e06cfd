"""Samples of tars that lack a member, as img2dataset writes them where a page has no caption."""

import io
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storage.webdataset.made_tars import write_tar

from parsers.tar_samples import pixels_of, png
from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    MultiLoader,
    ParserBeton,
    ParserMixture,
    ParserWebDataset,
    create_loader,
    export_dataset,
)
from tfds_torch.errors import ConfigError, ShardError

NUM = 24
WITHOUT = {"txt": (1, 5, 6, 13), "cls": (3, 5, 23), "npy": (0,), "bin": (1,)}
COMPLETE = [number for number in range(NUM) if not any(number in lacking for lacking in WITHOUT.values())]
LABELS = [-100 if number in WITHOUT["cls"] else number % 3 for number in range(NUM)]
TEXTS = [None if number in WITHOUT["txt"] else f"caption {number}" for number in range(NUM)]
FIELDS = ("image", "label", "txt", "npy", "bin")


def npy(number: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([number]))
    return file.getvalue()


def members(number: int) -> list[tuple[str, bytes]]:
    there = {
        "jpg": png(pixels_of(number)),
        "txt": b"caption %d" % number,
        "json": b'{"number": %d}' % number,
        "cls": b"%d" % (number % 3),
        "npy": npy(number),
        "bin": bytes([number]),
    }
    return [(f"{number:09d}.{name}", content) for name, content in there.items() if number not in WITHOUT.get(name, ())]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two tars of 24 samples in all."""
    folder = tmp_path_factory.mktemp("laion")
    for tar, numbers in enumerate((range(10), range(10, NUM))):
        write_tar(folder / f"{tar:05d}.tar", [one for number in numbers for one in members(number)])
    return str(folder / "{00000..00001}.tar")


def test_without_a_word_they_are_an_error_that_says_what_to_write(urls: str) -> None:
    said = (
        r"sample '000000001' has no member \.txt for the field 'txt', as 20 other samples .* 4 of 24 samples lack it\."
        r".*missing='skip', or read None .* missing='none'"
    )
    with pytest.raises(ShardError, match=said):
        ParserWebDataset(urls, ("image", "txt"))
    with pytest.raises(ShardError, match=said):
        ParserWebDataset(urls, ("image", "txt"), missing="error")
    with pytest.raises(ConfigError, match=r"missing='skipp' must be one of .* Did you mean 'skip'\?"):
        ParserWebDataset(urls, missing="skipp")  # type: ignore[arg-type]


def test_skip_leaves_them_out_and_lengths_are_exact(urls: str, caplog: pytest.LogCaptureFixture) -> None:
    parser = ParserWebDataset(urls, FIELDS, missing="skip", batch_size=4, preprocess=EvalPreprocess(8))
    assert (len(parser), parser.num_examples, parser.num_incomplete) == (len(COMPLETE), len(COMPLETE), 7)
    (told,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert told == (
        "00000.tar..00001.tar: samples that lack a member are left out (missing='skip'): 7 of 24. They lack "
        "'label' (3 of 24), 'txt' (4 of 24), 'npy' (1 of 24), 'bin' (1 of 24)."
    )
    parser = pickle.loads(pickle.dumps(parser))
    batches = list(parser.batches(fields=("label", "txt", "image")))
    assert np.concatenate([batch.index for batch in batches]).tolist() == COMPLETE
    assert np.concatenate([batch.label for batch in batches]).tolist() == [LABELS[number] for number in COMPLETE]
    assert [text for batch in batches for text in batch.features["txt"]] == [TEXTS[number] for number in COMPLETE]
    assert parser[2].id == f"{COMPLETE[2]:09d}"
    assert parser.targets().tolist() == [LABELS[number] for number in COMPLETE]
    with create_loader(ImageDataset(parser, fields=("image", "index")), num_workers=2) as loader:
        read = [index.tolist() for _, index in loader]
    assert len(read) == len(loader) == 5
    assert [number for numbers in read for number in numbers] == COMPLETE
    assert ParserWebDataset(urls, ["image", "json"], missing="skip").num_examples == NUM


def test_none_stands_for_what_a_sample_lacks(urls: str) -> None:
    parser = ParserWebDataset(urls, FIELDS, missing="none", decoders={"bin": len}, batch_size=5)
    assert (len(parser), parser.num_incomplete, parser.dataset.has_optional_label) == (NUM, 7, True)
    found: dict[str, list[Any]] = {"txt": [], "npy": [], "bin": [], "label": []}
    for batch in parser.batches(fields=FIELDS):
        assert batch.label.dtype == np.int64
        assert batch.valid.all()
        found["label"] += batch.label.tolist()
        for name in ("txt", "npy", "bin"):
            assert isinstance(batch.features[name], list)
            found[name] += batch.features[name]
        assert all((image == pixels_of(number)).all() for number, image in zip(batch.index, batch.image, strict=True))
    assert found["txt"] == TEXTS
    assert found["label"] == LABELS == parser.targets().tolist()
    assert [None if one is None else one.tolist() for one in found["npy"]] == [None, *([n] for n in range(1, NUM))]
    assert found["bin"] == [1, None, *[1] * (NUM - 2)]
    assert parser.examples_by_index([5], ["label", "txt"])[0].label == -100


def test_none_of_labels_goes_through_class_names_and_class_maps(urls: str) -> None:
    named = ParserWebDataset(urls, ["label"], ["a", "b", "c"], missing="none", batch_size=NUM)
    (batch,) = named.batches(fields=("label",))
    assert batch.label.tolist() == LABELS
    mapped = ParserWebDataset(urls, ["label"], missing="none", class_map={0: 7, 1: 8, 2: 9})
    assert mapped.targets().tolist() == [label if label == -100 else label + 7 for label in LABELS]
    train = ParserWebDataset(urls, ["label"], missing="none", is_training=True, batch_size=4)
    with pytest.raises(ConfigError, match=r"3 of 24 labels are -100"):
        train.balanced()
    assert train.subset(train.targets() != -100).balanced().num_examples == NUM - 3


def test_extensions_without_a_field_follow_the_same_word(urls: str) -> None:
    none = ParserWebDataset(urls, ["image"], missing="none", batch_size=NUM)
    (batch,) = none.batches(fields=("txt",))
    assert batch.features["txt"] == TEXTS
    with pytest.raises(ShardError, match=r"no member \.txt .*otherwise name it in fields=, so that samples without it"):
        ParserWebDataset(urls, ["image"], missing="skip").check_fields(["txt"])
    with_text = ParserWebDataset(urls, ["image"]).subset([number for number in range(NUM) if TEXTS[number]])
    assert [one.features["txt"] for one in with_text.examples_by_index([2, 0], ["txt"])] == ["caption 2", "caption 0"]


def test_an_image_is_never_none(tmp_path: Path) -> None:
    files = [("1.jpg", png(pixels_of(1))), ("1.seg.png", png(pixels_of(1))), ("2.txt", b"x"), ("3.txt", b"x")]
    path = write_tar(tmp_path / "a.tar", [*files, ("3.jpg", png(pixels_of(3)))])
    said = r"sample '2' has no member .*missing='skip' \(no image of a batch is None\), .*decode=\{'%s': False\}"
    for name in ("image", "seg.png"):
        with pytest.raises(ShardError, match=said % name):
            ParserWebDataset(path, [name], missing="none")
        with pytest.raises(ShardError, match="has no member"):
            ParserWebDataset(path, ["txt"], missing="none").check_fields(["seg.png"])
    raw = ParserWebDataset(path, ["image"], missing="none", decode={"image": False})
    assert [type(example.image) for example in raw[:]] == [bytes, type(None), bytes]
    assert [example.id for example in ParserWebDataset(path, ["image"], missing="skip")[:]] == ["1", "3"]


def test_samples_that_are_all_incomplete_are_an_error(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.txt", b"x"), ("2.json", b"1")])
    with pytest.raises(ShardError, match=r"no sample has all fields.*'txt' \(1 of 2\), 'json' \(1 of 2\)"):
        ParserWebDataset(path, ["txt", "json"], missing="skip")
    with pytest.raises(ConfigError, match=r"has no field 'mp': no sample has a member \.mp"):
        ParserWebDataset(path, ["txt", "mp"], missing="none")


def test_a_state_belongs_to_the_samples_that_are_read(urls: str) -> None:
    def loader(missing: Any) -> MultiLoader:
        parser = ParserWebDataset(urls, FIELDS, missing=missing, is_training=True, batch_size=3)
        return MultiLoader(parser, fields=("txt",), num_workers=1)

    with loader("skip") as first:
        batches = iter(first)
        next(batches)
        state = first.state_dict()
        rest = [batch.index.tolist() for batch in batches]
    with loader("skip") as second:
        second.load_state_dict(state)
        assert [batch.index.tolist() for batch in second] == rest
    fingerprints = {ParserWebDataset(urls, FIELDS, missing=one).fingerprint for one in ("skip", "none")}
    assert len(fingerprints) == 2


def test_members_of_a_mixture_may_lack_some(urls: str, tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tar", [one for number in (2, 4, 7) for one in members(number)])
    parts = {
        "none": ParserWebDataset(urls, ["label", "txt"], missing="none"),
        "skip": ParserWebDataset(urls, ["label", "txt"], missing="skip"),
        "whole": ParserWebDataset(whole, ["label", "txt"]),
    }
    mixture = ParserMixture(parts, batch_size=64)
    (batch,) = mixture.batches(fields=("label", "txt"))
    complete = [number for number in range(NUM) if TEXTS[number] and LABELS[number] >= 0]
    assert batch.features["txt"] == [*TEXTS, *(TEXTS[n] for n in complete), "caption 2", "caption 4", "caption 7"]
    assert batch.label.tolist() == [*LABELS, *(LABELS[number] for number in complete), 2, 1, 1]
    assert mixture.dataset.has_optional_label


def test_a_beton_file_holds_none_as_json_and_refuses_bytes_that_some_lack(urls: str, tmp_path: Path) -> None:
    parser = ParserWebDataset(urls, ["image", "label", "txt"], missing="none")
    export_dataset(parser, tmp_path / "a.beton", format="beton", num_workers=0)
    beton = ParserBeton(tmp_path / "a.beton", batch_size=NUM)
    (batch,) = beton.batches(fields=("label", "txt"))
    assert (batch.features["txt"], batch.label.tolist()) == (TEXTS, LABELS)
    raw = ParserWebDataset(urls, ["bin"], missing="none")
    with pytest.raises(
        ConfigError, match=r"'bin': some samples lack it, and a \.beton file has neither .*missing='skip'"
    ):
        export_dataset(raw, tmp_path / "b.beton", format="beton", num_workers=0)
    with pytest.raises(Exception, match=r"none of the exported fields, .*missing='skip'"):
        export_dataset(raw, tmp_path / "tars", format="webdataset", num_workers=0)
