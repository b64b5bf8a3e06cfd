"""Features of every structured kind, examples of them, and what tensorflow decodes. For fresh processes."""

import io
import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

NUM = 4


def encode_png_16(pixels: np.ndarray) -> bytes:
    """Returns a PNG file of uint16 [h, w, 1 to 4]."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def encode(pixels: np.ndarray, file_format: str = "PNG", **options: Any) -> bytes:
    """Returns an image file of uint8 [h, w, C]."""
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, file_format, **options)
    return file.getvalue()


def list_features() -> Any:
    """Returns the features."""
    f = tfds.features
    frame = f.Image(shape=(None, None, 3))
    return f.FeaturesDict(
        {
            "a/slash": f.Sequence(np.int64),
            "audio": f.Audio(sample_rate=8000),
            "audio_stereo": f.Audio(shape=(None, 2), dtype=np.float32),
            "box": f.BBoxFeature(),
            "bytes": f.Tensor(shape=(2, 3), dtype=np.uint16, encoding="bytes"),
            "clips": f.Sequence(f.Video(shape=(None, 4, 5, 3))),
            "colours_16": f.Image(shape=(None, None, 3), dtype=np.uint16, encoding_format="png"),
            "deep": f.Sequence(f.Sequence(f.Sequence(np.int32))),
            "depth": f.Image(shape=(None, None, 1), dtype=np.float32, encoding_format="png"),
            "frames": f.Sequence(frame),
            "frames_3": f.Sequence(f.Image(shape=(4, 5, 1), encoding_format="png"), length=3),
            "grey_16": f.Image(shape=(None, None, 1), dtype=np.uint16, encoding_format="png"),
            "halves": f.Sequence(np.float16),
            "labels_map": f.LabeledImage(labels=["void", "cat"], shape=(None, None, 1), encoding_format="png"),
            "low_16": f.Image(shape=(None, None, 3), dtype=np.uint16, encoding_format="png"),
            "mask": f.Image(shape=(None, None, 1), encoding_format="png"),
            "nested": {"inner": {"count": np.int16, "note": f.Text(), "tags": f.Sequence(f.Text())}, "mask": frame},
            "objects": f.Sequence(
                {
                    "box": f.BBoxFeature(),
                    "cells": f.Sequence({"x": np.float64, "is_on": np.bool_}),
                    "crop": f.Image(shape=(2, 3, 3), encoding_format="png"),
                    "label": f.ClassLabel(num_classes=9),
                    "note": f.Text(),
                    "zipped": f.Tensor(shape=(2,), dtype=np.int32, encoding="zlib"),
                }
            ),
            "one_free": f.Tensor(shape=(None, 3), dtype=np.int32),
            "opaque": f.Image(shape=(None, None, 4), encoding_format="png"),
            "pair": f.Sequence(np.float32, length=2),
            "strings": f.Tensor(shape=(None,), dtype=np.str_),
            "strings_2": f.Tensor(shape=(2,), dtype=np.str_),
            "translation": f.Translation(languages=["de", "en"]),
            "translations": f.TranslationVariableLanguages(languages=["de", "en"]),
            "unsigned": f.Sequence(np.uint64),
            "video": f.Video(shape=(None, 4, 5, 3)),
            "video_16": f.Video(shape=(None, 4, 5, 1), dtype=np.uint16),
            "words": f.Sequence(f.Sequence(f.Text())),
            "zipped": f.Tensor(shape=(None, None), dtype=np.int32, encoding="zlib"),
            "zipped_flags": f.Tensor(shape=(None,), dtype=np.bool_, encoding="zlib"),
            "zipped_rows": f.Sequence(f.Tensor(shape=(None, None), dtype=np.uint8, encoding="zlib"), length=2),
        }
    )


def make_example(number: int) -> dict[str, Any]:
    """Returns an example to encode: of number 0 all sequences are empty."""
    rng = np.random.default_rng(number)
    count = number  # Of elements.

    def draw(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
        return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)

    def image(channels: int) -> bytes:
        return encode(draw(3 + number, 5, channels))

    objects = [
        {
            "box": tfds.features.BBox(0.1, 0.2, 0.3 + i / 10, 0.5),
            "cells": [{"x": j / 3, "is_on": j % 2 == 0} for j in range(i)],
            "crop": draw(2, 3, 3),
            "label": i,
            "note": f"number {i}, grün",
            "zipped": draw(2, dtype=np.int32),
        }
        for i in range(count)
    ]
    return {
        "a/slash": list(range(count)),
        "audio": draw(5 + number, dtype=np.int64),
        "audio_stereo": draw(5 + number, 2).astype(np.float32),
        "box": tfds.features.BBox(0.1, 0.2, 0.3, 0.5),
        "bytes": draw(2, 3, dtype=np.uint16),
        "clips": [[draw(4, 5, 3) for _ in range(i)] for i in range(count)],
        "colours_16": io.BytesIO(encode_png_16(draw(3, 4 + number, 3, dtype=np.uint16))),
        "deep": [[list(range(j)) for j in range(i)] for i in range(count)],
        "depth": rng.normal(size=(3, 4 + number, 1)).astype(np.float32),
        "frames": [image(3) for _ in range(count)],
        "frames_3": [draw(4, 5, 1) for _ in range(3)],
        "grey_16": io.BytesIO(encode_png_16(draw(3, 4 + number, 1, dtype=np.uint16))),
        "halves": rng.normal(size=count).astype(np.float16),
        "labels_map": draw(3, 4 + number, 1) % 2,
        "low_16": image(3),
        "mask": image(1),
        "nested": {
            "inner": {"count": number, "note": f"note {number}", "tags": [f"tag {i}" for i in range(count)]},
            "mask": image(1),
        },
        "objects": objects,
        "one_free": draw(count, 3, dtype=np.int32),
        "opaque": image(3 + number % 2),
        "pair": [1.5, float(number)],
        "strings": [f"string {i}" for i in range(count)],
        "strings_2": ["a", f"b {number}"],
        "translation": {"de": "zwei", "en": "two"},
        "translations": {"de": "drei", "en": ["three"] * (number + 1)},
        "unsigned": [2**64 - 1 - i for i in range(count)],
        "video": [draw(4, 5, 3) for _ in range(count)],
        "video_16": [draw(4, 5, 1, dtype=np.uint16) for _ in range(count)],
        "words": [[f"word {j}" for j in range(i)] for i in range(count)],
        "zipped": draw(2 + number, 3 * count, dtype=np.int32),
        "zipped_flags": rng.random(count) < 0.5,
        "zipped_rows": [draw(2, count), draw(2, count)],
    }


def write_and_decode(folder: str) -> tuple[list[bytes], list[Any]]:
    """Writes a features.json; returns encoded examples, and what tensorflow makes of them in a graph."""
    import tensorflow as tf

    features = list_features()
    features.save_config(folder)
    records = [features.serialize_example(make_example(number)) for number in range(NUM)]
    decoded = tf.data.Dataset.from_tensor_slices(records).map(features.deserialize_example)
    return records, [to_numpy(example) for example in decoded]


def write_song(folder: str, song: bytes) -> bytes:
    """Writes a features.json with stereo FLAC files; returns the record of an example with this file."""
    features = tfds.features.FeaturesDict(
        {"song": tfds.features.Audio(file_format="flac", shape=(None, 2), dtype=np.int16, lazy_decode=True)}
    )
    features.save_config(folder)
    record: bytes = features.serialize_example({"song": io.BytesIO(song)})
    return record


def decode_datasets(data_dir: str, names: Sequence[str]) -> dict[str, list[Any]]:
    """Returns name -> the examples of the split `train` as tensorflow decodes them, in the order of the files."""
    read_config = tfds.ReadConfig(interleave_cycle_length=1)
    datasets = {name: tfds.load(name, data_dir=data_dir, split="train", read_config=read_config) for name in names}
    return {name: [to_numpy(example) for example in dataset] for name, dataset in datasets.items()}


def to_numpy(value: Any) -> Any:
    """Returns tensors as arrays and scalars, ragged ones as lists of arrays, nested datasets as lists."""
    if isinstance(value, dict):
        return {key: to_numpy(inner) for key, inner in sorted(value.items())}
    if hasattr(value, "nested_row_splits"):
        rows: Any = value.flat_values.numpy()
        for splits in reversed(value.nested_row_splits):
            rows = [rows[start:stop] for start, stop in pairwise(splits.numpy().tolist())]
        return rows
    if hasattr(value, "element_spec"):
        return [to_numpy(step) for step in value]
    return value.numpy()


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Returns what differs between two values: kinds, types, shapes or contents."""
    if type(expected) is not type(found):
        return [f"{where}: {type(expected)} became {type(found)}"]
    if isinstance(expected, dict):
        if list(expected) != list(found):
            return [f"{where}: {list(expected)} became {list(found)}"]
        return [line for key in expected for line in differences(expected[key], found[key], f"{where}/{key}")]
    if isinstance(expected, list):
        if len(expected) != len(found):
            return [f"{where}: {len(expected)} values became {len(found)}"]
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for i, (one, other) in pairs for line in differences(one, other, f"{where}[{i}]")]
    if isinstance(expected, np.ndarray):
        if (expected.dtype, expected.shape) != (found.dtype, found.shape):
            return [f"{where}: {expected.dtype} {expected.shape} became {found.dtype} {found.shape}"]
        return [] if np.array_equal(expected, found) else [f"{where}: other values"]
    return [] if expected == found else [f"{where}: {expected!r} became {found!r}"]
