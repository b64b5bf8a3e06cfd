"""Task: the work of a competitor. Peer: a competitor. Settings and Run: how much of it a suite measures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OURS, OURS_IN_PROCESS, TIMM, WEBDATASET, GRAIN = "ours", "ours_0", "timm", "webdataset", "grain"
OURS_8, OURS_BATCHED, BASELINE = "ours_8", "ours_batched", "baseline"
OURS_SIMPLEJPEG, OURS_0_SIMPLEJPEG = "ours_simplejpeg", "ours_0_simplejpeg"
FFCV, DALI, AS_NUMPY, LIMIT = "ffcv", "dali", "as_numpy", "limit"
STREAMS = "streams"
"""The environment of the libraries that read from object stores."""

EIGHT = 8
"""Workers of OURS_8."""

BASELINE_REVISION = "edba0d4"
"""The last commit before local datasets were read without tensorflow."""

FFCV_INSTALL = "apt install libopencv-dev libturbojpeg0-dev pkg-config, then, in a clone, pip install -e '.[ffcv]'"
"""FFCV, which pip builds from its source."""

_MOST_SHARDS = 8

IMAGE_SHAPE = (3, 224, 224)
"""Of every photograph that arrives in the training process; its dtype is uint8."""

TRAIN, EVAL, PLAIN, ENCODED = "train", "eval", "plain", "encoded"
"""The work on an image: a random piece is resized and perhaps flipped, in a shuffled order; the middle piece of the
resized image, in the files' order; decoding alone, in a shuffled order; nothing, also in a shuffled order."""

ShowProgress = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """An epoch over the photographs, or over another dataset.

    Attributes:
        converted_dir: the same encoded images in the competitor's own format; None where it reads TFRecord.
        num_photos: examples of an epoch, photographs or not.
        num_workers: loader processes; a competitor without such processes ignores it, or has as many threads.
        read: arguments of our `ReadOptions`; other competitors ignore it.
        image_shape: of each image, uint8; None: images are counted, and not checked.
        work: `TRAIN`, `EVAL` or `PLAIN`.
        split: only this package can read a part of it.
        num_members: how many parts of the dataset are mixed, where it is read as a mixture.
        remote: fields of `bucket.RemoteWork`, where files are read from a server, or by several ranks; `data_dir` is
            a URL then, where they are.
    """

    data_dir: str
    converted_dir: str | None
    num_photos: int
    batch_size: int
    num_workers: int
    dataset: str = "photos"
    read: Mapping[str, Any] = field(default_factory=dict)
    image_shape: tuple[int, ...] | None = IMAGE_SHAPE
    work: str = TRAIN
    split: str = "train"
    num_members: int = 1
    remote: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_training(self) -> bool:
        """Whether examples are shuffled."""
        return self.work != EVAL


@dataclass(frozen=True)
class Peer:
    """A competitor: this package, or another way to the same batches.

    Attributes:
        name: on the command line.
        title: in tables.
        loader: `module:function`; the function takes a Task, imports what it needs, and returns a function that takes
            the epoch's number and returns its batches of images, uint8 [B, 3, H, W], numpy or torch.
        file_format: `tfrecord`, or one that `conversion` writes.
        distributions: its packages, for the list of versions.
        environment: "" for this process's own, or one that `environments` makes.
        changes: fields of the task that differ for this competitor.
    """

    name: str
    title: str
    loader: str
    file_format: str = "tfrecord"
    distributions: tuple[str, ...] = ()
    environment: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Settings:
    """How much is measured, as the command line says.

    Attributes:
        num_photos: examples of an epoch of photographs; the number of other examples is proportional to it.
        num_repeats: measured epochs, or fresh processes.
        timeout_s: the most that an epoch may take.
        baseline: the git revision of this package that takes part as the baseline.
    """

    num_photos: int
    batch_size: int
    num_workers: int
    num_repeats: int
    timeout_s: float
    baseline: str = BASELINE_REVISION

    @property
    def num_shards(self) -> int:
        """Files of a dataset that is measured."""
        return min(_MOST_SHARDS, self.num_photos)


