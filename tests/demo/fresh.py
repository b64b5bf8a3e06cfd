"""What runs in fresh processes for these tests: builds without `prepare`, and reading with TFDS alone."""

import queue
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any
from unittest import mock

import numpy as np
import tensorflow_datasets as tfds
from tfds_fixtures import iterate_tfds

from tfds_torch.demo import preparation
from tfds_torch.demo.builder import real_splits
from tfds_torch.demo.preparation import build
from tfds_torch.demo.spec import DemoSpec
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import TfdsTorchError
from tfds_torch.parsers.tfds.parser import ParserTfds

_GRACE_S = 60.0


def build_each(root: str, specs: Sequence[DemoSpec]) -> None:
    """Builds each spec in a folder under root, named by its number."""
    for number, spec in enumerate(specs):
        folder = Path(root) / str(number)
        folder.mkdir()
        build(spec, str(folder), "", progress=False)


def read_with_tfds(root: str, splits: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Any]:
    """Returns (name, split) -> the examples that TFDS reads: `image` still encoded, `pixels` decoded."""
    found: dict[tuple[str, str], Any] = {}
    for name, split in splits:
        builder = tfds.builder(name, data_dir=root)
        assert isinstance(builder, tfds.core.read_only_builder.ReadOnlyBuilder)
        encoded = builder.as_dataset(split=split, decoders={"image": tfds.decode.SkipDecoding()})
        decoded = builder.as_dataset(split=split)
        found[name, split] = [
            {**example, "pixels": whole["image"]}
            for example, whole in zip(tfds.as_numpy(encoded), tfds.as_numpy(decoded), strict=True)
        ]
    return found


def read_episodes(folders: Mapping[str, str], cameras: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """Returns name -> the episodes that TFDS reads from a version directory: steps as arrays, images still encoded."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, folder in folders.items():
        skip = {"steps": {"observation": {camera: tfds.decode.SkipDecoding() for camera in cameras[name]}}}
        episodes = tfds.as_numpy(tfds.builder_from_directory(folder).as_dataset(split="train", decoders=skip))
        found[name] = [{**episode, "steps": _stack(list(episode["steps"]))} for episode in episodes]
    return found


def _stack(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns path of a feature -> the values of all steps: [T, ...], or a list of bytes."""
    columns: dict[str, Any] = {}
    for key in steps[0]:
        values = [step[key] for step in steps]
        if isinstance(values[0], Mapping):
            columns |= {f"{key}/{inner}": value for inner, value in _stack(values).items()}
        else:
            columns[key] = values if isinstance(values[0], bytes) else np.stack(values)
    return columns


@dataclass(frozen=True)
class Reading:
    """What TFDS and ParserTfds read of a fake, and what TFDS's own builder says without it.

    Attributes:
        module: of the builder that `tfds.builder` chose.
        version_dir: where it lies.
        leaves: features that are no containers, as the builder's code says: keys -> type, shape, dtype, number of
            classes, and their names.
        from_files: the same, as the files alone say.
        features: the features' text, by the code of an unprepared builder and of the one that reads.
        supervised_keys: of the same two.
        shard_lengths: split -> examples of each shard.
        description: of the dataset.
        examples: split -> TFDS's examples in the order of the files.
        batches: split -> ParserTfds's batches with every top-level feature.
    """

    module: str
    version_dir: Path
    leaves: dict[tuple[str, ...], tuple[Any, ...]]
    from_files: dict[tuple[str, ...], tuple[Any, ...]]
    features: tuple[str, str]
    supervised_keys: tuple[Any, Any]
    shard_lengths: dict[str, list[int]]
    description: str
    examples: dict[str, list[dict[str, Any]]]
    batches: dict[str, list[Batch]]


def read(root: str, names: Sequence[str]) -> dict[str, Reading]:
    return {name: _read(root, name) for name in names}


def build_and_read(root: str, specs: Sequence[DemoSpec]) -> dict[str, Reading]:
    """Builds into one data dir, and reads; one start of tensorflow for all."""
    for spec in specs:
        build(spec, root, "", progress=False)
    return read(root, [spec.full_name for spec in specs])


def _read(root: str, name: str) -> Reading:
    builder, real = tfds.builder(name, data_dir=root), tfds.builder(name, data_dir=f"{root}/none")
    files = tfds.builder_from_directory(builder.data_dir)
    examples, batches = {}, {}
    for split in builder.info.splits:
        examples[split] = list(iterate_tfds(root, name, split))
        parser = ParserTfds(root, name, split, batch_size=4, image_mode=None)
        batches[split] = list(parser.batches(fields=("index", *builder.info.features)))
    return Reading(
        module=type(builder).__module__,
        version_dir=Path(builder.data_dir),
        leaves=dict(_list_leaves(real.info.features)),
        from_files=dict(_list_leaves(files.info.features)),
        features=(repr(real.info.features), repr(builder.info.features)),
        supervised_keys=(real.info.supervised_keys, files.info.supervised_keys),
        shard_lengths={split: list(info.shard_lengths) for split, info in builder.info.splits.items()},
        description=builder.info.description + files.info.description,
        examples=examples,
        batches=batches,
    )


def _list_leaves(feature: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...]]]:
    if isinstance(feature, tfds.features.FeaturesDict):
        for key, inner in sorted(feature.items()):
            yield from _list_leaves(inner, (*keys, key))
    elif isinstance(feature, tfds.features.Sequence):
        yield from _list_leaves(feature.feature, (*keys, "[]"))
    else:
        names = tuple(feature.names) if isinstance(feature, tfds.features.ClassLabel) else ()
        num_classes = getattr(feature, "num_classes", None)
        yield keys, (type(feature).__name__, feature.shape, feature.np_dtype, num_classes, names)


