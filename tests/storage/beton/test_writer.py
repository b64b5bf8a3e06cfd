"""BetonWriter: what it writes is read back by another reader, or refused with the remedy before anything is written."""

import os
import stat
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storage.beton.made_files import FIELDS, PAGE, left_behind, sample_of, without_manifest, write_samples
from storage.beton.plain_reader import read_plainly

from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.storage.beton.fields import (
    BetonArray,
    BetonBytes,
    BetonCustom,
    BetonField,
    BetonInt,
    BetonJson,
    Encoded,
)
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.verify import verify
from tfds_torch.storage.beton.writer import BetonWriter

TYPES = {"image": 2, "label": 1, "score": 0, "text": 3, "facts": 5, "box": 4, "codes": 6}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and bool(one == other)


def test_a_reader_written_from_the_format_alone_reads_every_field(tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "a.beton")
    types, found = read_plainly((tmp_path / "a.beton").read_bytes())
    assert types == TYPES
    for sample, other in zip(samples, found, strict=True):
        pixels = sample.pop("image")
        assert other.pop("image") == (1, 5, 6, pixels.tobytes())
        assert all(equal(value, other[name]) for name, value in sample.items())


DTYPES = st.sampled_from(["bool", "uint8", "int16", "int64", "float16", "float64", "complex64", "uint32"])
VALUES = {
    "image": hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))),
    "label": st.integers(-(2**63), 2**63 - 1),
    "text": st.binary(max_size=40),
    "facts": st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_is_written_is_read_bytes_and_types(tmp_path: Path, data: st.DataObject) -> None:
    dtype = np.dtype(data.draw(DTYPES))
    shape = data.draw(hnp.array_shapes(max_dims=3, max_side=3))
    num_samples = data.draw(st.integers(0, 6))
    arrays = hnp.arrays(dtype, shape, elements=hnp.from_dtype(dtype, allow_nan=False))
    fields: dict[str, BetonField] = {
        "image": BetonImage("raw"), "label": BetonInt(), "text": BetonBytes(), "facts": BetonJson(),
        "array": BetonArray(dtype, shape),
    }  # fmt: skip
    names = data.draw(st.permutations(list(fields)))
    samples = data.draw(
        st.lists(st.fixed_dictionaries(VALUES | {"array": arrays}), min_size=num_samples, max_size=num_samples)
    )
    order = data.draw(st.permutations(range(num_samples)))
    path = tmp_path / "a.beton"
    with BetonWriter(
        path, {name: fields[name] for name in names}, num_samples, page_size=PAGE, overwrite=True
    ) as writer:
        for number in order:
            writer.add(samples[number], number)
    _, plain = read_plainly(path.read_bytes())
    source = BetonSource(path)
    source.check()
    columns = source.read(np.array(order, np.int64), names)
    for place, number in enumerate(order):
        sample = samples[number]
        assert plain[number]["image"][3] == sample["image"].tobytes()
        assert equal(columns["image"][place], sample["image"])
        assert equal(plain[number]["array"], sample["array"])
        assert equal(columns["array"][place], sample["array"])
        assert int(columns["label"][place]) == plain[number]["label"] == sample["label"]
        assert columns["text"][place] == plain[number]["text"] == sample["text"]
        assert plain[number]["facts"] == sample["facts"]
    assert verify(path).num_samples == num_samples


