"""Small TFDS datasets, built by TFDS itself without a network, and what TFDS says is in them.

tensorflow runs in fresh processes only, never in pytest's: later tests fork from it and look at its `sys.modules`.
"""

import copy
import io
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import tensorflow_datasets as tfds
import without_tensorflow
from PIL import Image
from run_folder import built_once
from tensorflow_datasets.proto import tf_example_pb2
from zygote import Answering, tensorflow_zygote

from tfds_torch.engines.batch import Batch
from tfds_torch.engines.options import ReadOptions
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World
from tfds_torch.storage.tfrecord import framing
from tfds_torch.storage.tfrecord.framing import read_records

NUM_TRAIN, NUM_TEST = 211, 37
TRAIN_SHARDS = (40, 3, 61, 17, 50, 29, 11)
GAP_TRAIN_SHARDS = (0, 70, 0, 0, 100, 41, 0)
GAP_TEST_SHARDS = (0, 0, 30, 7)
CLASSES = ["circle", "square", "triangle", "star", "cross"]
BUILD_LOG = "TFDS_TORCH_TEST_BUILD_LOG"


# The datasets


def draw_image(number: int, channels: int = 3) -> np.ndarray:
    """Returns smooth uint8 [H, W, channels] whose size and content depend on `number`."""
    height, width = 8 + number % 23, 9 + number * 7 % 31
    y, x, c = np.mgrid[:height, :width, :channels]
    return ((x * (3 + number % 5) + y * 5 + c * 60 + number * 11) % 256).astype(np.uint8)


def encode(pixels: np.ndarray, file_format: str) -> io.BytesIO:
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, file_format, quality=90)
    file.seek(0)
    return file