def list_real_splits(root: str, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the splits of datasets, as their builders tell them where nothing is downloaded."""
    preparation._cut_network()
    return {name: real_splits(tfds.builder(name, data_dir=root)) for name in names}


def ask_for_fakes(root: str, specs: Sequence[DemoSpec], missing_package: str) -> list[tuple[str, str]]:
    """Returns type and message of the error of each build, with one package missing."""
    sys.modules[missing_package] = None
    answers = []
    for spec in specs:
        try:
            build(spec, root, "", progress=False)
            answers.append(("nothing was raised", ""))
        except TfdsTorchError as error:
            answers.append((type(error).__name__, str(error)))
    return answers


# The network


def build_watched(root: str, specs: Sequence[DemoSpec]) -> dict[str, list[str]]:
    """Builds each spec, and returns for each name what was asked of the network, by Python or by tensorflow."""
    asked = {}
    with watched_network() as requests:
        for spec in specs:
            build(spec, root, "", progress=False)
            asked[spec.full_name] = [requests.get() for _ in range(requests.qsize())]
    return asked


def ask_a_bucket(root: str) -> str:
    """Builds, and looks for a file in a bucket; returns what was asked first."""
    with watched_network() as requests:
        build(DemoSpec.embedded("photos", 1), root, "", progress=False)
        import tensorflow as tf

        # tensorflow tries again for minutes, and this process ends before.
        Thread(target=tf.io.gfile.exists, args=("gs://tfds-data/dataset_info/mnist",), daemon=True).start()
        return requests.get(timeout=_GRACE_S)


@contextmanager
def watched_network() -> Iterator["queue.Queue[str]"]:
    """Yields a queue of what is asked of the network: by Python's sockets, or of the proxy that builds are sent to."""
    requests: queue.Queue[str] = queue.Queue()

    class Refusing(StreamRequestHandler):
        def handle(self) -> None:
            requests.put(self.rfile.readline().decode("latin-1").strip())

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.getaddrinfo", "socket.connect"):
            requests.put(f"{event} {arguments}")

    with ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        sys.addaudithook(watch)  # For as long as the process lives.
        with mock.patch.object(preparation, "_NO_PROXY", f"http://127.0.0.1:{server.server_address[1]}"):
            yield requests
        server.shutdown()
