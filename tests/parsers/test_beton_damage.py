"""A `.beton` file whose content was damaged after it was written: an error or another example, never other values."""

import os
import random
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storage.beton.made_files import PAGE, flip, places_of, unpack

from tfds_torch import EvalPreprocess, ImageDataset, ParserBeton, ReadOptions, create_loader
from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.storage.beton.fields import BetonArray, BetonBytes, BetonField, BetonInt, BetonJson, BetonTensor
from tfds_torch.storage.beton.head import read_head
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

NUM_EXAMPLES, SIDE = 24, 8
FIELDS: dict[str, BetonField] = {
    "jpg": BetonImage("jpg"),
    "raw": BetonImage("raw"),
    "sizes": BetonImage("raw"),
    "mixed": BetonImage("proportion"),
    "label": BetonInt(),
    "text": BetonBytes(),
    "facts": BetonJson(),
    "array": BetonArray("float32", (2, 3)),
    "tensor": BetonTensor("int16", (5,)),
}
IN_PAGES = [name for name in FIELDS if name != "label"]
IMAGES = ["jpg", "raw", "sizes", "mixed"]
WHOLE = EvalPreprocess(size=SIDE, crop_pct=1.0)
ALL = np.arange(NUM_EXAMPLES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)

    def pixels(height: int) -> Any:
        return rng.integers(0, 256, (height, SIDE, 3), dtype=np.uint8)

    with BetonWriter(tmp_path / "a.beton", FIELDS, NUM_EXAMPLES, page_size=PAGE) as writer:
        for number in range(NUM_EXAMPLES):
            images = (pixels(SIDE), pixels(SIDE), pixels(SIDE + number % 3), pixels(SIDE))
            numbers = rng.normal(size=(2, 3)).astype(np.float32), np.full(5, number, np.int16)
            facts = {"number": number, "name": "ä" * number}
            writer.add((*images, number % 10, b"text" * (number + 1), facts, *numbers), id=f"folder/{number}")
    return tmp_path / "a.beton"


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.tobytes() == np.asarray(other).tobytes()
    return len(one) == len(other) and all(
        np.asarray(value).tobytes() == np.asarray(twin).tobytes() for value, twin in zip(one, other, strict=True)
    )


def stored(path: Path, name: str, *, verify_checksums: bool) -> Any:
    """Returns the values of a field as they are stored."""
    parser = ParserBeton(path, read=ReadOptions(verify_checksums=verify_checksums))
    values = parser.source.read(ALL[: parser.num_examples], [name])[name]
    return values.copy() if hasattr(values, "copy_into") else values


def place_in(path: Path, name: str, random_numbers: random.Random) -> tuple[int, int, int]:
    """Returns a sample, where its payload lies, and a random byte of it."""
    places = places_of(path, name)
    sample = random_numbers.choice([number for number, (_, size) in enumerate(places) if size])
    pointer, size = places[sample]
    return sample, pointer, pointer + random_numbers.randrange(size)


@pytest.mark.parametrize("name", IN_PAGES)
def test_a_flipped_bit_of_any_field_is_an_error_and_no_other_value(name: str, path: Path) -> None:
    random_numbers = random.Random(name)
    whole = stored(path, name, verify_checksums=True)
    for _ in range(8):
        sample, pointer, at = place_in(path, name, random_numbers)
        mask = 1 << random_numbers.randrange(8)
        flip(path, at, mask)
        parser = ParserBeton(path, batch_size=5, image_key=name if name in IMAGES else None)
        dataset = ImageDataset(parser, fields=("image",) if name in IMAGES else (name,))
        with pytest.raises(CorruptRecordError) as caught:
            list(dataset)
        message = str(caught.value)
        assert message.startswith(f"{path}: sample {sample} (id folder/{sample}): the ")
        assert f"bytes of its field {name!r} at offset {pointer} do not have their checksum" in message
        assert message.endswith("the file is corrupt. Write it again from its dataset.")
        # Not compared, they are other values: else this test could not fail.
        assert not equal(stored(path, name, verify_checksums=False), whole)
        flip(path, at, mask)
    assert equal(stored(path, name, verify_checksums=True), whole)


@pytest.mark.parametrize("name", ["jpg", "raw"])
def test_whole_batches_have_no_damaged_image(name: str, path: Path) -> None:
    sample, _, at = place_in(path, name, random.Random(1))
    flip(path, at, 0x10)
    for is_training in (False, True):
        parser = ParserBeton(path, is_training, is_training, 5, image_key=name, preprocess=WHOLE)
        with pytest.raises(CorruptRecordError, match=f"sample {sample} .* do not have their checksum"):
            list(create_loader(ImageDataset(parser), device=None))
    with pytest.raises(CorruptRecordError, match=f"sample {sample} .* do not have their checksum"):
        parser[sample]
    assert parser[(sample + 1) % NUM_EXAMPLES].index == (sample + 1) % NUM_EXAMPLES


def test_comparing_is_switched_off_and_on_for_a_parser_that_is_there(path: Path) -> None:
    flip(path, places_of(path, "raw")[7][0] + 3)
    parser = ParserBeton(path, batch_size=6, image_key="raw")
    unverified = parser.with_read(ReadOptions(verify_checksums=False))
    assert sum(len(batch) for batch in unverified.batches()) == NUM_EXAMPLES
    for verified in (parser, unverified.with_read(ReadOptions())):
        with pytest.raises(CorruptRecordError, match="sample 7 "):
            list(verified.batches())