class Shapes(tfds.core.GeneratorBasedBuilder):
    """One feature of every kind."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        f = tfds.features
        box = {"bbox": f.BBoxFeature(), "label": f.ClassLabel(names=CLASSES), "is_crowd": np.bool_}
        features = {
            "image": f.Image(shape=(None, None, 3), encoding_format="jpeg"),
            "label": f.ClassLabel(names=CLASSES),
            "file_name": f.Text(),
            "image/filename": f.Text(),
            "objects": f.Sequence(box),
            "nested": {"count": np.int64, "inner": {"weight": np.float32, "tags": f.Sequence(f.Text())}},
            "words": f.Sequence(f.Sequence(f.Text())),
            "caption": f.Text(),
            "weight": np.float32,
            "precise": np.float64,
            "flag": np.bool_,
            "small": np.uint8,
            "vector": f.Tensor(shape=(3,), dtype=np.float32),
            "matrix": f.Tensor(shape=(None, 2), dtype=np.int32),
            "zipped": f.Tensor(shape=(4,), dtype=np.int32, encoding="zlib"),
            "sizes": f.Sequence(np.int64),
            "pair": f.Sequence(np.int32, length=2),
            "mask": f.Image(shape=(None, None, 1), encoding_format="png"),
            "depth": f.Image(shape=(None, None, 1), dtype=np.uint16, encoding_format="png"),
            "frames": f.Sequence(f.Image(shape=(None, None, 3), encoding_format="png")),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
        return {"train": self._generate_examples(0, NUM_TRAIN), "test": self._generate_examples(NUM_TRAIN, NUM_TEST)}

    def _generate_examples(self, start: int, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for i in range(start, start + count):
            pixels = draw_image(i)
            box = tfds.features.BBox(ymin=0.1, xmin=0.2, ymax=0.5 + i % 4 / 10, xmax=0.75)
            yield (
                i,
                {
                    "image": encode(pixels, "JPEG"),
                    "label": i % 5,
                    "file_name": f"folder_{i % 3}/shape_{i:04}.jpg",
                    "image/filename": f"literal_{i}.jpg",
                    "objects": [{"bbox": box, "label": (i + j) % 5, "is_crowd": bool(j % 2)} for j in range(i % 4)],
                    "nested": {"count": i * 10**10, "inner": {"weight": i / 7, "tags": ["t"] * (i % 3)}},
                    "words": [[f"w{i}", "b" * j] for j in range(i % 3)] + [[]] * (i % 2),
                    "caption": f"a {CLASSES[i % 5]}, number {i}, grün",
                    "weight": i / 3,
                    "precise": i / 3,
                    "flag": i % 2 == 0,
                    "small": i % 256,
                    "vector": np.array([i, -i, 0.5], np.float32),
                    "matrix": np.arange(2 * (i % 4), dtype=np.int32).reshape(-1, 2) - i,
                    "zipped": np.array([i, 1, -2, 3], np.int32),
                    "sizes": list(range(i % 5)),
                    "pair": [i, i + 1],
                    "mask": draw_image(i, 1),
                    "depth": draw_image(i, 1).astype(np.uint16) * 257,
                    "frames": [np.roll(draw_image(i), j) for j in range(i % 3)],
                },
            )


class ChannelsConfig(tfds.core.BuilderConfig):
    def __init__(self, name: str, stored: int, declared: int, file_format: str) -> None:
        super().__init__(name=name, version="2.1.0", description=name)
        self.stored, self.declared, self.file_format = stored, declared, file_format


class Channels(tfds.core.GeneratorBasedBuilder):
    """Images of all numbers of channels; 10 of each kind, in the shards that TFDS makes."""

    BUILDER_CONFIGS = [  # noqa: RUF012 (TFDS's way)
        ChannelsConfig("png_l", 1, 1, "png"),
        ChannelsConfig("png_rgb", 3, 3, "png"),
        ChannelsConfig("png_rgba", 4, 4, "png"),
        ChannelsConfig("jpeg_l", 1, 1, "jpeg"),
        ChannelsConfig("jpeg_l_as_rgb", 1, 3, "jpeg"),
        ChannelsConfig("jpeg_rgb", 3, 3, "jpeg"),
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        config = self.builder_config
        image = tfds.features.Image(shape=(None, None, config.declared), encoding_format=config.file_format)
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict({"image": image, "label": tfds.features.ClassLabel(num_classes=3)}),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for i in range(10):
            yield (
                i,
                {
                    "image": encode(draw_image(i, self.builder_config.stored), self.builder_config.file_format),
                    "label": i % 3,
                },
            )


class Sentences(tfds.core.GeneratorBasedBuilder):
    """A dataset without image and label."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text(), "score": np.float32})
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for i in range(23):
            yield i, {"text": f"sentence {i}", "score": i / 2}


class Tiny(tfds.core.GeneratorBasedBuilder):
    """Three examples, named by `id`, with a string target."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
                    "label": tfds.features.Text(),
                    "id": np.int64,
                }
            ),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for i in range(3):
            yield i, {"image": encode(draw_image(i), "JPEG"), "label": CLASSES[i], "id": 1000 + i}


class Handmade(tfds.core.GeneratorBasedBuilder):
    """Is prepared by `download=True` alone, and writes down every time it is generated."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text(), "label": np.int64})
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        with open(os.environ[BUILD_LOG], "a") as log:
            log.write(f"{os.getpid()}\n")
        for i in range(19):
            yield i, {"text": str(i), "label": i}


@dataclass(frozen=True)
class Datasets:
    """Roots (TFDS data directories) of prepared datasets. They are shared: copy before damaging anything.

    Attributes:
        root: `shapes`, `channels/*`, `sentences` in two versions, `tiny`.
        gaps: `shapes` with empty shards.
        array_record: `shapes` and `tiny` as ArrayRecord files.
    """

    root: Path
    gaps: Path
    array_record: Path

    @property
    def shapes(self) -> Path:
        """The version directory of `shapes`."""
        return self.root / "shapes" / "1.0.0"


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Datasets:
    """The datasets, built once per run, however many processes and conftests offer this fixture."""
    prepared, sources = os.environ.get(without_tensorflow.DATASETS), [Path(__file__), Path(framing.__file__)]
    base = Path(prepared) if prepared else built_once(tmp_path_factory, "tfds", _build_all, sources=sources)
    return Datasets(base / "tfds", base / "tfds_gaps", base / "tfds_array_record")


