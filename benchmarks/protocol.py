"""The protocol of a peer: one script that runs as a process of its own and speaks in lines of JSON.

The measuring process writes to the script's standard input: a task, then a command a line: "prepare" asks for the
peer's files, a number for that epoch. Each command has one line as its answer, on what was the standard output; what a
library prints goes to standard error instead. The process leads a group; when its standard input ends, it kills the
group, so that nothing outlives a measuring process that was killed.

This module needs the standard library alone: a peer may live in an environment without torch, numpy and this package.
"""

import json
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

TRAIN, EVAL, PLAIN, ENCODED = "train", "eval", "plain", "encoded"
"""The work on an image: a random piece is resized and perhaps flipped, in a shuffled order; the middle piece of the
resized image, in the files' order; decoding alone, in a shuffled order; nothing, in a shuffled order."""

BENCH_EXTRA = "in a clone: pip install -e '.[bench]'"

Epochs = Callable[[int], Iterable[Any]]
"""An epoch's number -> its batches: uint8 [B, 3, H, W], numpy or torch."""


@dataclass(frozen=True)
class Task:
    """The work of a peer in each epoch.

    Attributes:
        data_dir: of a dataset of TFDS, or its URL.
        num_examples: of an epoch.
        num_workers: loader processes; a peer without such processes ignores it, or has as many threads.
        image_shape: of each image, uint8; None: images are counted, and not checked.
        files: a folder with the same encoded images in the peer's own format, or "".
        tars: a folder with the same encoded images as tar files, or "".
        options: what only some peers of a suite understand.
    """

    data_dir: str
    num_examples: int
    batch_size: int
    num_workers: int
    dataset: str = "photos"
    work: str = TRAIN
    image_shape: tuple[int, ...] | None = (3, 224, 224)
    files: str = ""
    tars: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_training(self) -> bool:
        """Whether examples are shuffled."""
        return self.work != EVAL

    @property
    def size(self) -> int:
        """Side of the square images, pixels."""
        if self.image_shape is None:
            raise ValueError("the task has no size of images")
        return self.image_shape[-1]


def serve(
    load: Callable[[Task], Epochs],
    packages: Sequence[str] = (),
    *,
    prepare: Callable[[Task], None] | None = None,
    install: str = BENCH_EXTRA,
) -> None:
    """Does what the measuring process asks for, until it ends this process. A peer's script calls it.

    Args:
        load: imports what the peer needs and returns its epochs; it is called by the first epoch's command. They may
            have a method `report`, whose dictionary goes with the answer.
        packages: distributions whose versions are reported.
        prepare: writes the images of `task.tars` into `task.files`.
        install: how the packages are installed, for the message that one is missing.
    """
    commands, answers = os.dup(0), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(commands, lines), daemon=True).start()

    def answer(content: Mapping[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        fields = lines.get()
        shape = fields["image_shape"]
        task = Task(**{**fields, "image_shape": shape and tuple(shape)})
        epochs: Epochs | None = None
        while True:
            command = lines.get()
            if command == "prepare":
                if prepare is not None:
                    prepare(task)
                answer({})
                continue
            epochs = epochs or load(task)
            answer(_run_epoch(epochs, command, task.image_shape) | {"versions": _versions(packages)})
    except BaseException as error:
        traceback.print_exc()
        answer({"error": _describe(error, install)})
        threading.Event().wait()  # The measuring process has the last word: it ends the whole group.


def _receive(descriptor: int, lines: "queue.SimpleQueue[Any]") -> None:
    left = b""
    while part := os.read(descriptor, 1 << 16):
        *whole, left = (left + part).split(b"\n")
        for line in whole:
            lines.put(json.loads(line))
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _run_epoch(epochs: Epochs, number: int, image_shape: tuple[int, ...] | None) -> dict[str, Any]:
    num_examples, first_batch_s, first_batch_at = 0, 0.0, 0.0
    began = asked = time.perf_counter()
    for images in epochs(number):  # Asking for the iterator, which may start workers, belongs to the epoch.
        if not num_examples:
            first_batch_s = time.perf_counter() - began
            first_batch_at = time.monotonic()  # Comparable between processes.
        if image_shape is not None:
            _check_images(images, image_shape)
        num_examples += len(images)
        del images
        asked = time.perf_counter()
    ended = time.perf_counter()
    if not num_examples:
        raise ValueError(f"no batch came in epoch {number}")
    return {
        "num_examples": num_examples,
        "first_batch_s": first_batch_s,
        "tail_s": ended - asked,
        "whole_s": ended - began,
        "first_batch_at": first_batch_at,
        "report": epochs.report() if hasattr(epochs, "report") else {},
    }


def _check_images(images: Any, image_shape: tuple[int, ...]) -> None:
    shape, dtype = tuple(images.shape), str(images.dtype).removeprefix("torch.")
    if shape[1:] != image_shape or dtype != "uint8":
        wanted = ", ".join(map(str, image_shape))
        raise ValueError(f"a batch is {dtype} {list(shape)}, and should be uint8 [B, {wanted}]")


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # One of several that do the same.
            continue
    return found


def _describe(error: BaseException, install: str) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{error} ({install})"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
