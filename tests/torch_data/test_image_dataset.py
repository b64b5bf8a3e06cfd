"""ImageDataset behind real DataLoaders."""

import copy
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from itertools import combinations
from math import ceil
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed
from PIL import Image
from tfds_fixtures import record_offsets, shard_files
from torch.utils.data import DataLoader, IterableDataset

from tfds_torch import (
    ImageDataset,
    IndexedImageDataset,
    ParserTfds,
    World,
    create_loader,
)
from tfds_torch.errors import ConfigError
from torch_data import reading, scenarios
from torch_data.conftest import NUM_PHOTOS
from torch_data.reading import LEDGER, rows_of

slow = pytest.mark.slow

BATCH_SIZE = 8


def training_dataset(root: Path, **arguments: Any) -> ImageDataset:
    return ImageDataset(scenarios.training_parser(root), **{"fields": LEDGER, **arguments})


def evaluation_parser(root: Path, **arguments: Any) -> ParserTfds:
    return ParserTfds(root, **{"name": "photos", "batch_size": BATCH_SIZE, **arguments})


# What an example is


def test_an_example_is_a_pil_image_and_an_int(data_root: Path) -> None:
    parser = evaluation_parser(data_root)
    examples = reading.read_examples(ImageDataset(parser))
    names = parser.filenames()
    assert len(examples) == len(names) == NUM_PHOTOS
    for (image, label), name in zip(examples, names, strict=True):
        assert isinstance(image, Image.Image)
        assert image.mode == "RGB"
        assert 470 <= max(image.size) <= 520
        assert type(label) is int
        assert name.startswith(parser.class_names[label])


def test_transforms_and_fields_come_in_the_order_asked_for(data_root: Path) -> None:
    fields = ("file_name", "image", "index", "label", "valid", "id")
    parser = evaluation_parser(data_root, remainder="pad")
    dataset = ImageDataset(parser, reading.size_of, reading.name_of, fields)
    examples = reading.read_examples(dataset)
    assert len(examples) == len(dataset) == 64
    for number, (file_name, image, index, label, valid, id_) in enumerate(examples):
        assert (index, valid) == (number % NUM_PHOTOS, number < NUM_PHOTOS)
        assert [type(index), type(valid), type(id_), type(file_name)] == [int, bool, str, str]
        assert image[0] == "RGB"
        # Padding, too, goes through the target transform.
        assert label == (f"class {parser.class_to_idx[file_name.partition('_')[0]]}" if valid else "class -100")
        shard, _, record = id_.partition("__")
        assert (data_root / "photos" / "1.0.0" / shard).is_file()
        assert record.isdigit()
    assert len({id_ for *_, id_ in examples}) == NUM_PHOTOS


def test_gray_digits_come_in_every_image_mode(data_root: Path) -> None:
    images = {}
    for mode in ("RGB", "L", "RGBA", None):
        parser = evaluation_parser(data_root, name="digits", split="test", image_mode=mode)
        examples = reading.read_examples(ImageDataset(parser), 5)
        assert [label in range(10) for _, label in examples] == [True] * 5
        images[mode] = [image for image, _ in examples]
    for mode, expected in (("RGB", "RGB"), ("L", "L"), ("RGBA", "RGBA"), (None, "L")):
        assert {(image.mode, image.size) for image in images[mode]} == {(expected, (8, 8))}
    for rgb, gray, rgba, stored in zip(*images.values(), strict=True):
        assert gray.tobytes() == stored.tobytes() == rgb.getchannel("G").tobytes() == rgba.getchannel("R").tobytes()
        assert rgba.getchannel("A").getextrema() == (255, 255)
        assert gray.getextrema()[1] > 0


def test_pil_images_have_no_default_collation(data_root: Path) -> None:
    message = r"^create_loader cannot make batches of PIL images.*a transform that ends in tensors"
    with pytest.raises(ConfigError, match=message):
        create_loader(ImageDataset(evaluation_parser(data_root)))


class Around(IterableDataset[Any]):
    """Transforms what another dataset yields, as timm's does."""

    def __init__(self, inner: ImageDataset) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return ((torch.tensor(image.size), label) for image, label in self.inner)


def test_a_dataset_around_ours_may_make_tensors_of_pil_images(data_root: Path) -> None:
    around = Around(ImageDataset(evaluation_parser(data_root)))
    sizes, labels = next(iter(DataLoader(around, 8, num_workers=1)))
    assert sizes.shape == (8, 2)
    assert labels.shape == (8,)


