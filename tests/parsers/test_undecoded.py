"""decode= and decoders=: images come as the bytes of their files, whatever the parser."""

import io
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
import torch
from picture_fixtures import ENCODINGS, NAMES, photograph, write_pictures
from PIL import Image
from storage.beton.made_files import PAGE
from storage.webdataset.made_tars import write_samples
from tfds_fixtures import Datasets, call_reader
from torch.utils.data import DataLoader

from parsers.look_alikes import HubDataset, HubImage
from parsers.sources import FILES as OTHER_FILES
from parsers.sources import make_beton
from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    MultiLoader,
    ParserBeton,
    ParserMapStyle,
    ParserTfds,
    ParserWebDataset,
    ReadOptions,
    create_loader,
)
from tfds_torch.check.opening import open_parser
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.parsers.recipe_file import load_config
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

NUM_EXAMPLES = 16
FILES = [
    ENCODINGS[kind](photograph(name, size))
    for kind, size in zip(
        ("jpeg 4:2:0", "jpeg 4:4:4", "jpeg gray", "jpeg 4:2:0"), ((30, 20), (64, 42), (9, 12), (25, 33)), strict=True
    )
    for name in NAMES
] * 2
FILES = FILES[:NUM_EXAMPLES]
BYTES: dict[str, Any] = {"decode": {"image": False}}
SKIP = tfds.decode.SkipDecoding()


def open_pictures(folder: Path, **arguments: Any) -> ParserTfds:
    return ParserTfds(write_pictures(folder, FILES, shards=(5, 11)), "pictures", **arguments)


# What comes


def test_loaders_with_workers_give_the_bytes_of_files_and_paths(tmp_path: Path) -> None:
    rows = []  # As Hugging Face's undecoded columns have them: half of them as a path.
    for number, file in enumerate(FILES):
        (path := tmp_path / f"{number}.jpg").write_bytes(file)
        held = {"bytes": file, "path": None} if number % 2 else {"bytes": None, "path": str(path)}
        rows.append({"image": held, "label": number})
    arguments: dict[str, Any] = {"is_training": True, "batch_size": 4, **BYTES}
    for parser in (open_pictures(tmp_path / "tfds", **arguments), ParserMapStyle(rows, **arguments)):
        wanted = [[FILES[at] for at in batch.index] for batch in parser.batches(fields=())]
        with create_loader(ImageDataset(parser), 2) as loader:
            assert [list(images) for images, _ in loader] == wanted
        plain = DataLoader(ImageDataset(parser), batch_size=4, num_workers=2)
        assert [list(images) for images, _ in plain] == wanted
        with MultiLoader(parser, num_workers=2) as batches:
            assert [batch.image for batch in batches] == wanted


def test_a_transform_of_ones_own_decodes_in_the_workers(tmp_path: Path) -> None:
    parser = open_pictures(tmp_path, batch_size=4)
    decoded = [image.shape for batch in parser.batches() for image in batch.image]
    dataset = ImageDataset(ParserTfds(tmp_path, "pictures", batch_size=4, **BYTES), transform=size_of)
    with create_loader(dataset, 2) as loader:
        assert [(height, width, 3) for sizes, _ in loader for height, width in sizes.tolist()] == decoded


def size_of(file: bytes) -> torch.Tensor:
    return torch.tensor(Image.open(io.BytesIO(file)).size[::-1])


# TFDS


def read_streamed(root: str, mode: str, num_epochs: int) -> list[tuple[list[int], list[bytes]]]:
    """Returns indices and images of a stream. Loads tensorflow."""
    read = ReadOptions(mode=mode, shuffle_buffer=4)
    parser = ParserTfds(root, "pictures", is_training=True, batch_size=4, read=read, decode={"image": False})
    batches = [batch for epoch in range(num_epochs) for batch in parser.batches(epoch=epoch)]
    return [(batch.index.tolist(), batch.image) for batch in batches]


@pytest.mark.parametrize("mode", ["files", "examples"])
def test_streams_give_the_same_bytes(mode: str, tmp_path: Path) -> None:
    found = call_reader(read_streamed, str(write_pictures(tmp_path, FILES, shards=(5, 11))), mode, 2)
    assert len(found) == 8
    for index, images in found:
        assert {type(one) for one in images} == {bytes}
        assert images == [FILES[at] for at in index]


def theirs(directory: str) -> tuple[list[bytes], list[bytes]]:
    """Returns images and masks as TFDS gives them, in the order of the files. Loads tensorflow."""
    decoders = {"image": tfds.decode.SkipDecoding(), "mask": tfds.decode.SkipDecoding()}
    config = tfds.ReadConfig(interleave_cycle_length=1)
    rows = tfds.builder_from_directory(directory).as_dataset(split="train", decoders=decoders, read_config=config)
    return tuple(map(list, zip(*((row["image"], row["mask"]) for row in rows.as_numpy_iterator()), strict=True)))  # type: ignore[return-value]


