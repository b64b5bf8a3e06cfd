"""Datasets of ArrayRecord files come by URL as from a local copy, which the package array_record reads."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from conftest import RunPython
from numbered_episodes import NAME, OFFSETS
from servers.faulty_server import Fault, FaultyFolder
from servers.s3_server import S3Server
from storage.made_shards import write_array_record
from tfds_fixtures import change_format

from tfds_torch.engines.batch import Batch
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.images.preprocess import TrainPreprocess
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.windows import Windows
from tfds_torch.plan.world import World
from tfds_torch.remote.__main__ import run
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.tfrecord.framing import read_records
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import create_loader

Serve = Callable[[Path | str], str]
BLOCKS = ReadOptions(block_records=4, shuffle_buffer=8)
TRAINING: dict[str, Any] = {"is_training": True, "batch_size": 4, "preprocess": TrainPreprocess(size=8)}
SHARD = "numbered-train.array_record-00003-of-00009"  # 5 records, the first one is example 7.


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, numbered_root: str) -> Path:
    """Holds the datasets of `numbered_root` as ArrayRecord files."""
    folder = tmp_path_factory.mktemp("array_record") / "numbered"
    shutil.copytree(numbered_root, folder)
    for path in folder.rglob("*.tfrecord-*"):
        write_array_record(path.with_name(path.name.replace("tfrecord", "array_record")), list(read_records(path)))
        path.unlink()
    for info in folder.rglob("dataset_info.json"):
        change_format(info.parent, "array_record")
    return folder


def of_batch(batch: Batch) -> list[Any]:
    return [np.asarray(batch.image).tolist(), np.asarray(batch.label).tolist(), batch.index.tolist(), list(batch.id)]


def read_epochs(parser: DatasetParser, world: World = World(), start_batch: int = 0) -> list[Any]:
    fields = ("image", "label", "id")
    epochs = [parser.batches(world, epoch, 0 if epoch else start_batch, fields=fields) for epoch in range(2)]
    return [[of_batch(batch) for batch in batches] for batches in epochs]


def labels(parser: DatasetParser) -> list[int]:
    return [label for batch in parser.batches(fields=("label",)) for label in np.asarray(batch.label).tolist()]


def shard(server: FaultyFolder) -> Path:
    (path,) = server.folder.rglob(SHARD)
    return path


# What comes is what comes of a local copy.


@pytest.mark.parametrize(
    ("split", "read"),
    [
        *(("train", read) for read in (BLOCKS, ReadOptions(), ReadOptions(block_records=None))),
        *((split, BLOCKS) for split in ("train[10%:50%]", "train[3:30]+train[35:]")),
    ],
    ids=str,
)
def test_batches_are_those_of_a_local_copy(serve: Serve, root: Path, split: str, read: ReadOptions) -> None:
    far = ParserTfds(serve(root), "numbered:1.0.0", split, read=read, **TRAINING)
    assert far.read_mode(World()) == "index"
    near = ParserTfds(root, "numbered", split, read=far.read, **TRAINING)
    assert far.fingerprint == near.fingerprint
    assert read_epochs(far) == read_epochs(near)
    world = World(1, 2, 1, 2)
    assert read_epochs(far, world, 1) == read_epochs(near, world, 1)
    assert np.array_equal(far[5].image, near[5].image)
    assert far.ids(np.arange(3)) == near.ids(np.arange(3))
    assert far.source.find(far.ids(np.array([2]))[0]) == 2


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_states_go_from_a_local_copy_to_the_server_and_back(serve: Serve, root: Path, start: str) -> None:
    roots = {"far": serve(root), "near": str(root)}

    def make(where: str, num_workers: int) -> Any:
        parser = ParserTfds(roots[where], "numbered:1.0.0", read=BLOCKS, **TRAINING)
        context: dict[str, Any] = {"multiprocessing_context": start} if num_workers else {}
        return create_loader(ImageDataset(parser, fields=("label", "index")), num_workers=num_workers, **context)

    def rows(batches: Any) -> list[Any]:
        return [[value.tolist() for value in batch] for batch in batches]

    with make("near", 0) as loader:
        whole = rows(loader)
    state: str | None = None
    found: list[Any] = []
    for where, num_workers, stop in (("near", 0, 3), ("far", 2, 6), ("far", 0, 8), ("near", 2, len(whole))):
        with make(where, num_workers) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(state))
            batches = iter(loader)
            found += rows(next(batches) for _ in range(stop - len(found)))
            state = json.dumps(loader.state_dict())
    assert found == whole


def test_windows_of_episodes_come_as_from_a_local_copy(serve: Serve, root: Path) -> None:
    windows = Windows("steps", offsets={"number": OFFSETS, "name": OFFSETS})
    arguments: dict[str, Any] = {"is_training": True, "batch_size": 4, "windows": windows, "read": BLOCKS}
    far = ParserTfds(serve(root), f"{NAME}:1.0.0", **arguments)
    near = ParserTfds(root, f"{NAME}:1.0.0", **arguments)
    assert far.fingerprint == near.fingerprint

    def read(parser: ParserTfds) -> list[Any]:
        return [
            [batch.index.tolist(), *(np.asarray(batch.features[name]).tolist() for name in ("number", "name"))]
            for batch in parser.batches(epoch=1, fields=("number", "name"))
        ]

    assert read(far) == read(near)


def test_a_bucket_is_read_and_needs_no_index(
    s3_server: S3Server, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = s3_server.fill(root / "numbered", "array-records", "numbered")
    assert run(["index", f"{url}/1.0.0"]) == 2
    assert (
        "numbered:1.0.0 needs no index: its ArrayRecord files hold where their records lie" in capsys.readouterr().err
    )
    parser = ParserTfds(None, f"{url}/1.0.0", batch_size=1, read=BLOCKS)
    assert parser[20].label == 20
    assert labels(parser) == list(range(41))


def test_the_index_of_steps_is_written_beside(
    s3_server: S3Server, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = s3_server.fill(root / NAME, "array-record-episodes", NAME)
    assert run(["index", f"{url}/1.0.0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["refusal"], found["sequences"]) == (None, ["steps"])
    assert found["num_bytes"] > 0


LOADED = """
print(*(name in sys.modules for name in ("tensorflow", "obstore")))
"""
READ_BY_A_PARSER = f"""
import sys
from tfds_torch import ParserTfds