def test_rows_table_and_checksums_are_compared_when_a_file_is_opened(path: Path) -> None:
    """Labels, pointers and sizes; each of them would be another value, or be read from another place."""
    head = read_head(str(path))
    for at, what in (
        (head.layout.metadata_at + 5 * head.layout.row_type.itemsize - 3, "metadata"),
        (head.table_at + 24 * 7 + 8, "allocation table"),
        (head.manifest.checksums_at + 11, "list of checksums"),
    ):
        flip(path, at)
        parser = ParserBeton(path, batch_size=5, read=ReadOptions(verify_checksums=False))
        with pytest.raises(CorruptRecordError, match=f"its {what} does not have its checksum"):
            list(parser.batches(fields=("label",)))
        flip(path, at)


def test_a_flipped_id_or_place_of_an_id_is_an_error(path: Path) -> None:
    manifest = read_head(str(path)).manifest
    for at in (manifest.id_stops_at + 8 * 2, manifest.ids_at + 10):  # The places stay in order.
        flip(path, at)
        dataset = ImageDataset(ParserBeton(path, batch_size=5), fields=("label", "id"))
        with pytest.raises(CorruptRecordError, match="its ids do not have their checksum"):
            list(dataset)
        flip(path, at)
    ids = [id for _, id in ImageDataset(ParserBeton(path, batch_size=5), fields=("label", "id"))]
    assert ids[2] == "folder/2"


# What is remembered as compared


@pytest.mark.parametrize("name", ["raw", "array", "jpg"])
def test_what_is_damaged_between_two_epochs_is_found_though_the_modification_time_is_restored(
    name: str, path: Path
) -> None:
    parser = ParserBeton(path, batch_size=6, image_key=name if name == "raw" else None)
    fields = ("image", "label") if name == "raw" else (name, "label")
    assert sum(len(batch) for batch in parser.batches(fields=fields)) == NUM_EXAMPLES
    flip(path, places_of(path, name)[7][0] + 3)
    with pytest.raises(CorruptRecordError, match="sample 7 "):
        list(parser.batches(epoch=1, fields=fields))


def test_a_label_that_is_damaged_between_two_epochs_is_found(path: Path) -> None:
    parser = ParserBeton(path, batch_size=6)
    labels = [int(label) for batch in parser.batches(fields=("label",)) for label in batch.label]
    assert labels == [number % 10 for number in range(NUM_EXAMPLES)]
    reader = parser.source.reader
    layout, member = reader.head.layout, reader.rows_of("label")
    flip(path, layout.metadata_at + (member.ctypes.data - reader.rows.ctypes.data) + 4 * layout.row_type.itemsize)
    with pytest.raises(CorruptRecordError, match="its metadata does not have its checksum"):
        list(parser.batches(epoch=1, fields=("label",)))


def test_an_id_that_is_damaged_between_two_epochs_is_found(path: Path) -> None:
    parser = ParserBeton(path, batch_size=6)
    assert [id for batch in parser.batches(fields=()) for id in batch.id] == [f"folder/{n}" for n in ALL]
    flip(path, read_head(str(path)).manifest.ids_at + 3)
    with pytest.raises(CorruptRecordError, match="its ids do not have their checksum"):
        list(next(parser.batches(epoch=1, fields=())).id)


# Files of other writers


def test_a_file_of_0_2_0_reads_as_those_of_ffcv_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = unpack("golden_tfds_torch_0.2.0.beton.gz", tmp_path)
    parser = ParserBeton(old, batch_size=5, preprocess=EvalPreprocess(size=(6, 5), crop_mode="squash", crop_pct=1.0))
    fields = ("image", "label", "photo", "score", "text", "facts", "box", "codes")
    for batch in parser.batches(fields=fields):
        for place, number in enumerate(batch.index.tolist()):
            value = {name: values[place] for name, values in batch.features.items()}
            pixels = (np.arange(6 * 5 * 3) * (number + 1) % 251).astype(np.uint8)
            assert (batch.image[place] == pixels.reshape(6, 5, 3)).all()
            assert batch.id[place] == f"golden_tfds_torch_0.2.0.beton__{number}"
            assert value["photo"].shape == (4 + number % 4, 5, 3)
            assert np.abs(value["photo"].astype(int) - 20 * number).max() <= 2
            assert value["text"] == (b"text" * number if number % 4 else bytes([65 + number]) * 1_500_000)
            assert (value["score"], value["facts"]) == (number / 8, {"number": number, "name": "ä"})
            assert (value["box"] == number).all()
            assert (value["codes"] == np.arange(3) * number).all()
    (line,) = caplog.messages
    assert line == (
        f"An earlier version of tfds_torch wrote {old}, which is read as FFCV's own files are, without ids, names of "
        f"classes and checksums: to have them, write it again from its dataset."
    )


def test_files_of_ffcv_have_no_checksums_and_are_read(tmp_path: Path) -> None:
    path = unpack("regenerated_ffcv_1.0.2.beton.gz", tmp_path)
    whole = stored_nd(path)
    flip(path, places_of(path, "nd")[3][0])
    changed = stored_nd(path)
    assert (whole != changed).any(axis=(1, 2)).nonzero()[0].tolist() == [3]


def stored_nd(path: Path) -> Any:
    (batch,) = ParserBeton(path, image_key="raw", target_key="int", batch_size=12).batches(fields=("nd",))
    return batch.features["nd"]


# A file that is cut while it is in use


CUT = r"changed while it was in use: it had \d+ bytes and has 10000"


@pytest.mark.parametrize("fields", [("array",), ("text",), ("label",), ("id",)])
def test_a_file_that_is_cut_while_it_is_in_use_is_an_error(fields: tuple[str], path: Path) -> None:
    batches = ParserBeton(path, batch_size=4).batches(fields=fields)
    list(next(batches).id)
    os.truncate(path, 10_000)
    with pytest.raises(ShardError, match=CUT):
        list(chain.from_iterable(batch.id for batch in batches))