def test_skip_decoding_gives_what_tfds_gives(datasets: Datasets) -> None:
    decoders = {"image": SKIP, "mask": SKIP}
    parser = ParserTfds(datasets.root, "shapes", batch_size=300, decoders=decoders)
    (batch,) = parser.batches(fields=("image", "mask"))
    assert (batch.image, batch.features["mask"]) == call_reader(theirs, str(datasets.shapes))


def test_skip_decoding_alone_stands_for_all_single_images(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", decoders=SKIP)
    names = ("image", "mask", "depth", "frames", "caption", "label")
    assert [name for name in names if parser.dataset.is_undecoded(name)] == ["image", "mask", "depth"]
    with pytest.raises(ConfigError, match="stands for all images, and no feature is a single one"):
        ParserTfds(datasets.root, "sentences", image_key=None, target_key=None, decoders=SKIP)


def test_decode_and_decoders_say_it_together(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", decode={"mask": False}, decoders={"image": SKIP})
    assert parser.dataset.is_undecoded("mask")
    assert parser.dataset.is_undecoded("image")


def test_one_stored_image_comes_in_one_way_under_all_its_names(datasets: Datasets) -> None:
    for decode in ({"image": False}, {"mask": False}):
        parser = ParserTfds(datasets.root, "shapes", image_key="mask", decode=decode)
        (example,) = parser.examples_by_index([4], ("image", "mask", "stored/image"))
        assert example.image == example.features["mask"]
        assert example.image.startswith(b"\x89PNG")
        assert isinstance(example.features["stored/image"], np.ndarray)
    with pytest.raises(ConfigError, match="'image' and 'mask' are one stored field, which comes either as bytes or"):
        ParserTfds(datasets.root, "shapes", image_key="mask", decode={"image": False, "mask": True})


def test_an_image_beside_undecoded_masks_goes_through_the_preprocess(datasets: Datasets) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "preprocess": EvalPreprocess(8)}
    parser = ParserTfds(datasets.root, "shapes", **arguments, decode={"mask": False})
    plain = next(ParserTfds(datasets.root, "shapes", **arguments).batches())
    batch = next(parser.batches(fields=("image", "mask")))
    assert np.array_equal(batch.image, plain.image)
    assert {one[:4] for one in batch.features["mask"]} == {b"\x89PNG"}


def test_bytes_need_neither_opencv_nor_turbojpeg_nor_tensorflow(tmp_path: Path) -> None:
    root = write_pictures(tmp_path, FILES)
    blocked = ("cv2", "simplejpeg", "kornia_rs", "torchvision", "ffcv")
    code = f"""
import sys
for name in {blocked!r}: sys.modules[name] = None
import ctypes.util
ctypes.util.find_library = lambda name: None
from tfds_torch import ParserTfds
parser = ParserTfds({str(root)!r}, "pictures", batch_size=4, decode={{"image": False}})
images = [image for batch in parser.batches() for image in batch.image]
sys.stdout.buffer.write(b"".join(images))
assert "tensorflow" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"".join(FILES)


# Other formats


def test_any_member_of_a_tar_comes_as_bytes(tmp_path: Path) -> None:
    samples = [{"__key__": f"{number:02}", "cls": b"%d" % number, "txt": b"t%d" % number} for number in range(5)]
    path = write_samples(tmp_path / "a.tar", samples)
    decode = {"label": False, "txt": False}
    (batch,) = ParserWebDataset(path, ["label"], batch_size=5, decode=decode).batches(fields=("label", "txt"))
    assert batch.label is None
    assert batch.features == {name: [one[key] for one in samples] for name, key in (("label", "cls"), ("txt", "txt"))}


def test_any_image_field_of_a_dataset_of_ones_own_comes_as_bytes() -> None:
    rows = [{"view": {"bytes": file, "path": None}, "label": number} for number, file in enumerate(FILES)]
    parser = ParserMapStyle(rows, batch_size=16, image_key=None, decode={"view": False})
    (batch,) = parser.batches(fields=("view",))
    assert batch.features["view"] == FILES


def test_of_a_hub_nothing_is_decoded_but_the_first_image(tmp_path: Path) -> None:
    rows = HubDataset({"image": [{"bytes": file, "path": None} for file in FILES]}, {"image": HubImage()})
    parser = ParserMapStyle(rows, batch_size=5, **BYTES)
    assert [image for batch in parser.batches(fields=("image",)) for image in batch.image] == FILES
    assert rows.num_decoded == 1  # That of the first item, which shows what there is.
    shown = rows.with_format("numpy")
    assert "holds its pixels, not the bytes of a file" in refusal(ParserMapStyle, dataset=shown, **BYTES)


def test_files_that_no_decoder_knows_come_as_bytes() -> None:
    rows = [(b"\0\0\0 ftypavif" + bytes([number]), number) for number in range(4)]
    parser = ParserMapStyle(rows, names=("image", "label"), batch_size=4, **BYTES)
    assert next(parser.batches()).image == [row[0] for row in rows]


def test_empty_datasets_take_it() -> None:
    for parser in (ParserMapStyle([], **BYTES), ParserMapStyle({"image": [], "label": []}, **BYTES)):
        assert parser.dataset.is_undecoded("image")
        assert list(parser.batches(fields=())) == []


def test_a_recipe_says_it_for_a_dataset_and_for_all_members(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "tfds", FILES)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('name = "pictures"\nbatch_size = 4\n[decode]\nimage = false\n')
    config = load_config(recipe)
    assert config.decode == {"image": False}
    assert next(config.make_parser(root).batches()).image == FILES[:4]
    make_beton(tmp_path, OTHER_FILES)
    recipe.write_text(
        f'batch_size = 4\ndecode = {{ image = false }}\n[[mixture]]\nname = "pictures"\nroot = "{root}"\n'
        f'[[mixture]]\nname = "{tmp_path}/a.beton"\n'
    )
    assert [
        image for batch in load_config(recipe).make_parser().batches() for image in batch.image
    ] == FILES + OTHER_FILES
    recipe.write_text('name = "pictures"\ndecode = { image = 0 }\n')
    with pytest.raises(ConfigError, match=re.escape("decode = {'image': 0} is not valid: expected `bool`")):
        load_config(recipe)


# What is refused


def refusal(make: Callable[..., Any], **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make(**arguments)
    return str(caught.value)


@tfds.decode.make_decoder()  # type: ignore[untyped-decorator]
def own_decoder(example: Any, feature: Any) -> Any:
    return feature.decode_example(example)


@pytest.mark.parametrize(
    ("decoders", "message"),
    [
        (
            {"image": own_decoder()},
            r"decoders\['image'\]=.*DecoderFn.* decodes with tensorflow, which reading by number",
        ),
        (
            tfds.decode.PartialDecoding({"image": True}),
            r"decoders=.* chooses which features are read, and fields= does that here: ImageDataset",
        ),
        ({"image": tfds.decode.SkipDecoding}, r"decoders\['image'\]=.* is the class: give SkipDecoding\(\)"),
        ({"nested": {"inner": 3}}, r"decoders\['nested/inner'\]=3 is not a decoder"),
        ({"imag": SKIP}, "shapes:1.0.0: There is no feature 'imag'.*Did you mean 'image'"),
        ({"objects": {"bbox": SKIP}}, "shapes:1.0.0: decode names 'objects/bbox', which is .*not stored as bytes"),
        ({7: SKIP}, "decoders=.* is not a decoder"),
    ],
)
def test_other_decoders_are_refused_with_what_is_understood(decoders: Any, message: str, datasets: Datasets) -> None:
    with pytest.raises(ConfigError, match=f"^{message}") as caught:
        ParserTfds(datasets.root, "shapes", decoders=decoders)
    is_known = "shapes:1.0.0" in str(caught.value)
    understood = (
        "What is understood is decoders={'image': tfds.decode.SkipDecoding()}, which is decode={'image': False}"
    )
    assert is_known or understood in str(caught.value)


def test_decode_that_contradicts_decoders_is_refused(datasets: Datasets) -> None:
    with pytest.raises(ConfigError, match="decodes 'image', and decoders= does not: leave out one of them"):
        ParserTfds(datasets.root, "shapes", decode={"image": True}, decoders={"image": SKIP})


def test_pixels_are_no_bytes_of_a_file(tmp_path: Path) -> None:
    image = photograph(NAMES[0], (8, 8))
    for held in (image, np.asarray(image)):
        text = refusal(ParserMapStyle, dataset=[(held, 0)], names=("image", "label"), **BYTES)
        assert text == (
            "list: decode names 'image', and item 0 holds its pixels, not the bytes of a file. Let the dataset give "
            "the bytes, or leave it out of decode."
        )
    assert "which is int64 [], not stored as bytes" in refusal(
        ParserMapStyle, dataset=[(image, 0)], decode={"label": False}
    )
    with BetonWriter(tmp_path / "raw.beton", {"image": BetonImage("raw")}, 2, page_size=PAGE) as writer:
        for _ in range(2):
            writer.add((np.asarray(image),))
    text = refusal(partial(ParserBeton, tmp_path / "raw.beton"), target_key=None, **BYTES)
    assert "decode names 'image', of which 2 of 2 images are stored as pixels, not as the bytes of a file" in text


def test_an_item_that_is_not_bytes_is_named() -> None:
    rows = [(FILES[0], 0), (FILES[1], 1), (photograph(NAMES[0], (8, 8)), 2), (FILES[2], 3)]
    parser = ParserMapStyle(rows, names=("image", "label"), batch_size=4, **BYTES)
    with pytest.raises(CorruptRecordError, match="item 2 cannot be used"):
        next(parser.batches())


# What reads parsers


def test_check_decodes_what_a_recipe_leaves_undecoded(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('name = "pictures"\nbatch_size = 4\n[decode]\nimage = false\n')
    parser = open_parser(load_config(recipe), str(write_pictures(tmp_path / "tfds", FILES)))
    assert not parser.dataset.is_undecoded("image")
