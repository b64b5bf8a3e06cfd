"""Task: what every contestant has to do, and Peer: who they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OURS, TIMM = "ours", "timm"

IMAGE_SHAPE = (3, 224, 224)
"""Of every image that arrives in the training process; its dtype is uint8."""


@dataclass(frozen=True)
class Task:
    """An epoch over the photographs, or over another dataset.

    Attributes:
        data_dir: TFDS's data dir that holds the dataset.
        converted_dir: the same encoded photographs in the contestant's own format; None where it reads TFRecord.
        num_photos: examples of an epoch, photographs or not.
        batch_size: examples of a batch.
        num_workers: loader processes; a contestant without such processes ignores it.
        dataset: its name.
        read: arguments of our `ReadOptions`; other contestants ignore it.
        image_shape: of every image that is delivered, which is uint8; None: images are counted, not looked at.
    """

    data_dir: str
    converted_dir: str | None
    num_photos: int
    batch_size: int
    num_workers: int
    dataset: str = "photos"
    read: Mapping[str, Any] = field(default_factory=dict)
    image_shape: tuple[int, ...] | None = IMAGE_SHAPE


@dataclass(frozen=True)
class Peer:
    """A contestant: this package, or another way to the same batches.

    Attributes:
        name: how the command line calls it.
        title: how tables call it.
        loader: `module:function`; the function takes a Task, imports what it needs, and returns a function that takes
            the epoch's number and returns its batches of images, uint8 [B, 3, 224, 224], numpy or torch.
        file_format: of the photographs: `tfrecord`, `tar` or `array_record`.
        distributions: the packages it is made of, for the list of versions.
    """

    name: str
    title: str
    loader: str
    file_format: str = "tfrecord"
    distributions: tuple[str, ...] = ()


PEERS = (
    Peer(OURS, "tfds_torch", "tfds_torch.bench.peers.ours:load", distributions=("torch", "tensorflow-datasets")),
    Peer(
        TIMM,
        "timm ReaderTfds",
        "tfds_torch.bench.peers.timm_reader:load",
        distributions=("timm", "torchvision", "torch", "tensorflow-datasets"),
    ),
    Peer(
        "webdataset",
        "WebDataset",
        "tfds_torch.bench.peers.webdataset_tar:load",
        file_format="tar",
        distributions=("webdataset", "torch"),
    ),
    Peer(
        "grain",
        "Grain",
        "tfds_torch.bench.peers.grain_array_record:load",
        file_format="array_record",
        distributions=("grain", "array-record"),
    ),
    Peer(
        "as_numpy",
        "tfds.as_numpy",
        "tfds_torch.bench.peers.tfds_as_numpy:load",
        distributions=("tensorflow-datasets",),
    ),
)
"""The contestants, in the order of their turns."""
