"""NVIDIA DALI without a GPU: the same TFRecord files, through its own reader, decoders and threads.

Configured as its guides do it for training: `readers.tfrecord` with `random_shuffle` (its default buffer of 1,024
encoded images), `decoders.image_random_crop`, `resize`, bilinear and antialiased, and a flip; `device_id=None`, as many
threads as others have workers. Evaluation: `decoders.image`, the short side resized, the middle cut out. Images that
are delivered as they are come from `decoders.image` alone. All else is a default, the prefetch of two batches among
them. Batches are copied out of DALI's own memory, as its plugin for torch does it, and viewed as [B, 3, H, W] without
another copy.

DALI wants an index file for every shard (its script tfrecord2idx): they are written when this script starts. It
wants an environment of its own, in which there is no tensorflow and no torch.
"""

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.protocol import EVAL, TRAIN, Epochs, Task, serve
from benchmarks.transform import CROP_PCT

_LENGTH = struct.Struct("<Q")
_AROUND_BYTES = 16  # Of a record's framing: its length (8), and two checksums (4 each).


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, numpy uint8 [B, 3, H, W]."""
    from nvidia.dali import pipeline_def  # type: ignore[import-not-found, unused-ignore]

    shards = sorted((Path(task.data_dir) / task.dataset).glob("*/*-train.tfrecord-*"))
    with tempfile.TemporaryDirectory() as folder:
        indices = [Path(folder) / f"{shard.name}.idx" for shard in shards]
        for shard, index in zip(shards, indices, strict=True):
            write_index(shard, index)
        define = pipeline_def(batch_size=task.batch_size, num_threads=max(1, task.num_workers), device_id=None)
        pipeline = define(_images)(list(map(str, shards)), list(map(str, indices)), task)
        pipeline.build()

    def batches() -> Iterator[Any]:
        for _ in range(task.num_examples // task.batch_size):
            (images,) = pipeline.run()
            yield images.as_array().transpose(0, 3, 1, 2)  # [B, H, W, 3] -> [B, 3, H, W]

    return lambda epoch: batches()


def write_index(shard: Path, index: Path) -> None:
    """Writes what DALI's tfrecord2idx does: a line for every record, with its offset and its size, framing included.

    Raises:
        ValueError: the shard ends within a record.
    """
    size, offset, lines = shard.stat().st_size, 0, list[str]()
    with shard.open("rb") as file:
        while offset < size:
            file.seek(offset)
            header = file.read(_LENGTH.size)
            num_bytes = _AROUND_BYTES + (_LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else size)
            if offset + num_bytes > size:
                raise ValueError(f"{shard} ends within its record {len(lines)}, at byte {size}")
            lines.append(f"{offset} {num_bytes}\n")
            offset += num_bytes
    index.write_text("".join(lines))


def _images(shards: list[str], indices: list[str], task: Task) -> Any:
    """Builds DALI's graph: images uint8 [H, W, 3]."""
    from nvidia.dali import fn, tfrecord, types

    encoded = fn.readers.tfrecord(
        path=shards,
        index_path=indices,
        features={"image": tfrecord.FixedLenFeature((), tfrecord.string, "")},
        random_shuffle=task.is_training,
    )["image"]
    height = width = 0 if task.work not in (TRAIN, EVAL) else task.size
    linear = {"interp_type": types.INTERP_LINEAR, "antialias": True}
    if task.work == TRAIN:
        area, ratio = [0.08, 1.0], [3 / 4, 4 / 3]
        images = fn.decoders.image_random_crop(
            encoded, device="cpu", output_type=types.RGB, random_area=area, random_aspect_ratio=ratio, num_attempts=10
        )
        images = fn.resize(images, device="cpu", resize_x=width, resize_y=height, **linear)
        return fn.flip(images, device="cpu", horizontal=fn.random.coin_flip(probability=0.5))
    images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    if task.work == EVAL:
        images = fn.resize(images, device="cpu", resize_shorter=int(height / CROP_PCT), **linear)
        images = fn.crop(images, device="cpu", crop=(height, width))
    return images


if __name__ == "__main__":
    serve(
        load,
        ("nvidia-dali-cuda120",),
        install="in an environment of its own: pip install nvidia-dali-cuda120 numpy pillow; then --venv dali=DIR",
    )