@pytest.fixture(scope="module", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder apart from the user's, for this process and those that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(path))
        yield path


def _build_all(base: Path) -> None:
    root, gaps, array_record = base / "tfds", base / "tfds_gaps", base / "tfds_array_record"
    tensorflow_zygote().call(_build, str(root))
    reshard(root / "shapes" / "1.0.0", "train", TRAIN_SHARDS)
    shutil.copytree(root / "sentences" / "1.0.0", root / "sentences" / "0.9.0")
    with edited_info(root / "sentences" / "0.9.0") as info:
        info["version"] = "0.9.0"
    shutil.copytree(root / "shapes", gaps / "shapes")
    reshard(gaps / "shapes" / "1.0.0", "train", GAP_TRAIN_SHARDS)
    reshard(gaps / "shapes" / "1.0.0", "test", GAP_TEST_SHARDS)
    for name in ("shapes", "tiny"):
        shutil.copytree(root / name, array_record / name)
        tensorflow_zygote().call(_convert_to_array_record, array_record / name / "1.0.0")


def _build(root: str) -> None:
    def prepare(builder: tfds.core.DatasetBuilder, num_shards: int) -> None:
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=num_shards))

    tfds.disable_progress_bar()
    prepare(Shapes(data_dir=root), 1)
    for config in Channels.BUILDER_CONFIGS:
        prepare(Channels(config=config.name, data_dir=root), 3)
    prepare(Sentences(data_dir=root), 2)
    prepare(Tiny(data_dir=root), 1)


def _convert_to_array_record(directory: Path) -> None:
    """Writes what TFDS itself would have written in the other format."""
    from array_record.python import array_record_module

    for file in directory.glob("*.tfrecord*"):
        writer = array_record_module.ArrayRecordWriter(
            str(file.with_name(file.name.replace("tfrecord", "array_record"))), "group_size:1"
        )
        for record in read_records(file):
            writer.write(record)
        writer.close()
        file.unlink()
    change_format(directory, "array_record")


# Files


def change_format(directory: Path, file_format: str) -> None:
    """Lets `dataset_info.json` say that the shards of a TFRecord dataset have another format."""
    with edited_info(directory) as info:
        info["fileFormat"] = file_format
        for split in info["splits"]:
            split["filepathTemplate"] = split["filepathTemplate"].replace("tfrecord", file_format)


class edited_info:  # noqa: N801 (used like a function)
    """`with edited_info(version_directory) as info:` changes `dataset_info.json`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "dataset_info.json"

    def __enter__(self) -> dict[str, Any]:
        self.info = json.loads(self.path.read_text())
        return self.info

    def __exit__(self, *_: object) -> None:
        self.path.write_text(json.dumps(self.info))


def shard_files(directory: Path, split: str) -> list[Path]:
    """Returns the shards of a split, in order."""
    return sorted(directory.glob(f"*-{split}.tfrecord-*"))


def reshard(directory: Path, split: str, lengths: Sequence[int]) -> None:
    """Deals the records of a split to shards of other lengths, 0 allowed."""
    files = shard_files(directory, split)
    records = [record for file in files for record in read_records(file)]
    assert sum(lengths) == len(records)
    prefix = files[0].name.rpartition("-")[0].rpartition("-of")[0].rpartition("-")[0]
    for file in files:
        file.unlink()
    rest = iter(records)
    for number, length in enumerate(lengths):
        write_shard(directory / f"{prefix}-{number:05}-of-{len(lengths):05}", [next(rest) for _ in range(length)])
    with edited_info(directory) as info:
        (entry,) = (entry for entry in info["splits"] if entry["name"] == split)
        entry["shardLengths"] = [str(length) for length in lengths]


def write_shard(path: Path, records: Sequence[bytes]) -> None:
    path.write_bytes(b"".join(map(frame_record, records)))


def frame_record(data: bytes) -> bytes:
    """Returns a TFRecord record."""
    header = struct.pack("<Q", len(data))
    return header + _masked(header) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def record_offsets(path: Path) -> list[int]:
    """Returns where each record begins, and the end of the file."""
    offsets = [0]
    for record in read_records(path):
        offsets.append(offsets[-1] + 16 + len(record))
    return offsets


def replace_bytes_feature(record: bytes, key: str, change: Callable[[bytes], bytes]) -> bytes:
    """Returns an encoded example with another value of a bytes feature."""
    example = tf_example_pb2.Example.FromString(record)
    values = example.features.feature[key].bytes_list.value
    values[0] = change(values[0])
    return example.SerializeToString()


# What TFDS says

SPLITS = (
    ("root", "train"),
    ("root", "test"),
    ("root", "train+test"),
    ("root", "train[:50%]+test[:50%]"),
    ("root", "train[10:37]"),
    ("root", "train[5shard:7shard]"),
    ("gaps", "train"),
    ("gaps", "train+test"),
)


@dataclass(frozen=True)
class Ledger:
    """What TFDS reads from a split of `shapes`, in the order of the files."""

    ids: list[str]
    labels: list[int]
    file_names: list[str]


@pytest.fixture(scope="session")
def ledgers(datasets: Datasets) -> dict[tuple[str, str], Ledger]:
    """(root, split) -> what TFDS's own reader says is there."""
    return _ledgers_of(datasets)