@pytest.mark.parametrize("kind", [ImageDataset, IndexedImageDataset])
def test_workers_of_a_plain_loader_watch_their_parent(kind: Any, data_root: Path) -> None:
    loader = DataLoader(kind(evaluation_parser(data_root), reading.is_watching, fields=("image",)), 8, num_workers=1)
    (watching,) = next(iter(loader))
    assert watching.tolist() == [True] * 8


@pytest.mark.parametrize("fields", [("image",), ("label",)])
def test_a_loader_tells_the_time_of_transforms_apart(fields: tuple[str, ...], data_root: Path) -> None:
    dataset = ImageDataset(evaluation_parser(data_root), reading.is_watching, reading.name_of, fields)
    with create_loader(dataset, 1) as loader:
        assert len(list(loader)) == 8
        stats = loader.stats()
    assert 0 < stats.transform_s < stats.fetch_s
    assert sum(worker.transform_s for worker in stats.workers) == stats.transform_s


# How many come, and which

LENGTHS = [
    pytest.param(arguments, world, batch_size, id=f"{kind}-R{world.num_replicas}-B{batch_size}")
    for kind, arguments, world in (
        ("wrap", {"is_training": True}, World()),
        ("wrap", {"is_training": True}, World(1, 3)),
        ("drop", {"is_training": True, "remainder": "drop"}, World()),
        ("repeats", {"is_training": True, "repeats": 2}, World()),
        ("keep", {}, World()),
        ("pad", {}, World(1, 2)),
        ("pad-one-rank", {"remainder": "pad"}, World()),
    )
    for batch_size in (1, 7, 60, 61)
] + [pytest.param({"is_training": True}, World(2, 3), 100, id="wrap-more-than-there-are")]


@pytest.mark.filterwarnings("ignore:.* fewer than a batch of ")  # Some global batches are larger than the split.
@pytest.mark.parametrize(("arguments", "world", "batch_size"), LENGTHS)
def test_lengths_equal_what_comes_without_workers(
    arguments: dict[str, Any], world: World, batch_size: int, data_root: Path
) -> None:
    parser = evaluation_parser(data_root, batch_size=batch_size, **arguments)
    dataset = ImageDataset(parser, fields=LEDGER, world=world)
    (rows,), len_loader, len_dataset = reading.read_loader(dataset, batch_size)
    assert len(rows) == len_loader == len(DataLoader(dataset, batch_size))
    assert sum(map(len, rows)) == len_dataset == len(dataset)
    assert rows == reading.planned_rows(parser, world, 0, 0)
    if arguments.get("remainder") != "drop" and world.num_replicas == 1:
        assert {index for batch in rows for index, _, valid, _ in batch if valid} == set(range(NUM_PHOTOS))


@pytest.mark.parametrize(
    ("arguments", "world", "num_workers"),
    [
        pytest.param({"batch_size": 7}, World(), 2, id="keep", marks=slow),
        pytest.param({"is_training": True, "batch_size": 7}, World(), 2, id="wrap", marks=slow),
        pytest.param({"is_training": True, "batch_size": 7, "remainder": "drop"}, World(), 3, id="drop", marks=slow),
        pytest.param({"batch_size": 7}, World(1, 2), 2, id="pad", marks=slow),
        pytest.param({"batch_size": 7, "split": "train[:5]"}, World(), 2, id="fewer-batches-than-workers"),
    ],
)
def test_exactly_the_planned_batches_come_from_workers(
    arguments: dict[str, Any], world: World, num_workers: int, data_root: Path
) -> None:
    parser = evaluation_parser(data_root, **arguments)
    dataset = ImageDataset(parser, fields=LEDGER, world=world)
    loader = DataLoader(dataset, 7, num_workers=num_workers)
    rows = rows_of(loader)
    assert rows == reading.planned_rows(parser, world, num_workers, 0)
    assert len(rows) == len(loader)
    assert sum(map(len, rows)) == len(dataset)
    if not parser.is_training and world == World():
        assert sorted(row[0] for batch in rows for row in batch) == list(range(parser.num_examples))
        assert len({row[3] for batch in rows for row in batch}) == parser.num_examples


