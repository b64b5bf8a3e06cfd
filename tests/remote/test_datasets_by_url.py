"""ParserTfds over URLs gives what it gives of a local copy, and says what is not there."""

import multiprocessing
import pickle
import shutil
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from conftest import RunPython
from servers.faulty_server import Fault, FaultyFolder
from servers.gcs_server import GCSServer
from servers.s3_server import S3Server
from servers.uploads import ask
from tfds_fixtures import Datasets, write_numbered
from torch.utils.data import DataLoader

from tfds_torch.engines.batch import Batch
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, DatasetNotFoundError, ShardError
from tfds_torch.images.preprocess import TrainPreprocess
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.order_blocks import OrderBlocks
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.tfrecord.framing import FRAME_SIZE
from tfds_torch.storage.tfrecord.remote_index import RemoteRecordIndex
from tfds_torch.storage.tfrecord.source import TfrecordSource
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import create_loader

Serve = Callable[[Path | str], str]
Publish = Callable[[str, Path | str], str]
BLOCKS = ReadOptions(block_records=4, shuffle_buffer=8)
TRAINING: dict[str, Any] = {"is_training": True, "batch_size": 4, "preprocess": TrainPreprocess(size=8)}
FIELDS = ("image", "label", "valid", "index", "id")


def rows(batches: Any) -> list[Any]:
    """Returns the values of batches, for comparison."""
    return [[value.tolist() if hasattr(value, "tolist") else list(value) for value in batch] for batch in batches]


def of_batch(batch: Batch) -> list[Any]:
    return [np.asarray(batch.image).tolist(), np.asarray(batch.label).tolist(), batch.index.tolist(), list(batch.id)]


def read_epochs(parser: DatasetParser, world: World = World(), start_batch: int = 0) -> list[Any]:
    """Returns two epochs of a parser's batches, the first one from a batch on."""
    fields = ("image", "label", "id")
    epochs = [parser.batches(world, epoch, 0 if epoch else start_batch, fields=fields) for epoch in range(2)]
    return [[of_batch(batch) for batch in batches] for batches in epochs]


def put_key(server: S3Server, path: str) -> None:
    """Puts an object in a bucket under a key as it is; clients make another one of odd ones."""
    of_region = "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request"
    ask(f"{server.url}/{quote(path)}", "PUT", b"odd", Authorization=of_region)


# What comes is what comes of a local copy.


@pytest.mark.parametrize("read", [BLOCKS, ReadOptions(), ReadOptions(block_records=None)], ids=str)
@pytest.mark.parametrize("split", ["train", "train[3:30]+train[35:]"])
def test_batches_are_those_of_a_local_copy(serve: Serve, numbered_root: str, split: str, read: ReadOptions) -> None:
    far = ParserTfds(serve(numbered_root), "numbered:1.0.0", split, read=read, **TRAINING)
    assert far.read_mode(World()) == "index"
    near = ParserTfds(numbered_root, "numbered", split, read=far.read, **TRAINING)
    assert far.fingerprint == near.fingerprint
    assert far.num_examples == near.num_examples
    assert far.element_spec == near.element_spec
    assert far.class_names == near.class_names
    assert read_epochs(far) == read_epochs(near)
    world = World(1, 2, 1, 2)
    assert read_epochs(far, world, 1) == read_epochs(near, world, 1)
    assert np.array_equal(far[5].image, near[5].image)
    assert far.ids(np.arange(3)) == near.ids(np.arange(3))


def test_blocks_are_the_default_and_none_is_the_order_of_a_local_copy(serve: Serve, numbered_root: str) -> None:
    url = serve(numbered_root)
    far = ParserTfds(url, "numbered:1.0.0", **TRAINING)
    assert far.read.block_records == round(2**23 / far.mean_example_bytes)
    assert far.read.blocks is not None
    whole = far.with_read(ReadOptions(block_records=None))
    near = ParserTfds(numbered_root, "numbered", **TRAINING)
    assert near.read.blocks is None
    assert read_epochs(whole) == read_epochs(near)