@dataclass(frozen=True)
class Run:
    """One run of a suite.

    Attributes:
        peers: the competitors, where the command line can choose them.
        data_dir: holds the dataset `photos`.
        show_progress: shows the user a text about the current step.
        versions: distribution -> version, of competitors with an environment of their own; filled by the suite.
    """

    peers: Sequence[Peer]
    settings: Settings
    data_dir: Path
    show_progress: ShowProgress
    versions: dict[str, str] = field(default_factory=dict)


_PEERS = "benchmarks.peers"
_OURS_NEEDS = ("torch", "tensorflow-datasets", "turbojpeg", "simplejpeg")
_BY_SIMPLEJPEG = {"jpeg_decoder": "simplejpeg"}
_FUSED = f"{_PEERS}.ours:load"
_TIMM_NEEDS = ("timm", "torchvision", "torch", "tensorflow-datasets")
_WEBDATASET = Peer(WEBDATASET, "WebDataset", f"{_PEERS}.webdataset_tar:load", "tar", ("webdataset", "torch"))
_GRAIN = Peer(GRAIN, "Grain", f"{_PEERS}.grain_array_record:load", "array_record", ("grain", "array-record"))


def _by_name(*peers: Peer) -> dict[str, Peer]:
    return {peer.name: peer for peer in peers}


SINGLE_PEERS = _by_name(
    Peer(OURS, "tfds_torch", f"{_PEERS}.ours:load_single", distributions=_OURS_NEEDS),
    Peer(TIMM, "timm ReaderTfds", f"{_PEERS}.timm_reader:load_single", distributions=_TIMM_NEEDS),
    _WEBDATASET,
    _GRAIN,
    Peer(AS_NUMPY, "tfds.as_numpy", f"{_PEERS}.tfds_as_numpy:load", distributions=("tensorflow-datasets",)),
)
"""The competitors whose examples are transformed one by one."""

PEERS = _by_name(
    Peer(OURS, "tfds_torch", _FUSED, distributions=_OURS_NEEDS),
    Peer(BASELINE, "tfds_torch, baseline", _FUSED, environment=BASELINE),
    Peer(OURS_BATCHED, "tfds_torch, batched=True", f"{_FUSED}_batched", distributions=_OURS_NEEDS),
    Peer(OURS_IN_PROCESS, "tfds_torch, no workers", _FUSED, distributions=_OURS_NEEDS, changes={"num_workers": 0}),
    Peer(
        OURS_SIMPLEJPEG,
        "tfds_torch without libturbojpeg 3",
        _FUSED,
        distributions=_OURS_NEEDS,
        changes={"read": _BY_SIMPLEJPEG},
    ),
    Peer(
        OURS_0_SIMPLEJPEG,
        "tfds_torch without libturbojpeg 3, no workers",
        _FUSED,
        distributions=_OURS_NEEDS,
        changes={"num_workers": 0, "read": _BY_SIMPLEJPEG},
    ),
    Peer(OURS_8, "tfds_torch, 8 workers", _FUSED, distributions=_OURS_NEEDS, changes={"num_workers": EIGHT}),
    Peer(TIMM, "timm create_loader", f"{_PEERS}.timm_reader:load", distributions=_TIMM_NEEDS),
    _WEBDATASET,
    _GRAIN,
    Peer(DALI, "DALI without a GPU", f"{_PEERS}.dali:load", environment=DALI),
    Peer(FFCV, "FFCV", f"{_PEERS}.ffcv_beton:load", "beton", ("ffcv", "numba", "opencv-python", "torch")),
    Peer(LIMIT, "decode and crop alone", f"{_PEERS}.decode_limit:load", changes={"image_shape": None}),
)
"""The competitors in the work of whole batches: each in its own fastest way."""