def test_evaluation_without_batch_size_takes_any_loader_batch_size(data_root: Path) -> None:
    dataset = ImageDataset(evaluation_parser(data_root, batch_size=None), fields=LEDGER)
    (rows,), len_loader, len_dataset = reading.read_loader(dataset, 9)
    assert (len(rows), len_dataset) == (len_loader, NUM_PHOTOS) == (ceil(NUM_PHOTOS / 9), NUM_PHOTOS)
    assert [row[0] for batch in rows for row in batch] == list(range(NUM_PHOTOS))


# Epochs


@pytest.mark.parametrize(
    ("num_workers", "method", "persistent", "num_repetitions"),
    [
        (0, None, False, 2),  # Without workers torch refuses the other two.
        (2, "fork", True, 2),
        # What is planned is read in another process, and the same for all of these: each repeats the others.
        pytest.param(2, "fork", False, 1, marks=slow),
        pytest.param(2, "spawn", True, 1, marks=slow),
        pytest.param(2, "spawn", False, 1, marks=pytest.mark.campaign),
    ],
)
def test_three_different_epochs_and_the_same_again_in_every_repetition(
    num_workers: int, method: str | None, persistent: bool, num_repetitions: int, data_root: Path
) -> None:
    parser = scenarios.training_parser(data_root)
    planned = reading.planned_epochs(parser, num_workers, 3)
    assert all(one != other for one, other in combinations(planned, 2))
    before = set(multiprocessing.active_children())
    for repetition in range(num_repetitions):
        dataset = training_dataset(data_root)
        if num_workers:
            loader = DataLoader(
                dataset,
                BATCH_SIZE,
                num_workers=num_workers,
                multiprocessing_context=method,
                persistent_workers=persistent,
            )
            epochs = [rows_of(loader) for _ in range(3)]
            del loader
        else:
            epochs, *_ = reading.read_loader(dataset, BATCH_SIZE, 3)
        assert epochs == planned, f"repetition {repetition}"
    assert set(multiprocessing.active_children()) == before


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=slow)])
def test_persistent_workers_go_on_after_a_break_and_obey_set_epoch(method: str, data_root: Path) -> None:
    dataset = training_dataset(data_root)
    loader = DataLoader(dataset, BATCH_SIZE, num_workers=2, multiprocessing_context=method, persistent_workers=True)
    epochs = [rows_of(loader)]
    pids = worker_pids()
    next(iter(loader))  # Epoch 1, broken off.
    epochs.append(rows_of(loader))
    for epoch in (5, 5, 0):
        dataset.set_epoch(epoch)
        epochs.append(rows_of(loader))
    assert worker_pids() == pids
    planned = [reading.planned_rows(dataset.parser, World(), 2, epoch) for epoch in (0, 2, 5, 5, 0)]
    assert epochs == planned


def test_epochs_without_workers_go_on_after_a_break_and_obey_set_epoch(data_root: Path) -> None:
    dataset = training_dataset(data_root)
    epochs = reading.read_life(dataset, BATCH_SIZE)
    planned = [reading.planned_rows(dataset.parser, World(), 0, epoch) for epoch in (0, 2, 5, 5)]
    assert epochs == planned


@slow
def test_workers_that_come_and_go_advance_after_a_break_and_obey_set_epoch(data_root: Path) -> None:
    dataset = training_dataset(data_root)
    loader, other = (DataLoader(dataset, BATCH_SIZE, num_workers=2) for _ in range(2))
    next(iter(loader))  # Epoch 0, broken off.
    epochs = [rows_of(loader), rows_of(other)]  # Two loaders that take turns.
    dataset.set_epoch(0)
    epochs.append(rows_of(loader))
    planned = [reading.planned_rows(dataset.parser, World(), 2, epoch) for epoch in (1, 2, 0)]
    assert epochs == planned


@pytest.mark.parametrize("epoch", [-1, "3", 1.5, None])
def test_set_epoch_refuses_other_values_than_epochs(epoch: Any, data_root: Path) -> None:
    with pytest.raises(ConfigError, match=r"set_epoch: epoch=.* must be an integer >= 0"):
        training_dataset(data_root).set_epoch(epoch)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))], ids=["deepcopy", "pickle"]
)
def test_a_copy_has_its_own_epoch(duplicate: Callable[[ImageDataset], ImageDataset], data_root: Path) -> None:
    dataset = training_dataset(data_root)
    dataset.set_epoch(3)
    copied, other = duplicate(dataset), duplicate(dataset)
    other.set_epoch(1)
    assert (len(copied), copied.fields, repr(copied.parser)) == (len(dataset), LEDGER, repr(dataset.parser))
    for one, epoch in ((dataset, 3), (copied, 3), (other, 1)):
        (rows,), *_ = reading.read_loader(one, BATCH_SIZE)
        assert rows == reading.planned_rows(dataset.parser, World(), 0, epoch)


