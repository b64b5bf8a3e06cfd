"""The script of docs/your-own-data.md over a dataset of Hugging Face on disk and an image folder of torchvision.

It trains on 2 ranks x 2 workers, is stopped by Ctrl-C or SIGKILL, and goes on in another world: with one rank and three
workers, or with torch's DataLoader. What came is compared with a run that nobody stops. Labels number the examples.
"""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torchvision_build
from doc_blocks import PYTHON, ROOT
from PIL import Image

from tfds_torch import ImageDataset, ParserMapStyle, TrainPreprocess, create_loader

NUM_EXAMPLES, NUM_EPOCHS, GLOBAL_BATCH = 40, 3, 16
NUM_BATCHES, NUM_BEFORE = 3, 4
"""Of an epoch; and before the stop, which is in the second epoch then."""
GRACE_S = 60.0

(BLOCK,) = [block.text for block in PYTHON if block.page.stem == "your-own-data" and "CHECKPOINT" in block.text]
SCRIPT = ast.unparse(ast.parse(BLOCK))  # However its lines are broken.
ROWS = "[(np.full((40, 60, 3), number, np.uint8), number % 2) for number in range(100)]"
HUB = "__import__('datasets').load_from_disk({!r})"
FOLDER = "__import__('torchvision').datasets.ImageFolder({!r})"
LOADER = "create_loader(ImageDataset(parser), num_workers=2, mean=[0.5] * 3, std=[0.5] * 3)"
PLAIN = """ImageDataset(parser)
    dataset, batches = loader, torch.utils.data.DataLoader(loader, batch_size=None, num_workers=3)"""

Log = list[tuple[int, int, list[int]]]
"""The batches of a rank: epoch, number, and the labels."""


def picture(number: int) -> Image.Image:
    pixels = np.random.default_rng(number).integers(0, 255, (20 + number % 7, 24 + number % 5, 3), np.uint8)
    return Image.fromarray(pixels)


def write_hub(path: Path) -> str:
    """Writes a dataset of Hugging Face, with a column that nobody asks for; returns the expression that opens it."""
    import datasets

    features = {"image": datasets.Image(), "label": datasets.Value("int64"), "text": datasets.Value("string")}
    numbers = range(NUM_EXAMPLES)
    columns = {"image": list(map(picture, numbers)), "label": list(numbers), "text": list(map(str, numbers))}
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns, datasets.Features(features)).save_to_disk(path)
    return HUB.format(str(path))


def write_folder(path: Path) -> str:
    """Writes JPEG files, each of a class of its own."""
    for number in range(NUM_EXAMPLES):
        (path / f"{number:03d}").mkdir(parents=True)
        picture(number).save(path / f"{number:03d}" / "photo.jpg")
    return FOLDER.format(str(path))


