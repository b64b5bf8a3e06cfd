"""The plain cases: datasets of a few committed pictures, and parsers of them.

Only public names of the package are used, and files are written without it, but for `.beton` files.
"""

import io
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import change_format, write_shard

from tfds_torch import (
    ParserBeton,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    ReadOptions,
    Windows,
    export_dataset,
)

CLASSES = ("boat", "flower", "roof")
PICTURES = sorted((Path(__file__).parent / "pictures").iterdir())
"""Baseline JPEG and PNG, colour and grey, encoded once so that no encoder's version matters; smaller versions of the
demo's photographs, whose credits are in `tfds_torch/demo/data/CREDITS.md`."""
NUM_EXAMPLES = 23
FILES = [PICTURES[number % len(PICTURES)] for number in range(NUM_EXAMPLES)]
"""Of each example."""
ROWS: list[dict[str, Any]] = [
    {"image": file.read_bytes(), "label": number * number % 7 % len(CLASSES), "caption": f"grün, number {number}"}
    for number, file in enumerate(FILES)
]
"""The examples, which are a dataset of a user's own as they are."""
SHARDS = (range(9), range(9, NUM_EXAMPLES))
EPISODES = ((range(4), range(4, 5)), (range(5, 12), range(0), range(12, NUM_EXAMPLES)))
"""The steps of the episodes in each shard."""


@dataclass(frozen=True)
class Data:
    """Where the datasets are: all of them in a folder, and TFDS's once more in a bucket."""

    folder: Path
    bucket: str = ""


# Files


def write_data(folder: Path) -> Data:
    """Writes what all cases read."""
    data, f = Data(folder), tfds.features
    image, label = f.Image(shape=(None, None, 3)), f.ClassLabel(names=CLASSES)
    features = {"image": image, "label": label, "caption": f.Text()}
    pictures = [[encode_example([ROWS[number]]) for number in shard] for shard in SHARDS]
    write_dataset(folder / "tfds" / "pictures", features, pictures)
    write_dataset(folder / "tfds" / "pictures_in_array_record", features, pictures, "array_record")
    steps = {"view": image, "kind": label, "caption": f.Text(), "action": f.Tensor(shape=(2,), dtype=np.float32)}
    episodes = [[encode_example(map(step_of, numbers), "steps/") for numbers in shard] for shard in EPISODES]
    write_dataset(folder / "tfds" / "episodes", {"steps": f.Dataset(steps)}, episodes)
    write_tars(folder / "tars")
    for number, file in enumerate(FILES):
        path = folder / "images" / "train" / CLASSES[ROWS[number]["label"]] / f"{number:02}{file.suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ROWS[number]["image"])
    for name, stored in (("files", "passthrough"), ("pixels", "raw")):
        fields = {"image": stored}
        export_dataset(of_tfds(data), folder / f"{name}.beton", format="beton", fields=fields, num_workers=1)
    return data


def step_of(number: int) -> dict[str, Any]:
    image, label, caption = ROWS[number].values()
    return {"view": image, "kind": label, "caption": caption, "action": [number / 4, float(-number)]}


def encode_example(rows: Iterable[Mapping[str, Any]], prefix: str = "") -> bytes:
    """Returns an encoded `tf.train.Example`: of one row, or of the steps of an episode."""
    example = tf_example_pb2.Example()
    for row in rows:
        for name, value in row.items():
            feature = example.features.feature[prefix + name]
            if isinstance(value, list):
                feature.float_list.value.extend(value)
            elif isinstance(value, int):
                feature.int64_list.value.append(value)
            else:
                feature.bytes_list.value.append(value.encode() if isinstance(value, str) else value)
    return bytes(example.SerializeToString())