print(len(list(ParserTfds(sys.argv[1], "numbered:1.0.0", is_training=True, batch_size=4).batches())))
{LOADED}"""
READ_BY_LOADERS = f"""
import sys
from tfds_torch import ImageDataset, ParserTfds, create_loader

def count_loaded(image):
    return "tensorflow" in sys.modules

if __name__ == "__main__":
    parser = ParserTfds(sys.argv[1], "numbered:1.0.0", is_training=True, batch_size=4)
    for num_workers in (0, 2):
        dataset = ImageDataset(parser, transform=count_loaded)
        with create_loader(dataset, num_workers=num_workers, multiprocessing_context=None) as loader:
            print([int(images.sum()) for images, labels in loader].count(0))
    {LOADED.strip()}
"""


@pytest.mark.parametrize(
    ("code", "counts"),
    [(READ_BY_A_PARSER, ["11"]), pytest.param(READ_BY_LOADERS, ["11", "11"], marks=pytest.mark.slow)],
    ids=["parser", "loaders"],
)
def test_no_process_loads_tensorflow(
    serve: Serve, root: Path, run_python: RunPython, tmp_path: Path, code: str, counts: list[str]
) -> None:
    (tmp_path / "script.py").write_text(code)
    done = run_python(str(tmp_path / "script.py"), serve(root))
    assert done.stdout.split() == [*counts, "False", "False"], done.stderr


def test_loaders_share_a_cache_that_holds_a_part_of_the_split(serve: Serve, root: Path, tmp_path: Path) -> None:
    remote = RemoteOptions(cache_dir=tmp_path, max_bytes=600_000)  # Four shards of nine.
    parser = ParserTfds(serve(root), "numbered:1.0.0", read=BLOCKS, remote=remote, **TRAINING)
    near = ParserTfds(root, "numbered:1.0.0", read=parser.read, **TRAINING)
    for num_workers in (0, 3):
        with (
            create_loader(ImageDataset(parser, fields=("index",)), num_workers=num_workers) as loader,
            create_loader(ImageDataset(near, fields=("index",)), num_workers=0) as other,
        ):
            for _ in range(3):
                assert [batch[0].tolist() for batch in loader] == [batch[0].tolist() for batch in other]
    assert sum(path.stat().st_size for path in tmp_path.glob("objects/*/*-*")) <= 600_000


def test_epochs_fetch_each_byte_once(serve: Serve, faulty_server: FaultyFolder, root: Path) -> None:
    far = ParserTfds(serve(root), "numbered:1.0.0", read=BLOCKS, **TRAINING)
    read_epochs(far)
    shards = shard(faulty_server).parent.glob("*-train.array_record-*")
    assert far.source.files.store.stats()["bytes_fetched"] == sum(path.stat().st_size for path in shards)


# Damage.


def open_far(url: str, **options: Any) -> ParserTfds:
    read = ReadOptions(block_records=4, shuffle_buffer=8, **options)
    return ParserTfds(url, "numbered:1.0.0", read=read, **{**TRAINING, "batch_size": 41})


def test_a_damaged_record_is_named_or_replaced(serve: Serve, faulty_server: FaultyFolder, root: Path) -> None:
    url = serve(root)
    path = shard(faulty_server)
    record = ParserTfds(root, "numbered:1.0.0").source.records(np.array([9]))[0]
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for one in ParserTfds(root, "numbered:1.0.0").source.records(np.arange(7, 12)):
        writer.write(one)
    writer.close()
    content = bytearray(path.read_bytes())
    content[content.index(record) + 20] ^= 1
    path.write_bytes(content)
    said = rf"example 9 of numbered:1\.0\.0: {url}/numbered/1\.0\.0/{SHARD}: record 2: "
    with pytest.raises(CorruptRecordError, match=said):
        labels(open_far(url))
    with (
        create_loader(ImageDataset(open_far(url)), num_workers=2) as loader,
        pytest.raises(CorruptRecordError, match=rf"{SHARD}: record 2"),
    ):
        list(loader)
    assert sorted(set(labels(open_far(url, on_error="replace")))) == sorted(set(range(41)) - {9})


def test_files_that_were_damaged_in_the_cache_are_fetched_again(serve: Serve, root: Path) -> None:
    url = serve(root)
    assert sorted(labels(open_far(url))) == list(range(41))
    parser = open_far(url)
    blocks = list(parser.source.files.store.options.folder.glob("objects/*/*-*"))
    assert blocks
    for block in blocks:
        content = bytearray(block.read_bytes())
        content[100] ^= 1
        block.write_bytes(content)
    assert sorted(labels(parser)) == list(range(41))


def test_an_example_that_was_written_wrong_is_told_from_a_damaged_one(
    serve: Serve, faulty_server: FaultyFolder, root: Path
) -> None:
    url = serve(root)
    path = shard(faulty_server)
    numbers = np.random.default_rng(1)
    write_array_record(path, [numbers.bytes(5000) for _ in range(5)])
    with pytest.raises(CorruptRecordError, match=rf"{SHARD}: record . .*decoded, though its checksum is right"):
        labels(open_far(url))


def test_a_file_that_is_damaged_on_the_way_is_fetched_again(
    serve: Serve, faulty_server: FaultyFolder, root: Path
) -> None:
    url = serve(root)
    faulty_server.fault(f"*{SHARD}", Fault(flipped_byte=300), times=1, method="GET")
    assert sorted(labels(open_far(url))) == list(range(41))


def test_a_missing_and_a_cut_shard_are_named(serve: Serve, faulty_server: FaultyFolder, root: Path) -> None:
    url = serve(root)
    path = shard(faulty_server)
    whole = path.read_bytes()
    path.write_bytes(whole[: -(1 << 16)])
    with pytest.raises(ShardError, match=rf"{url}/numbered/1\.0\.0/{SHARD} holds 0 of 5 examples"):
        labels(open_far(url))
    path.unlink()
    with pytest.raises(ShardError, match=rf"{url}/numbered/1\.0\.0/{SHARD}"):
        labels(open_far(url))


def test_streams_are_refused(serve: Serve, root: Path) -> None:
    far = ParserTfds(serve(root), "numbered:1.0.0", batch_size=4)
    with pytest.raises(ConfigError, match=r"streams files by tensorflow, which does not open http://.*-00000-of-00009"):
        far.with_read(ReadOptions(mode="examples")).batches()