class Training:
    """The script in a folder of its own, with rows of our own, whose every rank logs its batches."""

    def __init__(self, folder: Path, rows: str) -> None:
        self.folder, self.script = folder, replaced(SCRIPT, ROWS, rows)
        self.script = replaced(self.script, "optimizer.step()", "optimizer.step()\n            " + "; ".join(LOG))
        folder.mkdir()
        torchvision_build.write_startup(folder / "site")
        path = os.pathsep.join([str(folder / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        offline = {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
        self.environment = {**os.environ, **offline, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}

    def start(self, *words: str, script: str | None = None) -> "subprocess.Popen[bytes]":
        """Starts `python WORDS train.py`, as a terminal does."""
        (self.folder / "train.py").write_text(script or self.script)
        with (self.folder / "complaints").open("wb") as complaints:
            command = [sys.executable, *words, "train.py"]
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stderr=complaints, start_new_session=True
            )

    def run(self, script: str | None = None) -> None:
        """Runs it on one rank, to its end."""
        with self.start(script=script) as process:
            assert process.wait(GRACE_S) == 0, self.complaints()

    def logs(self, num_ranks: int = 1) -> list[Log]:
        """Returns what each rank has logged."""
        paths = [self.folder / f"log-{rank}" for rank in range(num_ranks)]
        return [
            [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
            for path in paths
        ]

    def state(self) -> dict[str, Any]:
        """Returns the loader's state that was saved last."""
        state: dict[str, Any] = torch.load(self.folder / "checkpoint.pt")["loader"]
        return state

    def complaints(self) -> str:
        return (self.folder / "complaints").read_text()


LOG = (
    "state = loader.state_dict()",
    "line = [state['epoch'], state['batches'] - 1, labels.tolist()]",
    "print(__import__('json').dumps(line), file=open(f'log-{rank}', 'a'), flush=True)",
    "__import__('time').sleep(0.1)",
)


def replaced(text: str, old: str, new: str) -> str:
    """Returns a text with its only occurrence of something replaced."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the script of docs/your-own-data.md"
    return text.replace(old, new)


def with_plain_loader(script: str) -> str:
    """Returns the script with torch's DataLoader, whose batches the loop counts."""
    script = replaced(script, LOADER, PLAIN)
    script = replaced(script, "for images, labels in loader:", "for number, (images, labels) in enumerate(batches, 1):")
    script = script.replace("loader.state_dict()", "loader.state_dict(batches_delivered=number)")
    return replaced(replaced(script, "model(images)", "model(images / 255)"), "    loader.close()\n", "")


def stop(process: "subprocess.Popen[bytes]", how: str) -> None:
    """Stops torchrun and its ranks: as Ctrl-C in a terminal does, or all of them by SIGKILL."""
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    if how == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
    for one in tree if how == "SIGKILL" else ():
        one.kill()
    process.wait(GRACE_S)
    assert psutil.wait_procs(tree[1:], GRACE_S)[1] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("write", "how", "is_plain"),
    [pytest.param(write_hub, "Ctrl-C", True, marks=pytest.mark.campaign), (write_folder, "SIGKILL", False)],
    ids=["Hugging Face, Ctrl-C, DataLoader", "ImageFolder, SIGKILL, three workers"],
)
def test_the_script_of_the_docs_goes_on_in_another_world(write: Any, how: str, is_plain: bool, tmp_path: Path) -> None:
    rows = write(tmp_path / "rows")
    training, unbroken = Training(tmp_path / "training", rows), read_unbroken(rows)
    assert [batch[:2] for batch in unbroken] == [(e, b) for e in range(NUM_EPOCHS) for b in range(NUM_BATCHES)]
    for epoch in range(NUM_EPOCHS):
        labels = [label for number, _, labels in unbroken if number == epoch for label in labels]
        assert sorted(labels[:NUM_EXAMPLES]) == list(range(NUM_EXAMPLES))

    with training.start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2") as process:
        wait_for_batches(training, process)
        stop(process, how)
    state, (first, second) = training.state(), training.logs(num_ranks=2)
    before = [
        (*one[:2], one[2] + other[2])
        for one, other in zip(first, second, strict=False)
        if (one[0], one[1]) < (state["epoch"], state["batches"])
    ]
    (training.folder / "log-0").unlink()
    other = training.script.replace("num_workers=2", "num_workers=3")
    training.run(with_plain_loader(training.script) if is_plain else other)
    assert_equal(before + training.logs()[0], unbroken)


def read_unbroken(rows: str) -> Log:
    """Returns what one rank reads of the rows that an expression opens, in this process."""
    held = torchvision_build.declare_where_needed()
    parser = ParserMapStyle(eval(rows), is_training=True, batch_size=GLOBAL_BATCH, preprocess=TrainPreprocess(size=32))
    del held
    with create_loader(ImageDataset(parser)) as loader:
        return [
            (epoch, number, labels.tolist()) for epoch in range(NUM_EPOCHS) for number, (_, labels) in enumerate(loader)
        ]


def wait_for_batches(training: Training, process: "subprocess.Popen[bytes]") -> None:
    ends_at = time.monotonic() + GRACE_S
    while len(training.logs()[0]) <= NUM_BEFORE:
        assert process.poll() is None, training.complaints()
        assert time.monotonic() < ends_at, "no batch came"
        time.sleep(0.02)


def assert_equal(came: Sequence[Any], unbroken: Sequence[Any]) -> None:
    """Fails with what is lost, and what comes twice."""
    places = [tuple(batch[:2]) for batch in came]
    assert places == [tuple(batch[:2]) for batch in unbroken]
    assert list(came) == list(unbroken)