# Threads


def test_a_second_thread_is_refused_and_the_first_one_gets_everything(data_root: Path) -> None:
    dataset = training_dataset(data_root, fields=("index",))
    for iterable, size in ((dataset, 64), (DataLoader(dataset, BATCH_SIZE), 8)):
        taken, told = reading.take_from_two_threads(iterable)
        assert len(taken) == size
        (message,) = told
        assert message.startswith("Two threads take from the same iterator of ImageDataset(photos:1.0.0, train): ")


# The rank


def test_the_environment_names_the_rank(data_root: Path) -> None:
    dataset = training_dataset(data_root)
    environment = {"RANK": "1", "WORLD_SIZE": "3"}
    (rows,), len_loader, len_dataset = reading.read_with_environment(dataset, environment)
    assert rows == reading.planned_rows(dataset.parser, World(1, 3), 0, 0)
    assert (len_loader, len_dataset) == (3, 24)
    assert len(dataset) == 64  # Here no rank is named.

    alone = training_dataset(data_root, world=World())  # An explicit world beats it.
    (rows,), len_loader, len_dataset = reading.read_with_environment(alone, environment)
    assert rows == reading.planned_rows(dataset.parser, World(), 0, 0)
    assert (len_loader, len_dataset) == (8, 64)


def test_an_explicit_world_beats_torch_distributed_and_the_environment(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, explicit = training_dataset(data_root), training_dataset(data_root, world=World(0, 2))
    assert (len(dataset), len(explicit)) == (64, 32)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert (len(dataset), len(explicit)) == (24, 32)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    with pytest.raises(ConfigError, match="reports rank 3 of 4"):
        len(dataset)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert (len(dataset), len(explicit)) == (16, 32)


def test_half_a_rank_in_the_environment_is_an_error(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConfigError, match="sets RANK=1 but not WORLD_SIZE"):
        len(training_dataset(data_root))


@slow
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.campaign)])
def test_ranks_of_torch_distributed_read_their_own_shares(
    method: str, data_root: Path, root: Path, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        "GLOO_SOCKET_IFNAME": "lo",
        reading.MARK: mark,
    }
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                scenarios.__file__,
                "train_as_rank",
                data_root,
                str(rank),
                "2",
                tmp_path / "store",
                method,
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    parser = scenarios.training_parser(data_root)
    for rank, (output, _) in enumerate(outputs):
        result = json.loads(output.splitlines()[-1])
        planned = reading.planned_rows(parser, World(rank, 2), 2, 0)
        assert as_rows(result["rows"]) == planned
        assert (result["len"], result["len alone"]) == (len(planned), 8)
    assert psutil.wait_procs(reading.marked_processes(mark), timeout=60)[1] == []


# Whole processes


@slow
def test_a_training_process_with_workers_loads_no_tensorflow_and_leaves_nothing(
    data_root: Path, run_scenario: Callable[..., Any]
) -> None:
    result = run_scenario(scenarios.train_with_workers, data_root)
    parser = scenarios.training_parser(data_root)
    assert result["tensorflow"] is False
    assert result["children"] == []
    assert result["len"] == 8
    assert as_rows(result["rows"]) == reading.planned_rows(parser, World(), 2, 0)
    assert result["names"] == parser.filenames()


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(("0", "2"), marks=slow),
        pytest.param(("2", "0", "break", "2"), marks=slow),
        pytest.param(("run tf", "break", "2"), marks=slow),
        pytest.param(("import tf", "2"), marks=slow),
    ],
    ids="-".join,
)
def test_a_notebook_may_read_by_itself_and_with_workers(
    steps: tuple[str, ...], data_root: Path, run_scenario: Callable[..., Any]
) -> None:
    results = run_scenario(scenarios.use_notebook, data_root, *steps)
    readings = [(step, rows) for step, rows in zip(steps, results, strict=True) if "tf" not in step]
    assert all(rows for _, rows in readings)
    parser = scenarios.training_parser(data_root)
    for epoch, (step, rows) in enumerate(readings):
        num_workers = 2 if step == "break" else int(step)
        planned = reading.planned_rows(parser, World(), num_workers, epoch)
        assert as_rows(rows) == (planned[:1] if step == "break" else planned)