def test_samples_lie_on_one_page_each_and_pages_where_ffcv_expects_them(tmp_path: Path) -> None:
    path, num_bytes = tmp_path / "a.beton", PAGE // 3 + 1
    with BetonWriter(path, {"text": BetonBytes(), "more": BetonBytes()}, 5, page_size=PAGE) as writer:
        for number in range(5):
            writer.add((bytes([number]) * num_bytes, b"x"))
    source = BetonSource(path)
    source.check()
    pages = [source.reader._sizes.pointers(name, np.arange(5)) // PAGE for name in ("text", "more")]
    assert pages[0].tolist() == pages[1].tolist() == [1, 1, 2, 2, 3]
    assert source.head.manifest is not None
    assert source.head.manifest.at == 4 * PAGE
    assert source.read(np.array([3]), ["text"])["text"] == [bytes([3]) * num_bytes]


def test_a_sample_may_fill_a_page_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "a.beton"
    with BetonWriter(path, {"text": BetonBytes()}, 2, page_size=PAGE) as writer:
        writer.add([b"a"])
        writer.add([b"b" * PAGE])
        with pytest.raises(ConfigError, match=rf"Sample 1 has {PAGE + 1:,} bytes, .* Use page_size={2 * PAGE:,}"):
            BetonWriter(tmp_path / "b.beton", {"text": BetonBytes()}, 2, page_size=PAGE)._pages.add(
                [b"b" * (PAGE + 1)], 1
            )
    assert verify(path).num_pages == 2


def test_the_rest_of_a_page_is_zero_so_that_the_same_samples_give_the_same_file(tmp_path: Path) -> None:
    """A page's memory is used over and over: nothing of an earlier sample, or of the process, stays in the file."""
    for name in ("a", "b"):
        with BetonWriter(tmp_path / f"{name}.beton", {"text": BetonBytes()}, 2, page_size=PAGE) as writer:
            writer.add([b"secret" * (PAGE // 6)])
            writer.add([b"small"])
    content = (tmp_path / "a.beton").read_bytes()
    assert content[2 * PAGE : 3 * PAGE] == b"small".ljust(PAGE, b"\0")
    assert content == (tmp_path / "b.beton").read_bytes()


def test_values_of_no_bytes_have_pointers_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.beton"
    with BetonWriter(path, {"a": BetonBytes(), "b": BetonBytes()}, 3, page_size=PAGE) as writer:
        for _ in range(3):
            writer.add((b"", b""))
    _, samples = read_plainly(path.read_bytes())  # Asserts that no pointer is there twice.
    assert samples == [{"a": b"", "b": b""}] * 3
    assert BetonSource(path).read(np.arange(3), ["a"])["a"] == [b""] * 3


def test_a_file_without_payloads_or_samples_is_written_right(tmp_path: Path) -> None:
    with BetonWriter(tmp_path / "numbers.beton", {"label": BetonInt()}, 3) as writer:
        for number in range(3):
            writer.add((number,))
    assert [sample["label"] for sample in read_plainly((tmp_path / "numbers.beton").read_bytes())[1]] == [0, 1, 2]
    BetonWriter(tmp_path / "empty.beton", FIELDS, 0).close()
    assert read_plainly((tmp_path / "empty.beton").read_bytes()) == (TYPES, [])
    assert (verify(tmp_path / "numbers.beton").num_samples, verify(tmp_path / "empty.beton").num_samples) == (3, 0)
    without_manifest(tmp_path / "numbers.beton")  # The table begins where the samples end, as FFCV's.
    assert BetonSource(tmp_path / "numbers.beton").read(np.arange(3), ["label"])["label"].tolist() == [0, 1, 2]


def test_parts_with_a_sample_twice_or_outside_are_refused(tmp_path: Path) -> None:
    writer = BetonWriter(tmp_path / "a.beton", {"label": BetonInt()}, 2)
    one, two, three = (writer.page_writer() for _ in range(3))
    one.add([1], 1)
    two.add([1], 1)
    writer.include(one.close())
    part = two.close()
    with pytest.raises(ConfigError, match=r"Sample 1 was written twice"):
        writer.include(part)
    three.add([1], 2)
    with pytest.raises(ConfigError, match=r"There is no sample 2: num_samples=2"):
        writer.include(three.close())
    writer.discard()


@pytest.mark.parametrize(
    ("numbers", "error", "message"),
    [
        ([0, 0], ConfigError, "Sample 0 was written already"),
        ([0, 3], ConfigError, "There is no sample 3: num_samples=3, counted from 0"),
        ([-1], ConfigError, "number=-1 must be an integer >= 0"),
        ([2, 0], ExportError, r"1 of 3 samples were not written: 1\. Nothing was changed"),
        ([], ExportError, r"3 of 3 samples were not written: 0, 1, 2\."),
    ],
)
def test_numbers_twice_missing_or_out_of_range_leave_nothing(
    numbers: list[int], error: type[Exception], message: str, tmp_path: Path
) -> None:
    def write() -> None:
        with BetonWriter(tmp_path / "a.beton", {"label": BetonInt()}, 3) as writer:
            for number in numbers:
                writer.add((1,), number)

    with pytest.raises(error, match=message):
        write()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("image", np.zeros((2, 2, 3), np.float32), r"The pixels are float32 \[2, 2, 3\]: give uint8"),
        ("image", np.zeros((2, 2, 4), np.uint8), r"Drop an opacity"),
        ("image", np.zeros((1, 65_536, 3), np.uint8), r"has 1 x 65536 pixels: a side has 1 to 65,535. Resize it"),
        ("image", np.zeros((0, 3, 3), np.uint8), r"has 0 x 3 pixels"),
        ("image", b"no image", "The image cannot be decoded: Its 8 bytes are not a JPEG, PNG"),
        ("image", 7, "int is not an image: give encoded bytes"),
        ("label", 1.5, "1.5 is not an integer. Use BetonFloat"),
        ("label", 2**63, "does not fit into 64 bits. Store it with BetonJson"),
        ("score", "1", "'1' is not one number"),
        ("score", 10**400, "is not one number"),
        ("text", "text", r"str 'text' is not bytes, .* text.encode\(\)"),
        ("text", np.zeros(3, np.int16), r"An array int16 \[3\] is not bytes"),
        ("facts", {1, 2}, "cannot be written as JSON"),
        ("box", np.zeros((2, 2)), r"The array is float64 \[2, 2\], and the field float32 \[2, 2\]: convert it first"),
        ("box", np.zeros((4,), np.float32), r"The array is float32 \[4\]"),
        ("codes", [1, 2, 3], r"The array is int64 \[3\], and the field int16"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_before_anything_is_written(
    name: str, value: Any, message: str, tmp_path: Path
) -> None:
    with BetonWriter(tmp_path / "a.beton", FIELDS, 1, page_size=PAGE) as writer:
        with pytest.raises(ConfigError, match=rf"^Sample 0, field '{name}': .*{message}"):
            writer.add(sample_of(0) | {name: value})
        assert writer._pages.num_pages == 0
        writer.add(sample_of(0))  # It goes on.
    assert verify(tmp_path / "a.beton").num_samples == 1


def test_arrays_that_are_not_contiguous_are_written_in_order(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.int32).reshape(4, 6)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    with BetonWriter(tmp_path / "a.beton", {"a": BetonArray("int32", (3, 2)), "i": BetonImage("raw")}, 1) as writer:
        writer.add((values[:2, ::2].T, pixels[::2, ::-1]))
    columns = BetonSource(tmp_path / "a.beton").read(np.zeros(1, np.int64), ["a", "i"])
    assert (columns["a"][0] == values[:2, ::2].T).all()
    assert (columns["i"][0] == pixels[::2, ::-1]).all()


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"a": 1}, r"has no \['b'\], and the file the fields \['a', 'b'\]"),
        ({"a": 1, "b": 2, "c": 3}, r"has also \['c'\]"),
        ((1,), "The sample is 1 values, and the file has 2 fields"),
        ((1, 2, 3), "The sample is 3 values"),
        ("ab", "The sample is str"),
        (7, "The sample is int"),
    ],
)
def test_a_sample_with_another_number_of_fields_is_refused(sample: Any, message: str, tmp_path: Path) -> None:
    writer = BetonWriter(tmp_path / "a.beton", {"a": BetonInt(), "b": BetonInt()}, 1)
    with pytest.raises(ConfigError, match=message):
        writer.add(sample)
    writer.discard()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a" * 17, "bild_ä", "", "a\0b", "a\nb"])
def test_names_that_ffcv_would_cut_or_refuse_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has room for 16 printable ASCII characters"):
        BetonWriter(tmp_path / "a.beton", {name: BetonInt()}, 1)
    assert os.listdir(tmp_path) == []


class TooManyArguments(BetonCustom):
    row_type = np.dtype("<u8")

    def binary(self) -> bytes:
        return b"x" * 1025

    def encode(self, value: Any, number: int) -> Encoded:
        return Encoded((1,), b"")

    def decode(self, rows: Any, payloads: Any) -> Any:
        return rows


class PayloadWithoutPointer(TooManyArguments):
    def binary(self) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fields": {}}, "There are 0 fields: a file has 1 to 65,535"),
        ({"fields": {"a": BetonInt}}, "is not a field such as"),
        ({"fields": {"a": 7}}, "7 is not a field such as"),
        ({"fields": {"a": TooManyArguments()}}, "its arguments take 1025 bytes"),
        ({"num_samples": -1}, "num_samples=-1 must be an integer >= 0"),
        ({"page_size": 2**21 - 1}, "must be a power of two, from 2,097,152"),
        ({"page_size": 2**20}, "must be a power of two"),
        ({"page_size": 2**32}, "must be a power of two"),
        ({"class_names": {"labl": ["x"]}}, "class_names names 'labl', which is not a field. Did you mean 'label'"),
        ({"path": "no/such/a.beton"}, "The folder of .* does not exist: make it first"),
        ({"path": "."}, "is a folder: name the file in it"),
        ({"path": "a\0.beton"}, "is not a path of a file: embedded null"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    defaults: dict[str, Any] = {"fields": {"label": BetonInt()}, "num_samples": 1}
    values = defaults | arguments
    with pytest.raises(ConfigError, match=message):
        BetonWriter(tmp_path / values.pop("path", "a.beton"), values.pop("fields"), values.pop("num_samples"), **values)
    assert os.listdir(tmp_path) == []


def test_what_is_not_a_file_is_never_replaced(tmp_path: Path) -> None:
    """As root, a file could be put in the place of a device."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, message in (("pipe", "which stays as it is"), ("link", "which stays"), ("loop", "Symlink loop")):
        with pytest.raises(ConfigError, match=message):
            BetonWriter(tmp_path / name, {"label": BetonInt()}, 1, overwrite=True)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["link", "loop", "pipe"]


def test_a_payload_without_a_pointer_is_refused(tmp_path: Path) -> None:
    writer = BetonWriter(tmp_path / "a.beton", {"own": PayloadWithoutPointer()}, 1)
    with pytest.raises(ConfigError, match="has pointer_at=None and returned a payload"):
        writer.add((1,))
    writer.discard()


def test_ids_for_some_samples_only_are_refused(tmp_path: Path) -> None:
    writer = BetonWriter(tmp_path / "a.beton", {"label": BetonInt()}, 2)
    writer.add((0,), id="first")
    writer.add((1,))
    with pytest.raises(ExportError, match="sample 1 has no id, and 1 others have one"):
        writer.close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(ConfigError, match="id=7 must be a text"):
        BetonWriter(tmp_path / "b.beton", {"label": BetonInt()}, 2).add((0,), id=7)  # type: ignore[arg-type]


def test_a_file_that_is_there_stays_unless_it_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.beton"
    path.write_bytes(b"old")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"is there already: use overwrite=True"):
        write_samples(path)
    with pytest.raises(ZeroDivisionError), BetonWriter(path, {"label": BetonInt()}, 1, overwrite=True) as writer:
        writer.add((1 // 0,))
    assert path.read_bytes() == b"old"
    write_samples(path, overwrite=True)
    assert verify(path).num_samples == 7
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert left_behind(tmp_path) == []


def test_a_writer_that_is_forgotten_leaves_nothing(tmp_path: Path) -> None:
    writer = BetonWriter(tmp_path / "a.beton", {"label": BetonInt()}, 1)
    assert len(left_behind(tmp_path)) == 1
    del writer
    assert os.listdir(tmp_path) == []


def test_a_writer_is_closed_once_and_then_takes_nothing(tmp_path: Path) -> None:
    with BetonWriter(tmp_path / "a.beton", {"label": BetonInt()}, 1) as writer:
        writer.add((0,))
        assert writer.close().num_samples == 1
        for act in (writer.close, lambda: writer.add((0,))):
            with pytest.raises(ConfigError, match=r"a\.beton was closed, or gave up: make another one"):
                act()
    assert verify(tmp_path / "a.beton").num_samples == 1
    writer.discard()
    assert os.listdir(tmp_path) == ["a.beton"]


def test_after_a_failure_nothing_more_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> int:
        raise OSError(5, "Input/output error")

    writer = BetonWriter(tmp_path / "a.beton", {"t": BetonBytes()}, 3)
    writer.add((b"x" * 2**23,))
    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(ExportError, match="Input/output error"):
        writer.add((b"y",))
    with pytest.raises(ConfigError, match="gave up"):
        writer.add((b"z",))
    assert os.listdir(tmp_path) == []