@cache
def _ledgers_of(datasets: Datasets) -> dict[tuple[str, str], Ledger]:
    ledgers = call_reader(_read_ledgers, [(str(getattr(datasets, root)), split) for root, split in SPLITS])
    return dict(zip(SPLITS, ledgers, strict=True))


def _read_ledgers(reads: Sequence[tuple[str, str]]) -> list[Ledger]:
    ledgers = []
    for root, split in reads:
        examples = list(iterate_tfds(root, "shapes", split, tfds.decode.PartialDecoding(["label", "file_name"])))
        ids, names = ([example[key].decode() for example in examples] for key in ("tfds_id", "file_name"))
        ledgers.append(Ledger(ids, [int(example["label"]) for example in examples], names))
    return ledgers


def iterate_tfds(root: str, name: str, split: str, decoders: Any = None) -> Iterator[dict[str, Any]]:
    """Yields TFDS's own examples in the order of the files, with their `tfds_id`. Loads tensorflow."""
    config = tfds.ReadConfig(add_tfds_id=True, interleave_cycle_length=1, try_autocache=False)
    builder = tfds.builder(name, data_dir=root)
    dataset = builder.as_dataset(split=split, read_config=config, shuffle_files=False, decoders=decoders)
    return map(to_plain, tfds.as_numpy(dataset))


def to_plain(value: Any) -> Any:
    """Returns a value with ragged tensors as nested lists, and texts as bytes."""
    if isinstance(value, dict):
        return {key: to_plain(inner) for key, inner in value.items()}
    if hasattr(value, "to_list"):
        return value.to_list()
    return value


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    """Asserts that a value of ours equals TFDS's, in type, shape and every bit; our texts are `str`."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}/{key}")
    elif isinstance(ours, str):
        assert ours == theirs.decode(), where
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for i, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(our, their, f"{where}[{i}]")
    else:
        our, their = np.asarray(ours), np.asarray(theirs)
        assert our.shape == their.shape, where
        assert our.dtype.kind == their.dtype.kind or {our.dtype.kind, their.dtype.kind} <= set("OS"), where
        assert our.dtype.itemsize == their.dtype.itemsize or their.dtype.kind in "OS", where
        np.testing.assert_array_equal(our, their, where)


# What we read


@dataclass(frozen=True)
class Read:
    """One pipeline's epoch, read in a child; of ParserTfds's arguments, `root` only where it is another one."""

    arguments: dict[str, Any]
    world: World = World()
    epoch: int = 0
    start_batch: int = 0
    fields: tuple[str, ...] = ()


def read_all(root: Path, reads: Sequence[Read]) -> list[list[Batch]]:
    """Returns the batches of many pipelines."""
    return call_reader(_read_all, str(root), list(reads))


def call_reader(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Returns `function(*args, **kwargs)` of a process that may load tensorflow, which takes it seconds once.

    One process serves all tests: what must come to a process that has loaded nothing needs a fresh one.
    """
    return _reader().ask(function, *args, **kwargs)


