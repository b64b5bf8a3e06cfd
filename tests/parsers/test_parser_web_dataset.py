"""ParserWebDataset: WebDataset's tars as batches, with every promise of read mode `index`. No tensorflow."""

import io
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storage.webdataset.made_tars import samples_of, write_samples, write_tar

from parsers.tar_samples import CLASSES, FIELDS, pixels_of, png, sample_of
from tfds_torch import (
    ImageDataset,
    ParserWebDataset,
)
from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError

NUM_EXAMPLES, NUM_TARS = 36, 3


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three tars of 36 samples in all, written by webdataset."""
    folder = tmp_path_factory.mktemp("tars")
    shares = np.array_split(np.arange(NUM_EXAMPLES), NUM_TARS)
    for tar, share in enumerate(shares):
        write_samples(folder / f"a-{tar:02d}.tar", map(sample_of, share.tolist()))
    return str(folder / "a-{00..02}.tar")


# What comes


def test_every_kind_of_member_comes_as_what_it_is(urls: str) -> None:
    parser = ParserWebDataset(urls, FIELDS, CLASSES, batch_size=NUM_EXAMPLES)
    (batch,) = parser.batches(fields=tuple(FIELDS))
    numbers = range(NUM_EXAMPLES)
    assert batch.label.dtype == np.int64
    assert batch.label.tolist() == [number % 5 for number in numbers]
    assert all((image == pixels_of(number)).all() for number, image in enumerate(batch.image))
    assert all((mask == pixels_of(number)).all() for number, mask in enumerate(batch.features["mask"]))
    assert batch.features["text"] == [f"text {number} ä" for number in numbers]
    assert batch.features["facts"] == [{"number": number} for number in numbers]
    assert batch.features["raw"] == [bytes([number]) for number in numbers]
    vectors = batch.features["vector"]
    assert [(one.dtype, one.tolist()) for one in vectors] == [
        (np.float32, np.arange(number % 4).tolist()) for number in numbers
    ]
    assert vectors[1].flags.writeable
    assert list(batch.id) == [f"part/{number:04d}" for number in numbers]
    assert parser.class_to_idx == {name: label for label, name in enumerate(CLASSES)}


# What cannot work


def test_an_extension_that_was_not_named_is_read_by_its_own_name(urls: str) -> None:
    parser = ParserWebDataset(urls)
    came = [text for batch in parser.batches(fields=("txt",)) for text in batch.features["txt"]]
    named = ParserWebDataset(urls, fields=FIELDS).batches(fields=("text",))
    assert came == [text for batch in named for text in batch.features["text"]]
    assert len(set(came)) > 1
    with pytest.raises(ConfigError, match=r"no field 'tx': fields= names image, label\. The extensions in the tars"):
        list(parser.batches(fields=("tx",)))


UNUSUAL = {"mp": b"\x81\xa1a\x01", "ten": b"tensors", "txt.gz": b"\x1f\x8b", "cbor": b"\xa0", "npz": b"PK"}


@pytest.fixture
def unusual(tmp_path: Path) -> Path:
    """A tar as WebDataset's own tests have it: neither images nor labels."""
    return write_samples(tmp_path / "a.tar", [{"__key__": f"{number}", **UNUSUAL} for number in range(6)])


def test_samples_without_image_and_label_are_an_error_that_names_what_is_there(unusual: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"a\.tar: no sample has a member \.jpg or \.jpeg or \.png or \.cls, .*The extensions in the tars are "
        r"'cbor', 'mp', 'npz', 'ten', 'txt\.gz': name those that you want",
    ):
        ParserWebDataset(unusual)


@pytest.mark.parametrize("fields", [tuple(UNUSUAL), {name: name for name in UNUSUAL}])
def test_unknown_extensions_are_bytes_as_webdataset_yields_them(unusual: Path, fields: Any) -> None:
    parser = ParserWebDataset(unusual, fields, batch_size=4)
    theirs = samples_of([unusual])
    rows = [
        row
        for batch in parser.batches(fields=tuple(UNUSUAL))
        for row in zip(*(batch.features[name] for name in UNUSUAL), strict=True)
    ]
    assert rows == [tuple(sample[name] for name in UNUSUAL) for sample in theirs]
    dataset = ImageDataset(ParserWebDataset(unusual, ["mp"]), fields=("ten", "mp"))
    assert list(dataset) == [(UNUSUAL["ten"], UNUSUAL["mp"])] * 6


def test_an_extension_that_some_samples_lack_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.cls", b"1"), ("2.cls", b"1"), ("2.mp", b"x")])
    parser = ParserWebDataset(path)
    with pytest.raises(ShardError, match=r"sample '1' has no member \.mp for the field 'mp', as 1 other samples"):
        parser.check_fields(["mp"])


def names_of(*files: str) -> list[tuple[str, bytes]]:
    return [(name, b"x") for name in files]