def write_dataset(
    folder: Path, features: Mapping[str, Any], shards: Sequence[Sequence[bytes]], file_format: str = "tfrecord"
) -> None:
    """Writes a split `train` and its metadata, as TFDS has them."""
    directory = folder / "1.0.0"
    directory.mkdir(parents=True)
    for number, records in enumerate(shards):
        path = directory / f"{folder.name}-train.{file_format}-{number:05}-of-{len(shards):05}"
        if file_format == "tfrecord":
            write_shard(path, records)
            continue
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory),
        features=tfds.features.FeaturesDict(features),
        split_infos=[tfds.core.SplitInfo(name="train", shard_lengths=list(map(len, shards)), num_bytes=1)],
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        check_data=False,
    )
    if file_format != "tfrecord":
        change_format(directory, file_format)


def write_tars(folder: Path) -> None:
    folder.mkdir()
    for shard, numbers in enumerate(SHARDS):
        with tarfile.open(folder / f"pictures-{shard}.tar", "w") as tar:
            for number in numbers:
                image, label, caption = ROWS[number].values()
                contents = {FILES[number].suffix: image, ".cls": b"%d" % label, ".txt": caption.encode()}
                for extension, content in contents.items():
                    info = tarfile.TarInfo(f"part/{number:03}{extension}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


# Parsers


def of_tfds(data: Data, name: str = "pictures", **arguments: Any) -> ParserTfds:
    return ParserTfds(data.folder / "tfds", name, **arguments)


def of_tars(data: Data, **arguments: Any) -> ParserWebDataset:
    fields = {"image": "jpg;png", "label": "cls", "caption": "txt"}
    return ParserWebDataset(f"{data.folder}/tars/pictures-{{0..1}}.tar", fields, CLASSES, **arguments)


def of_rows(data: Data, **arguments: Any) -> ParserMapStyle:
    return ParserMapStyle(ROWS, class_names=CLASSES, **arguments)


def of_bucket(data: Data, **arguments: Any) -> ParserTfds:
    return ParserTfds(data.bucket, "pictures", read=ReadOptions(block_records=4, shuffle_buffer=8), **arguments)


def of_windows(data: Data, **arguments: Any) -> ParserTfds:
    windows = Windows(offsets={"action": (-1, 0, 2)}, texts=["caption"])
    return of_tfds(data, "episodes", windows=windows, fields={"image": "view", "label": "kind"}, **arguments)


def of_mixture(data: Data, *, is_training: bool, **arguments: Any) -> ParserMixture:
    members = {"records": of_tfds(data), "rows": of_rows(data), "tars": of_tars(data)}
    weights = {"records": 0.5, "rows": 0.2, "tars": 0.3} if is_training else None
    return ParserMixture(members, weights, is_training=is_training, **arguments)


CASES: dict[str, Callable[..., Any]] = {
    "tfrecord": of_tfds,
    "array_record": lambda data, **more: of_tfds(data, "pictures_in_array_record", **more),
    "beton": lambda data, **more: ParserBeton(data.folder / "files.beton", **more),
    "beton_of_pixels": lambda data, **more: ParserBeton(data.folder / "pixels.beton", **more),
    "tars": of_tars,
    "windows": of_windows,
    "image_folder": lambda data, **more: ParserTfds(data.folder / "images", "image_folder", **more),
    "own_dataset": of_rows,
    "bucket": of_bucket,
    "mixture": of_mixture,
    "subset": lambda data, **more: of_tfds(data, **more).subset(range(NUM_EXAMPLES - 1, 0, -2)),
    "balanced": lambda data, **more: of_tfds(data, **more).balanced(),
    "weighted": lambda data, **more: of_tfds(data, **more).weighted([n % 4 for n in range(NUM_EXAMPLES)]),
}
FOR_TRAINING_ONLY = ("balanced", "weighted")
FIELDS = {
    "image_folder": (),
    "mixture": ("caption", "member"),
    "windows": ("caption", "action", "action_pad", "episode", "step"),
}
"""Case -> the fields beside image and label; of all others it is `caption`."""