@cache
def _reader() -> Answering:
    return Answering(tensorflow_zygote())


def _read_all(root: str, reads: Sequence[Read]) -> list[list[Batch]]:
    return [list(read_one(root, read)) for read in reads]


def read_one(root: str, read: Read) -> Iterator[Batch]:
    """Yields the batches of one pipeline. Loads tensorflow."""
    parser = ParserTfds(read.arguments.get("root", root), **{k: v for k, v in read.arguments.items() if k != "root"})
    return parser.batches(read.world, read.epoch, read.start_batch, fields=read.fields)


def grid(num_replicas: int, num_workers: int) -> list[World]:
    """Returns the places of all pipelines."""
    return [World(r, num_replicas, w, num_workers) for r in range(num_replicas) for w in range(num_workers)]


def collect_rank(parts: Sequence[Sequence[Batch]]) -> list[Batch]:
    """Returns a rank's batches in the order in which a DataLoader collects them from its workers."""
    longest = max(map(len, parts))
    return [part[i] for i in range(longest) for part in parts if i < len(part)]


def with_read(mode: str, **options: Any) -> ReadOptions:
    return ReadOptions(mode=mode, num_threads=1, **options)


def as_remote(parser: ParserTfds, bucket: str = "gs://bucket") -> ParserTfds:
    """Returns a parser of the same files, whose paths have a scheme; `file://` is one that tensorflow can read."""
    source = parser.source
    parts = [replace(part, path=f"{bucket}{part.path}") for part in source.instructions]
    remote = copy.copy(parser)
    remote.dataset = copy.copy(parser.dataset)
    size = source.mean_example_bytes
    remote.dataset.source = type(source)(source.name, parts, source.specs, mean_example_bytes=size)  # type: ignore[call-arg]
    return remote


def has_tensorflow() -> bool:
    return "tensorflow" in sys.modules


# Datasets written by hand, at once and without tensorflow: every label is one example


def write_numbered(root: Path, splits: Mapping[str, Sequence[int]], side: int = 8) -> None:
    """Writes the dataset `numbered`: JPEG images of side x side pixels, and labels that number all its examples.

    Args:
        root: TFDS data directory.
        splits: split -> lengths of its shards, 0 allowed.
        side: of the images, which are all the same.
    """
    directory = root / "numbered" / "1.0.0"
    directory.mkdir(parents=True)
    image = encode(np.full((side, side, 3), 90, np.uint8), "JPEG").getvalue()
    number = 0
    for split, lengths in splits.items():
        for shard, length in enumerate(lengths):
            records = [_numbered_record(image, i) for i in range(number, number + length)]
            write_shard(directory / f"numbered-{split}.tfrecord-{shard:05}-of-{len(lengths):05}", records)
            number += length
    features = {
        "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
        "label": tfds.features.ClassLabel(num_classes=number),
        "file_name": tfds.features.Text(),
    }
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory),
        features=tfds.features.FeaturesDict(features),
        split_infos=[
            tfds.core.SplitInfo(name=split, shard_lengths=list(lengths), num_bytes=sum(lengths) * len(image))
            for split, lengths in splits.items()
        ],
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        check_data=False,
    )


def _numbered_record(image: bytes, number: int) -> bytes:
    example = tf_example_pb2.Example()
    example.features.feature["image"].bytes_list.value.append(image)
    example.features.feature["label"].int64_list.value.append(number)
    example.features.feature["file_name"].bytes_list.value.append(f"{number}.jpg".encode())
    return example.SerializeToString()


# For commands, which have no fixtures


def prepare_datasets(base: Path) -> Datasets:
    """Builds the datasets in a folder that is there."""
    _build_all(base)
    return Datasets(base / "tfds", base / "tfds_gaps", base / "tfds_array_record")