DOTTED = names_of(*(f"{number:04d}.{number + 2}.jpg" for number in range(4)))
IN_FOLDERS = names_of(*(f"{n:04d}/{name}" for n in range(3) for name in ("input.jpg", "label.cls", "target.jpg")))
CLASS_FOLDERS = names_of(*(f"{label}/{n:04d}.jpg" for label in ("cat", "dog") for n in range(3)))
BY_DOTS = r"A key ends at the first dot of a file's name, so that '2\.jpg', '3\.jpg', '4\.jpg', \.\.\. are extensions"
BY_FOLDERS = (
    r"The names 'input', 'label', 'target' repeat in every folder, .* '0000/input' is a sample of its own\. For one "
    r"sample a folder, .* tar --sort=name --transform="
)


@pytest.mark.parametrize(
    ("files", "fields", "said"),
    [
        (DOTTED, {"image": "jpg"}, BY_DOTS),
        (DOTTED, {"image": "jpeg"}, BY_DOTS),
        (DOTTED, None, BY_DOTS),
        ([*DOTTED[:1], ("2.jpg", b"x")], {"image": "jpg"}, r"it has '2\.jpg'.*so that '2\.jpg' is an extension: where"),
        (names_of("1.seg.jpg", "2.seg.jpg"), {"image": "jpg"}, r"\. Did you mean 'seg\.jpg'\?$"),
        (IN_FOLDERS, {"image": "input.jpg"}, BY_FOLDERS),
        (IN_FOLDERS, {"image": "Input.JPG"}, BY_FOLDERS),
        (IN_FOLDERS, None, BY_FOLDERS),
        (
            names_of("1/in.jpg", "2/in.jpg"),
            {"image": "in.jpg"},
            r"The name 'in' repeats .* the extension alone, 'jpg'\.",
        ),
        (CLASS_FOLDERS, {"image": "jpge"}, r"\. Did you mean 'jpg'\?$"),
        (CLASS_FOLDERS, {"label": "cls"}, r"name one in fields=\{'label': \.\.\.\}\.$"),
    ],
)
def test_an_error_says_what_the_names_in_the_tars_have_to_do_with_it(
    files: Any, fields: Any, said: str, tmp_path: Path
) -> None:
    path = write_tar(tmp_path / "a.tar", files)
    with pytest.raises((ConfigError, ShardError), match=said) as caught:
        ParserWebDataset(path, **({} if fields is None else {"fields": fields}))
    assert not re.search(r"Did you mean '\d\.jpg'", str(caught.value))


def test_a_folder_for_each_sample_is_said_where_none_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [(f"{n}/{name}", b"1") for n in range(3) for name in ("caption.txt", "facts.json")]
    path = write_tar(tmp_path / "a.tar", files)
    assert len(ParserWebDataset(path, ["txt", "json"], missing="none")) == 6
    assert "The names 'caption', 'facts' repeat in every folder" in caplog.text
    with pytest.raises(ShardError, match=r"no sample has all fields, .*The names 'caption', 'facts' repeat"):
        ParserWebDataset(path, ["txt", "json"], missing="skip")


JUNK = ["README", ".DS_Store", "._1.png", "__MACOSX/._1.png", "a/.DS_Store", "a/._1.png", "a/LICENSE", "2."]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_files_that_tar_tools_leave_are_skipped_and_counted(
    tmp_path: Path, tar_format: int, caplog: pytest.LogCaptureFixture
) -> None:
    samples = [("1.png", png(pixels_of(1))), ("1.cls", b"1"), ("a/2.png", png(pixels_of(2))), ("a/2.cls", b"2")]
    files = [*((name, b"junk") for name in JUNK), *samples[:2], *((name, b"more") for name in JUNK), *samples[2:]]
    path = write_tar(tmp_path / "a.tar", files, tar_format, mtime=1.5)  # PAX writes that into a header of its own.
    parser = ParserWebDataset(path, batch_size=2)
    (batch,) = parser.batches()
    assert (list(batch.id), batch.label.tolist()) == (["1", "a/2"], [1, 2])
    (told,) = (record.getMessage() for record in caplog.records)
    assert told == (
        "a.tar: files that belong to no sample are skipped: 16, such as 'README', '.DS_Store', '._1.png'. "
        "Names are <key>.<extension>."
    )
    top = [name for name in JUNK if "/" not in name and name != "2."]  # Of the others it makes samples.
    theirs = samples_of([write_tar(tmp_path / "b.tar", [*((name, b"junk") for name in top), *samples])])
    assert [sample["__key__"] for sample in theirs] == list(batch.id)
    assert [set(sample) - {"__key__"} for sample in theirs] == [{"png", "cls"}] * 2


def test_tars_whose_files_all_belong_to_no_sample_are_an_error(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("n01440764_1", b"x"), ("n01440764_2", b"x")])
    with pytest.raises(ShardError, match=r"a\.tar has no samples: .*\(2, such as 'n01440764_1', .*<key>\.<extension>"):
        ParserWebDataset(path)


