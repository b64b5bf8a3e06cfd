"""MosaicML Streaming: MDS shards of the same encoded images on a server, through a cache folder on this machine.

Configured as its documentation does it for training, with everything else a default: shuffled; encoded images as bytes,
which Pillow decodes in the workers, where the shared transform cuts and resizes; torch's collation in the workers;
persistent workers. It speaks S3, with the server as the endpoint and made-up keys, whose signature it does not look at.
It knows the batch size, and reads its default of 8 batches ahead. Shards have 64 MB, its default.

One thing is done for it that its documentation does not name: its client has fetched the index before workers are
forked, which would then take each other's answers from the one connection that they inherit; it is asked to forget it.
Streaming imports torchvision, of which it uses nothing here: see `timm_reader.declare_torchvision_operators`.
"""

import io
import os
from typing import Any

from PIL import Image

from benchmarks.protocol import Epochs, Task, serve
from benchmarks.transform import read_tars, transform_of

S3_KEYS = {
    "AWS_ACCESS_KEY_ID": "made-up",
    "AWS_SECRET_ACCESS_KEY": "made-up",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
CHUNK_BYTES = 1 << 26
_held: list[Any] = []


class Decoded:
    """Decodes an example's image and applies a task's work; picklable."""

    def __init__(self, task: Task) -> None:
        self._transform = transform_of(task)

    def __call__(self, example: Any) -> Any:
        """Returns uint8 [3, H, W] and the label."""
        image = Image.open(io.BytesIO(example["image"])).convert("RGB")
        return self._transform(image), example["label"]


def prepare(task: Task) -> None:
    """Writes the images of `task.tars` with its own writer: the encoded image as bytes, and the label."""
    _declare()
    from streaming import MDSWriter

    with MDSWriter(
        out=f"{task.files}/mds", columns={"image": "bytes", "label": "int"}, size_limit=CHUNK_BYTES
    ) as writer:
        for image, label in read_tars(task.tars):
            writer.write({"image": image, "label": label})


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    os.environ.update(S3_KEYS, S3_ENDPOINT_URL=task.options["endpoint"])
    _declare()
    import streaming
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    class Photos(streaming.StreamingDataset):  # type: ignore[misc]
        decode = Decoded(task)

        def __getitem__(self, number: int) -> Any:
            return self.decode(super().__getitem__(number))

    clean_stale_shared_memory()  # Of one that was killed.
    photos = Photos(
        remote=f"s3://{task.options['bucket']}/streaming_mds/mds",
        local=task.options["cache_dir"],
        shuffle=task.is_training,
        batch_size=task.batch_size,
    )
    for stream in photos.streams:
        stream._downloader.clean_up()
    loader: DataLoader[Any] = DataLoader(
        photos, batch_size=task.batch_size, num_workers=task.num_workers, persistent_workers=task.num_workers > 0
    )
    return lambda epoch: (images for images, _ in loader)


def _declare() -> None:
    from benchmarks.peers.timm_reader import declare_torchvision_operators

    _held.append(declare_torchvision_operators())


if __name__ == "__main__":
    serve(
        load,
        ("mosaicml-streaming", "torch"),
        prepare=prepare,
        install="in an environment of its own, for its older numpy and protobuf: pip install mosaicml-streaming "
        "pillow; then --venv streaming=DIR",
    )
