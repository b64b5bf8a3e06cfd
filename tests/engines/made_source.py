"""A Source in memory, which notes what is asked of it, and requests over it."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from picture_fixtures import save
from PIL import Image

from tfds_torch.engines.fields import Content, ImageField, StoredField
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import ReadContext, ReadRequest
from tfds_torch.errors import CorruptRecordError
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World
from tfds_torch.storage.source import Columns, FieldSpec, FileInstruction
from tfds_torch.storage.stored_pixels import StoredPixels


@dataclass
class MadeSource:
    """`number` is an example's number, `text` its name; examples among `damaged` cannot be read."""

    num_examples: int = 40
    mean_example_bytes: int = 1000
    damaged: frozenset[int] = frozenset()
    images: Sequence[bytes] = ()
    pixels: NDArray[np.uint8] | None = None  # [n, H, W, C], which lie in one memory.
    num_stored: int = 2**62  # Reads of pixels that find them stored; later ones get encoded images.
    name: str = "made:1.0.0"
    identity: str = "made"
    obstacle: str | None = None
    can_stream: bool = True
    has_shards: bool = False
    is_one_threaded: bool = False
    networks: Any = ()
    block_records: int | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)
    num_checks: int = 0
    lock: Any = field(default_factory=threading.Lock)

    @property
    def specs(self) -> dict[str, FieldSpec]:
        return {"number": FieldSpec((), np.int64), "text": FieldSpec((), np.object_), "image": FieldSpec((), object)}

    @property
    def instructions(self) -> list[FileInstruction]:
        return [FileInstruction("made", 0, self.num_examples, 0, self.num_examples)]

    def __len__(self) -> int:
        return self.num_examples

    def check(self, streamed: Any = None) -> None:
        self.num_checks += 1

    def read(self, index: NDArray[np.int64], fields: Sequence[str]) -> Columns:
        with self.lock:
            self.asked += [("read", number) for number in index.tolist()]
        bad = [number for number in index.tolist() if number in self.damaged]
        if bad:
            raise CorruptRecordError(f"example {bad[0]} is damaged.")
        columns: dict[str, Any] = {"number": index.copy(), "text": [b"%d" % number for number in index.tolist()]}
        if self.pixels is not None:
            starts = index * self.pixels[0].size
            stored = StoredPixels(self.pixels.reshape(-1), starts, self.pixels.shape[1:])
            columns["image"] = stored if self.num_stored > 0 else [save(Image.fromarray(one), "PNG") for one in stored]
            self.num_stored -= 1
        elif self.images:
            columns["image"] = [self.images[number % len(self.images)] for number in index.tolist()]
        return {name: columns[name] for name in fields}

    def announce(self, index: NDArray[np.int64]) -> None:
        self.asked += [("announce", number) for number in index.tolist()]

    def ids(self, index: NDArray[np.int64]) -> list[str]:
        return [f"made__{number}" for number in index.tolist()]

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        return CorruptRecordError(f"example {index} cannot be decoded. {reason}")

    def numbers(self, what: str) -> list[int]:
        return [number for kind, number in self.asked if kind == what]


def request_of(source: Any, content: Content | None = None, **changes: Any) -> ReadRequest:
    """Returns a request for all of a made source's examples, shuffled, in batches of 10."""
    plan = EpochPlan(
        Passes(len(source)),
        world=changes.pop("world", World()),
        batch_size=changes.pop("batch_size", 10),
        remainder=changes.pop("remainder", Remainder.WRAP),
        is_training=changes.pop("is_training", True),
    )
    options = changes.pop("options", ReadOptions(num_threads=2))
    start_batch = changes.pop("start_batch", 0)
    content = content or Content({"label": StoredField("number"), "text": StoredField("text", is_text=True)}, True)
    return ReadRequest(source, plan, changes.pop("epoch", 0), start_batch, content, options, **changes)


def image_content(preprocess: Any = None, mode: str | None = "RGB") -> Content:
    """Returns content of images in batch buffers."""
    return Content({"label": StoredField("number")}, True, ImageField("image", mode), preprocess)


__all__ = ["MadeSource", "ReadContext", "image_content", "request_of"]