def test_a_sample_without_its_label_is_named_before_training_begins(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.jpg", b"x"), ("1.cls", b"1"), ("2.jpg", b"x")])
    with pytest.raises(ShardError, match=r"a\.tar: sample '2' has no member \.cls for the field 'label', as 1 other"):
        ParserWebDataset(path)


NPY = io.BytesIO()
np.save(NPY, np.arange(4))
OBJECTS = io.BytesIO()
np.save(OBJECTS, np.array([{}, []], object), allow_pickle=True)


@pytest.mark.parametrize(
    ("extension", "stored", "said"),
    [
        ("cls", b"", r"b'' is not an integer of 64 bits"),
        ("cls", b"cat\x1b[2J", r"b'cat\\x1b\[2J' is not an integer"),
        ("cls", b"1_0", r"b'1_0' is not an integer"),
        ("cls", b"9223372036854775808", r"is not an integer of 64 bits"),
        ("cls", b"7" * 4000, r"\.\.\. \(4000 bytes\) is not an integer"),
        ("cls", b"5", r"is 5, which is not a label of the 5 classes: they are 0 to 4, and -1 for none"),
        ("cls", b"-2", r"is -2, which is not a label"),
        ("txt", b"a\xff", r"It is not text in UTF-8: byte 1 is 0xff"),
        ("json", b"{", r"It is not JSON: "),
        ("json", b"[" * 100_000, r"It is not JSON: "),
        ("npy", b"", r"It is not an \.npy file"),
        ("npy", OBJECTS.getvalue(), r"with objects of Python, which can run code"),
        ("npy", NPY.getvalue()[:-1], r"takes 32 bytes and has 31"),
        ("npy", NPY.getvalue().replace(b"(4,)", b"(2**9,)"[:4]), r"It is not an \.npy file"),
        ("npy", NPY.getvalue().replace(b"(4,), }   ", b"(10**9,), }"[:10]), r"It is not an \.npy file"),
        ("npy", NPY.getvalue().replace(b"(4,), }            ", b"(400000000000,), } "), r"takes 3200000000000 bytes"),
        ("png", b"no image", r"cannot be decoded"),
    ],
)
def test_a_value_that_cannot_be_decoded_is_named_with_tar_and_key(
    extension: str, stored: bytes, said: str, tmp_path: Path
) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"1.{extension}", stored)])
    name = {"cls": "label", "png": "image"}.get(extension, "value")
    parser = ParserWebDataset(path, {name: extension}, CLASSES, batch_size=1)
    with pytest.raises(CorruptRecordError, match=said) as caught:
        list(parser.batches(fields=(name,)))
    assert str(caught.value).startswith(f"{path}: sample '1' (index 0) cannot be decoded")
    assert str(caught.value).isprintable()


def test_no_label_is_allowed_beside_class_names(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("1.cls", b"-1"), ("2.cls", b" +4\n")])
    (batch,) = ParserWebDataset(path, {"label": "cls"}, CLASSES, batch_size=2).batches(fields=("label",))
    assert batch.label.tolist() == [-1, 4]


def test_targets_are_those_of_the_extension_that_is_the_label(tmp_path: Path) -> None:
    files = [(f"{n}.{name}", b"%d" % (n + more)) for n in range(3) for name, more in (("cls", 0), ("fine.cls", 10))]
    path = write_tar(tmp_path / "a.tar", files)
    assert ParserWebDataset(path, ["label"]).targets().tolist() == [0, 1, 2]  # Kept from here on.
    assert ParserWebDataset(path, {"label": "fine.cls"}).targets().tolist() == [10, 11, 12]
    assert list(ParserWebDataset(path, ["label"], decoders={"cls": twice}).targets()) == [0, 2, 4]
    assert ParserWebDataset(path, ["label"]).targets().tolist() == [0, 1, 2]


def twice(stored: bytes) -> int:
    return 2 * int(stored)


# Decoders of one's own


def reverse(stored: bytes) -> bytes:
    return stored[::-1]


def refuse(stored: bytes) -> bytes:
    raise KeyError("no such thing")


@pytest.mark.parametrize("extension", [".bin", "bin"])
def test_a_decoder_of_ones_own_takes_the_place_of_the_usual_one(urls: str, extension: str) -> None:
    decoders = {extension: reverse, ".json": len, "seg.png": len}
    parser = ParserWebDataset(urls, FIELDS, decoders=decoders, batch_size=NUM_EXAMPLES)
    (batch,) = parser.batches(fields=("image", "raw", "facts", "mask"))
    samples = [sample_of(number) for number in range(NUM_EXAMPLES)]
    assert batch.features["raw"] == [sample["bin"][::-1] for sample in samples]
    assert batch.features["facts"] == [len(sample["json"]) for sample in samples]
    assert batch.features["mask"] == [len(sample["seg.png"]) for sample in samples]
    assert (batch.image[3] == pixels_of(3)).all()  # .png has its own, but for .seg.png.


def test_what_a_decoder_raises_is_named_with_tar_and_key(urls: str) -> None:
    parser = ParserWebDataset(urls, {"facts": "json"}, decoders={".json": refuse}, batch_size=2)
    said = r"sample 'part/0000' \(index 0\) cannot be decoded: .*Its decoder refuse raised KeyError: 'no such thing'"
    with pytest.raises(CorruptRecordError, match=said):
        next(iter(parser.batches(fields=("facts",))))