@pytest.mark.parametrize("start", [None, "fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_loaders_deliver_the_same_with_and_without_workers(serve: Serve, numbered_root: str, start: str | None) -> None:
    options = {} if start is None else {"num_workers": 2, "multiprocessing_context": start}

    def read(root: str) -> list[Any]:
        parser = ParserTfds(root, "numbered:1.0.0", read=BLOCKS, **TRAINING)
        with create_loader(ImageDataset(parser, fields=FIELDS), **options) as loader:  # type: ignore[arg-type]
            return [rows(loader) for _ in range(2)]

    far = read(serve(numbered_root))
    assert far == read(numbered_root)
    assert far[0] != far[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plain_dataloader_delivers_the_same(serve: Serve, numbered_root: str, num_workers: int) -> None:
    def read(root: str) -> list[Any]:
        dataset = ImageDataset(ParserTfds(root, "numbered:1.0.0", read=BLOCKS, **TRAINING), fields=FIELDS)
        return rows(DataLoader(dataset, batch_size=None, num_workers=num_workers))

    assert read(serve(numbered_root)) == read(numbered_root)


def test_a_pickled_parser_reads_on(serve: Serve, numbered_root: str) -> None:
    far = ParserTfds(serve(numbered_root), "numbered:1.0.0", read=BLOCKS, **TRAINING)
    expected = read_epochs(far)
    assert read_epochs(pickle.loads(pickle.dumps(far))) == expected


def test_a_process_that_was_forked_after_use_reads_on(serve: Serve, numbered_root: str, own_cache: Path) -> None:
    far = ParserTfds(serve(numbered_root), "numbered:1.0.0", read=BLOCKS, **TRAINING)
    expected = read_epochs(far)
    shutil.rmtree(own_cache / "tfds_torch" / "remote" / "objects")  # What is open may be read, the rest is fetched.
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    children = [context.Process(target=lambda: found.put(read_epochs(far))) for _ in range(2)]
    for child in children:
        child.start()
    assert [found.get(timeout=60) for _ in children] == [expected, expected]
    assert read_epochs(far) == expected
    for child in children:
        child.join(10)
        assert child.exitcode == 0


def test_threads_read_side_by_side(serve: Serve, numbered_root: str) -> None:
    source = ParserTfds(serve(numbered_root), "numbered:1.0.0", read=BLOCKS, **TRAINING).source
    numbers = [np.arange(start, 41, 3) for start in range(12)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda index: source.read(index, ["label"])["label"].tolist(), numbers))
    assert found == [index.tolist() for index in numbers]


@pytest.mark.parametrize("source", ["s3", pytest.param("http", marks=pytest.mark.slow)])
def test_no_process_loads_tensorflow(
    source: str, publish: Publish, own_cache: Path, numbered_root: str, run_python: RunPython, tmp_path: Path
) -> None:
    code = f"""
        import sys
        from tfds_torch import ImageDataset, ParserTfds, create_loader

        def is_loaded(image):
            return int("tensorflow" in sys.modules)

        if __name__ == "__main__":
            parser = ParserTfds({publish(source, numbered_root)!r}, "numbered:1.0.0", is_training=True, batch_size=4)
            for num_workers in (0, 2):
                dataset = ImageDataset(parser, transform=is_loaded)
                with create_loader(dataset, num_workers=num_workers, multiprocessing_context=None) as loader:
                    print([int(images.sum()) for images, labels in loader].count(0))
            print("tensorflow" in sys.modules, "obstore" in sys.modules)
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    # Each Python, the fetcher's too, tells on standard error what it imports.
    done = run_python(str(tmp_path / "script.py"), env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.stdout.split() == ["11", "11", "False", "False"], done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"torch", "obstore"} <= imported, "this one and the fetcher have told"
    assert not {name for name in imported if name.partition(".")[0] == "tensorflow"}


@pytest.mark.parametrize("split", ["train", "train[3:30]+train[35:]", "train[20:]+train[5:9]"])
def test_windows_of_an_order_name_the_blocks_of_their_examples(serve: Serve, numbered_root: str, split: str) -> None:
    source = ParserTfds(serve(numbered_root), "numbered:1.0.0", split, read=BLOCKS, **TRAINING).source
    assert isinstance(source, TfrecordSource)
    assert isinstance(source.files, ObjectFiles)
    index = RemoteRecordIndex(source.table, source.files, 4)
    num_bytes = 0
    for start in range(0, len(source), 4):
        located = index.locate(np.arange(start, min(start + 4, len(source))))
        ends = located.offset + located.length + FRAME_SIZE
        blocks = list(OrderBlocks(source.table, 4).of(start, min(start + 4, len(source))))
        spans = [(file, *index.cuts(file)[number : number + 2].tolist()) for file, number in blocks]
        for file, begin, end in zip(located.file.tolist(), located.offset.tolist(), ends.tolist(), strict=True):
            assert any(file == one and first <= begin and end <= last for one, first, last in spans)
        num_bytes += sum(last - first for _, first, last in spans)
    located = index.locate(np.arange(len(source)))
    assert num_bytes == int((located.length + FRAME_SIZE).sum()), "a block has bytes of other blocks"
    source.follow([(np.array([0, 20]), np.array([4, 24])), (np.array([4]), np.array([8]))])
    assert source.read(np.arange(8), ["label"])["label"].tolist() == [source_label(split, n) for n in range(8)]


def source_label(split: str, number: int) -> int:
    """Returns the label of an example of one of the splits above."""
    first = {"train": 0, "train[3:30]+train[35:]": 3, "train[20:]+train[5:9]": 20}[split]
    return first + number


# Where a dataset lies.


def test_buckets_are_listed_for_the_highest_version(s3_server: S3Server, datasets: Datasets, own_cache: Path) -> None:
    url = s3_server.fill(datasets.root, "listed", "tfds")
    far = ParserTfds(url, "sentences")
    assert far.dataset_name == ParserTfds(datasets.root, "sentences").dataset_name == "sentences:1.0.0"
    assert ParserTfds(url, "sentences:0.*.*").dataset_name == "sentences:0.9.0"
    assert far.data_dir == f"{url}/sentences/1.0.0"
    assert ParserTfds.split_names(url, "sentences") == ParserTfds.split_names(datasets.root, "sentences")
    by_version = ParserTfds(f"{url}/shapes/1.0.0", "shapes")
    assert by_version.fingerprint == ParserTfds(url, "shapes").fingerprint
    assert ParserTfds(None, f"{url}/shapes/1.0.0").class_names == by_version.class_names
    with pytest.raises(
        DatasetNotFoundError, match=r"no dataset 'shape' under s3://listed/tfds\. The nearest names are: s"
    ):
        ParserTfds(url, "shape")
    with pytest.raises(
        DatasetNotFoundError, match=r"'sentences:3\.0\.0' under .* versions of 'sentences' there: 0\.9\.0"
    ):
        ParserTfds(url, "sentences:3.0.0")
    with pytest.raises(DatasetNotFoundError, match=r"is the version directory of shapes:1\.0\.0, which is not 'tiny'"):
        ParserTfds(f"{url}/shapes/1.0.0", "tiny")


@pytest.mark.parametrize("key", ["//x", "/./x", "/../x", "/.", "/1.0.0//x", "/\u0663.0.0/x"])
def test_an_odd_key_hides_no_dataset(s3_server: S3Server, datasets: Datasets, own_cache: Path, key: str) -> None:
    """No folder can have these names, and a bucket's key can: the client fails to list what has one."""
    bucket = f"odd-{key.encode().hex()}"
    root = s3_server.fill(datasets.root / "sentences", bucket, "tfds/sentences").removesuffix("/sentences")
    put_key(s3_server, f"{bucket}/tfds/sentences{key}")
    assert ParserTfds(root, "sentences").dataset_name == "sentences:1.0.0"
    assert ParserTfds(root, "sentences:0.*.*").dataset_name == "sentences:0.9.0"


@pytest.mark.parametrize("keys", [["/a\x7f/x"], ["//x", "/0.9.0//x"]])
def test_where_an_odd_key_cannot_be_passed_over_the_version_is_asked_for(
    s3_server: S3Server, datasets: Datasets, own_cache: Path, keys: list[str]
) -> None:
    bucket = f"odder-{len(keys)}"
    url = s3_server.fill(datasets.root / "sentences", bucket, "tfds/sentences")
    for key in keys:
        put_key(s3_server, f"{bucket}/tfds/sentences{key}")
    root = url.removesuffix("/sentences")
    expected = (
        rf"{url} cannot be listed: a key below it is not a path \(.*(a\\x7f|0\.9\.0//x).*\)\. Remove or rename it\. "
        rf"Or name the version, so that nothing has to be listed: 'sentences:1\.0\.0' or 'sentences/config:1\.0\.0'\.$"
    )
    with pytest.raises(ShardError, match=expected):
        ParserTfds(root, "sentences")
    assert ParserTfds(root, "sentences:1.0.0").dataset_name == "sentences:1.0.0"


@pytest.mark.parametrize("key", ["9.0.0/notes", "9.0.0//x"])
def test_a_folder_that_is_named_like_a_version_names_the_others(
    s3_server: S3Server, datasets: Datasets, own_cache: Path, key: str
) -> None:
    bucket = f"stray-{key.encode().hex()}"
    root = s3_server.fill(datasets.root / "sentences", bucket, "tfds/sentences").removesuffix("/sentences")
    put_key(s3_server, f"{bucket}/tfds/sentences/{key}")
    told = (
        rf"{root}/sentences/9\.0\.0 is the highest version there, and has no features\.json\. .*: 'sentences:1\.0\.0'"
    )
    with pytest.raises(DatasetNotFoundError, match=told):
        ParserTfds(root, "sentences")
    assert ParserTfds(root, "sentences:1.0.0").dataset_name == "sentences:1.0.0"


@pytest.mark.parametrize("key", ["/x", "a\x7f/x"])
def test_a_missing_dataset_is_named_where_an_odd_key_lies_beside_others(
    s3_server: S3Server, datasets: Datasets, own_cache: Path, key: str
) -> None:
    bucket = f"odd-root-{key.encode().hex()}"
    root = s3_server.fill(datasets.root / "sentences", bucket, "tfds/sentences").removesuffix("/sentences")
    put_key(s3_server, f"{bucket}/tfds/{key}")
    what = (
        "The nearest names are: sentences" if key == "/x" else "What is there is not known: .*cannot be listed: a key"
    )
    for name in ("sentence", "sentence:1.0.0"):
        with pytest.raises(DatasetNotFoundError, match=rf"no dataset '{name}' under {root}\. {what}"):
            ParserTfds(root, name)
    assert ParserTfds(root, "sentences").dataset_name == "sentences:1.0.0"


@pytest.mark.slow  # As its server is.
def test_google_cloud_storage_is_read_by_index(gcs_server: GCSServer, numbered_root: str, own_cache: Path) -> None:
    url = gcs_server.fill(Path(numbered_root), "numbers")
    remote = RemoteOptions(storage_options={"allow_http": True})
    far = ParserTfds(url, "numbered:1.0.0", read=BLOCKS, remote=remote, **TRAINING)
    assert far.read_mode(World()) == "index"
    assert read_epochs(far) == read_epochs(ParserTfds(numbered_root, "numbered", read=BLOCKS, **TRAINING))


def test_metadata_is_read_again_for_every_parser(serve: Serve, faulty_server: FaultyFolder, tmp_path: Path) -> None:
    write_numbered(tmp_path / "first", {"train": [3, 4]})
    write_numbered(tmp_path / "second", {"train": [3, 5]})
    url = serve(tmp_path / "first")
    assert ParserTfds(url, "numbered:1.0.0").num_examples == 7
    there = faulty_server.folder / "bucket" / "first"
    shutil.rmtree(there)
    shutil.copytree(tmp_path / "second", there)
    parser = ParserTfds(url, "numbered:1.0.0", batch_size=8)
    assert [batch.index.tolist() for batch in parser.batches(fields=("label",))] == [list(range(8))]


@pytest.mark.parametrize("fault", ["refused", "damaged"])
@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_metadata_that_cannot_be_read_is_told_from_damaged_metadata(
    name: str, fault: str, serve: Serve, faulty_server: FaultyFolder, numbered_root: str
) -> None:
    url = serve(numbered_root)
    error: type[Exception] = DatasetNotFoundError
    told = rf"{url}/numbered/1\.0\.0 cannot be opened: its {name} is damaged \(JSONDecodeError"
    if fault == "refused":
        faulty_server.fault(f"*/1.0.0/{name}", Fault(status=403))
        error, told = ShardError, rf"numbered/1\.0\.0/{name} cannot be read: the store answered 403 Forbidden"
    else:
        (path,) = faulty_server.folder.rglob(f"numbered/1.0.0/{name}")
        path.write_text("{")
    for root in (url, f"{url}/numbered/1.0.0"):
        with pytest.raises(error, match=told):
            ParserTfds(root, "numbered:1.0.0")


# What is refused.


def test_a_parser_of_urls_is_not_streamed_either(serve: Serve, numbered_root: str) -> None:
    far = ParserTfds(serve(numbered_root), "numbered:1.0.0", batch_size=4)
    with pytest.raises(ConfigError, match=r"streams files by tensorflow, which does not open http://.*-00000-of-00009"):
        far.with_read(ReadOptions(mode="examples")).batches()


NOT_STREAMED = "streams files by tensorflow, which opens no URLs of this scheme"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "files": ({"read": ReadOptions(mode="files")}, NOT_STREAMED),
    "examples": ({"read": ReadOptions(mode="examples")}, NOT_STREAMED),
    "azure": ({"root": "az://container/tfds", "read": ReadOptions(mode="files")}, NOT_STREAMED),
    "s3": ({"root": "s3://bucket/tfds", "read": ReadOptions(mode="examples")}, NOT_STREAMED),
    "download": ({"download": True}, "download=True prepares a dataset on this machine, and the root is http"),
    "image folder": ({"name": "image_folder"}, r"image_folder: the root http.* is remote, and only folders of this"),
    "remote": ({"remote": 3}, "remote=3 must be RemoteOptions"),
    "no version": ({"name": "numbered"}, "a web server lists no folders, so that the version must be named"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_with_a_url_is_refused(case: str, serve: Serve, numbered_root: str) -> None:
    arguments, told = REFUSED[case]
    with pytest.raises(ConfigError, match=told):
        ParserTfds(**{"root": serve(numbered_root), "name": "numbered:1.0.0"} | arguments)


def test_a_missing_dataset_of_a_web_server_is_named(serve: Serve, numbered_root: str) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"There is no dataset 'numbers:1\.0\.0' under .*check the name"):
        ParserTfds(serve(numbered_root), "numbers:1.0.0")


def test_options_of_a_store_are_taken(serve: Serve, numbered_root: str, tmp_path: Path) -> None:
    remote = RemoteOptions(cache_dir=tmp_path / "given")
    parser = ParserTfds(serve(numbered_root), "numbered:1.0.0", batch_size=50, remote=remote)
    assert [len(batch) for batch in parser.batches(fields=("label",))] == [41]
    assert (tmp_path / "given").is_dir()


# What is fetched.


@pytest.mark.parametrize("is_indexed", [False, True])
def test_an_epoch_fetches_each_byte_once(
    serve: Serve, faulty_server: FaultyFolder, numbered_root: str, is_indexed: bool
) -> None:
    far = ParserTfds(serve(numbered_root), "numbered:1.0.0", read=BLOCKS, **TRAINING)
    store = far.source.files.store
    shards = [path for path in faulty_server.folder.rglob("numbered-train*") if path.stat().st_size]
    if is_indexed:
        read_epochs(far)
        for block in store.options.folder.glob("objects/*/*-*"):
            block.unlink()
    before = store.stats()["bytes_fetched"]
    again = ParserTfds(str(far.data_dir), "numbered", read=BLOCKS, **TRAINING)
    read_epochs(again)
    fetched = again.source.files.store.stats()["bytes_fetched"] - (before if again.source.files.store is store else 0)
    assert fetched == sum(path.stat().st_size for path in shards)


# Where folders may not be listed, stores answer 403 about what is not there.


def test_a_dataset_is_found_where_nothing_may_be_listed(
    serve: Serve, numbered_root: str, faulty_server: FaultyFolder
) -> None:
    url = serve(numbered_root)
    for name in ("dataset_info.json", "features.json", "label.labels.txt"):
        faulty_server.fault(f"/bucket/{Path(numbered_root).name}/{name}", Fault(status=403))
    faulty_server.fault("*/1.0.0/label.labels.txt", Fault(status=403))  # It is not there.
    faulty_server.fault("*.index", Fault(status=403))
    near = ParserTfds(numbered_root, "numbered", read=BLOCKS, **TRAINING)
    far = ParserTfds(url, "numbered:1.0.0", read=BLOCKS, **TRAINING)
    assert far.class_names == near.class_names
    assert read_epochs(far) == read_epochs(near)


def test_a_listing_that_is_refused_asks_for_the_version(
    faulty_s3: FaultyFolder, numbered_root: str, own_cache: Path
) -> None:
    shutil.copytree(numbered_root, faulty_s3.folder / "bucket" / "tfds")
    faulty_s3.fault("/bucket", Fault(status=403))
    assert ParserTfds("s3://bucket/tfds", "numbered:1.0.0").num_examples == 41
    told = (
        r"s3://bucket/tfds/numbered cannot be listed: the store answered 403 .*Or name the version.*'numbered:1\.0\.0'"
    )
    with pytest.raises(ShardError, match=told):
        ParserTfds("s3://bucket/tfds", "numbered")
    with pytest.raises(
        DatasetNotFoundError, match=r"'numbered:9\.0\.0' under .* not known: s3://bucket/tfds cannot be li"
    ):
        ParserTfds("s3://bucket/tfds", "numbered:9.0.0")


def test_a_name_that_is_refused_may_be_wrong(serve: Serve, numbered_root: str, faulty_server: FaultyFolder) -> None:
    url = serve(numbered_root)
    faulty_server.fault("*", Fault(status=403))
    expected = (
        r"numbred/1\.0\.0/features\.json cannot be read: the store answered 403 Forbidden.*credentials.*"
        r"Where folders may not be listed, stores say the same of what is not there: check the URL, the name"
    )
    with pytest.raises(ShardError, match=expected):
        ParserTfds(url, "numbred:1.0.0")


def test_shards_are_looked_at_once_and_before_they_are_read(
    serve: Serve, numbered_root: str, faulty_server: FaultyFolder
) -> None:
    url = serve(numbered_root)
    parser = ParserTfds(url, "numbered:1.0.0", read=BLOCKS, **TRAINING)

    def looks() -> list[str]:
        return [one.path for one in faulty_server.ledger().requests if one.method == "HEAD"]

    sizes = [path.stat().st_size for path in Path(numbered_root).rglob("numbered-train.*")]
    num_shards, until = sum(size > 0 for size in sizes), time.monotonic() + 20
    while len(looks()) < num_shards and time.monotonic() < until:
        time.sleep(0.02)
    before = looks()
    assert len(before) == num_shards
    read_epochs(parser)
    assert looks() == before