@slow
def test_workers_of_a_fork_server_share_the_epoch(data_root: Path, run_scenario: Callable[..., Any]) -> None:
    epochs = run_scenario(scenarios.train_with_forkserver, data_root)
    planned = reading.planned_epochs(scenarios.training_parser(data_root), 2, 3)
    assert [as_rows(rows) for rows in epochs] == planned


# Damage


def _flip_a_bit(data: bytes, offsets: list[int]) -> bytes:
    middle = (offsets[-2] + offsets[-1]) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def test_errors_of_workers_arrive_as_our_own_types_with_the_file(
    data_root: Path, tmp_path: Path, run_scenario: Callable[..., Any]
) -> None:
    changes: dict[str, Callable[[bytes, list[int]], bytes | None]] = {
        "one-record-less": lambda data, offsets: data[: offsets[-2]],
        "cut-in-a-record": lambda data, offsets: data[: offsets[-1] - 5],
        "missing": lambda data, offsets: None,
    }
    damaged = {name: damage(data_root, tmp_path / name, change) for name, change in changes.items()}
    found = run_scenario(scenarios.meet_errors, data_root, *(copied for copied, _ in damaged.values()))
    for name, (copied, path) in damaged.items():
        type_name, message = found[str(copied)]
        assert type_name == ("CorruptRecordError" if name == "cut-in-a-record" else "ShardError")
        assert str(path) in message
        assert "Caught" in message  # torch's words: it came from a worker.
    one_less, promised = found[str(damaged["one-record-less"][0])][1], len(record_offsets(shard_of(data_root))) - 1
    assert f"holds {promised - 1} of {promised} examples" in one_less
    assert found["no batch_size"][0] == "ConfigError"
    assert "Evaluation with 2 workers needs batch_size" in found["no batch_size"][1]
    assert found["tensorflow"] == ["False"]


@slow
def test_a_flipped_bit_met_by_a_worker_arrives_with_the_file(
    data_root: Path, tmp_path: Path, run_scenario: Callable[..., Any]
) -> None:
    copied, path = damage(data_root, tmp_path / "flipped", _flip_a_bit)
    found = run_scenario(scenarios.meet_errors, data_root, copied)
    type_name, message = found[str(copied)]
    assert type_name == "CorruptRecordError"
    assert str(path) in message
    assert found["tensorflow"] == ["False"]


# Names


def test_filenames_are_those_of_the_examples_in_the_order_of_index(data_root: Path) -> None:
    dataset = ImageDataset(evaluation_parser(data_root), fields=("index", "file_name"))
    names = dataset.filenames()
    assert reading.read_examples(dataset) == list(enumerate(names))
    assert dataset.filenames(basename=True) == names
    directory = data_root / "photos" / "1.0.0"
    assert dataset.filenames(absolute=True) == [str(directory / name) for name in names]


def test_filenames_fall_back_to_ids(data_root: Path) -> None:
    dataset = ImageDataset(evaluation_parser(data_root, name="digits", split="test[100:110]"), fields=("id",))
    assert [(name,) for name in dataset.filenames()] == reading.read_examples(dataset)


def as_rows(listed: list[list[list[Any]]]) -> reading.Rows:
    """Returns batches as they were before they became JSON."""
    return [[tuple(row) for row in batch] for batch in listed]


def worker_pids() -> set[int]:
    return {process.pid for process in multiprocessing.active_children()}


def shard_of(root: Path) -> Path:
    """Returns the shard that `damage` changes."""
    return shard_files(root / "photos" / "1.0.0", "train")[3]


def damage(data_root: Path, copied: Path, change: Callable[[bytes, list[int]], bytes | None]) -> tuple[Path, Path]:
    """Returns a copy of the data with one shard changed (None: removed), and that shard."""
    shutil.copytree(data_root / "photos", copied / "photos")
    path = shard_of(copied)
    data = change(path.read_bytes(), record_offsets(path))
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    return copied, path
