"""Finding a dataset: by name, config, version or directory; its files' names; and preparing it."""

import errno
import grp
import json
import os
import pickle
import pwd
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest
import tensorflow_datasets as tfds
from filelock import FileLock
from tensorflow_datasets.core import read_only_builder
from tensorflow_datasets.core.utils import error_utils, file_utils
from tfds_fixtures import BUILD_LOG, NUM_TRAIN, SPLITS, Datasets, Ledger, has_tensorflow
from zygote import Answering, torch_zygote

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.parsers.tfds import find, folder
from tfds_torch.parsers.tfds.folder import Folder
from tfds_torch.parsers.tfds.info import read_info
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World


def test_files_of_an_owner_whom_the_machine_does_not_know_are_read(
    datasets: Datasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose /etc/passwd and /etc/group lack those of a mounted folder."""

    def fail(number: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", fail)
    monkeypatch.setattr(grp, "getgrgid", fail)
    for name in ("shapes", "channels/png_l", "channels/png_rgb:2.1.0"):
        parser = ParserTfds(datasets.root, name)
        assert ParserTfds(datasets.root / parser.data_dir, name).num_examples == parser.num_examples > 0
        next(parser.batches(World(), 0))


def test_a_damaged_default_config_is_told_by_its_own_file(datasets: Datasets, tmp_path: Path) -> None:
    shutil.copytree(datasets.root / "channels" / "png_l", tmp_path / "own" / "png_l")
    (tmp_path / "own" / ".config").mkdir()
    (tmp_path / "own" / ".config" / "metadata.json").write_text("{")
    with pytest.raises(DatasetNotFoundError, match=r"metadata\.json in .*\.config, .* is damaged .*'own/<config>'"):
        ParserTfds(tmp_path, "own")
    assert ParserTfds(tmp_path, "own/png_l").num_examples > 0


# What is in a root -> versions that a dataset is in, and those without a features.json; `.config` names the default.
LAYOUTS: dict[str, list[str]] = {
    "versions": ["own/0.9.0", "own/1.0.0", "own/9.2.0", "own/10.0.0"],
    "an empty highest": ["own/1.0.0", "own/1.1.0", "own/2.0.0 empty"],
    "odd names": ["own/1.0.0", "own/01.0.0", "own/1.0", "own/notes", "own/1.0.0.tmp"],
    "configs": ["own/a/1.0.0", "own/b/1.0.0", "own/b/2.0.0"],
    "configs and versions": ["own/1.0.0", "own/a/1.0.0"],
    "a default": ["own/a/1.0.0", "own/b/1.0.0", "own/b/2.0.0", "own/.config b"],
    "a default and a version": ["own/3.0.0", "own/b/1.0.0", "own/.config b"],
    "a default that is not there": ["own/a/1.0.0", "own/.config c"],
    "the default of its code": ["glue/cola/1.0.0", "glue/sst2/1.0.0", "glue/sst2/2.0.0"],
    "another one than its code has": ["glue/sst2/1.0.0", "glue/cola/2.0.0", "glue/.config sst2"],
    "nothing": [],
}
PARTS = (
    *("", "/a", "/b", "/cola", ":1.0.0", ":1.*.*", ":2.0.0", ":9.*.*", "/b:1.0.0", "/b:*.*.*", "/a:9.0.0"),
    *(":experimental_latest", "/a/width=3"),
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_version_directories_are_found_where_tfds_finds_them(layout: str, tmp_path: Path) -> None:
    for line in LAYOUTS[layout]:
        path, _, more = line.partition(" ")
        (tmp_path / path).mkdir(parents=True)
        if path.endswith(".config"):
            (tmp_path / path / "metadata.json").write_text(json.dumps({"default_config_name": more}))
        elif more != "empty":
            (tmp_path / path / "features.json").touch()
    for name in (f"{name}{part}" for name in ("own", "glue") for part in PARTS):
        try:
            parsed, arguments = tfds.core.naming.parse_builder_name_kwargs(name)
        except ValueError:
            continue
        asked = find._Asked(name, str(parsed), arguments)
        found = find._find(asked, Folder(str(tmp_path)))
        with error_utils.record_error_context():
            theirs = read_only_builder._find_builder_dir(name, data_dir=str(tmp_path))
        assert (found and found.path) == (theirs and os.fspath(theirs)), name


def test_what_is_not_a_file_of_a_folder_is_not_there(tmp_path: Path) -> None:
    for name in ("empty", ".hidden", "1.0.0"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_bytes(b"content")
    here = Folder(str(tmp_path))
    assert here.names() == [".hidden/", "1.0.0/", "empty/", "file"]
    assert here.folders() == ["1.0.0", "empty"]
    assert here.read("file") == b"content"
    for name in ("nothing", "empty", "file/below", "y" * 300, "a\0b"):
        assert here.read(name) is None
        assert here.below(name).names() == []


def test_all_data_directories_of_tfds_are_looked_into(
    datasets: Datasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(datasets.shapes, tmp_path / "first" / "shapes" / "1.0.0")
    monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", str(tmp_path / "first"))
    monkeypatch.setattr(file_utils, "_REGISTERED_DATA_DIRS", {tfds.core.Path(datasets.root)})
    assert ParserTfds(None, "sentences").data_dir == datasets.root / "sentences" / "1.0.0"
    with pytest.raises(
        ConfigError, match=r"'shapes' is in several of TFDS's data .*first/shapes/1\.0\.0.* Give root, one"
    ):
        ParserTfds(None, "shapes")
    assert ParserTfds(tmp_path / "first", "shapes").num_examples == NUM_TRAIN


def test_tensorflow_s_folders_are_read_as_those_of_this_machine(datasets: Datasets) -> None:
    """A gs:// URL is tensorflow's where obstore is not installed; here it stands for a path."""
    near, far = Folder(str(datasets.root)), folder._TensorflowFolder(str(datasets.root))
    assert far.folders() == near.folders()
    assert far.below("channels", "nothing").names() == []
    assert far.below("shapes", "1.0.0").read("nothing") is None
    ours, theirs = (read_info(one.below("shapes", "1.0.0")) for one in (near, far))
    assert (ours.name, ours.specs, repr(ours.features)) == (theirs.name, theirs.specs, repr(theirs.features))
    with pytest.raises(folder.UnreadableError, match=r"cannot be read: .*Check the disk or the network"):
        far._ask(lambda path: path / 3)


def test_a_version_directory_opens_as_root_and_as_name(datasets: Datasets) -> None:
    directory = datasets.shapes
    places: list[tuple[Any, Any]] = [
        (directory, "shapes"),
        (str(directory), "shapes:1.0.0"),
        (None, directory),
        (None, str(directory)),
        (datasets.root, directory),
        (directory, directory),
    ]
    for root, name in places:
        parser = ParserTfds(root, name)
        assert (parser.dataset_name, parser.num_examples) == ("shapes:1.0.0", NUM_TRAIN)
        assert parser.data_dir == directory


def test_a_version_directory_of_another_version_is_not_taken_for_the_one_asked_for(datasets: Datasets) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"sentences:0\.9\.0"):
        ParserTfds(datasets.root / "sentences" / "0.9.0", "sentences:1.0.0")
    with pytest.raises(DatasetNotFoundError, match="channels/png_l"):
        ParserTfds(datasets.root / "channels" / "png_l" / "2.1.0", "channels/png_rgb")


def test_a_parser_travels_by_pickle(datasets: Datasets) -> None:
    read = ReadOptions(mode="files")
    parser = ParserTfds(datasets.root, "shapes", "train[:50%]", is_training=True, batch_size=4, read=read)
    copy = pickle.loads(pickle.dumps(parser))
    assert copy.fingerprint == parser.fingerprint
    assert copy.plan(World()) == parser.plan(World())
    assert copy.assignment(World(), 3) == parser.assignment(World(), 3)


def test_the_fingerprint_tells_examples_apart_and_nothing_else(datasets: Datasets) -> None:
    def fingerprint(root: Path, name: str = "shapes", split: str = "train", **arguments: Any) -> str:
        return ParserTfds(root, name, split, **arguments).fingerprint

    same = {
        fingerprint(datasets.root),
        fingerprint(datasets.shapes),
        fingerprint(datasets.root, batch_size=7, is_training=True, seed=3),
    }
    others = {
        fingerprint(datasets.gaps),
        fingerprint(datasets.root, split="test"),
        fingerprint(datasets.root, split="train[:50%]"),
        fingerprint(datasets.root, "sentences"),
        fingerprint(datasets.root, "sentences:0.9.0"),
    }
    assert len(same) == 1
    assert len(same | others) == 6


def test_split_names_are_listed(datasets: Datasets) -> None:
    assert sorted(ParserTfds.split_names(datasets.root, "shapes")) == ["test", "train"]


# filenames


def name_everything(datasets: Datasets) -> dict[str, Any]:
    """Returns the file names of many parsers. Runs in a child."""
    names: dict[str, Any] = {
        f"{root}:{split}": ParserTfds(getattr(datasets, root), "shapes", split).filenames() for root, split in SPLITS
    }
    parser = ParserTfds(datasets.root, "shapes", "test")
    names["basename"] = parser.filenames(basename=True)
    names["absolute"] = parser.filenames(absolute=True)
    names["both"] = parser.filenames(basename=True, absolute=True)
    names["numbers"] = ParserTfds(datasets.root, "tiny").filenames()
    names["ids"] = ParserTfds(datasets.root, "channels/png_l").filenames()
    names["ids of a part"] = ParserTfds(datasets.root, "channels/png_l", "train[2:5]").filenames()
    names["has tensorflow"] = has_tensorflow()
    return names


@pytest.fixture(scope="module")
def names(datasets: Datasets) -> dict[str, Any]:
    return torch_zygote().call(name_everything, datasets)


def test_filenames_are_those_of_the_examples_in_order(
    names: dict[str, Any], ledgers: dict[tuple[str, str], Ledger]
) -> None:
    for (root, split), ledger in ledgers.items():
        assert names[f"{root}:{split}"] == ledger.file_names


def test_filenames_can_be_shortened_and_made_absolute(
    names: dict[str, Any], ledgers: dict[tuple[str, str], Ledger], datasets: Datasets
) -> None:
    plain = ledgers["root", "test"].file_names
    assert names["basename"] == [os.path.basename(name) for name in plain]
    assert names["absolute"] == [str(datasets.shapes / name) for name in plain]
    assert names["both"] == [str(datasets.shapes / os.path.basename(name)) for name in plain]


def test_filenames_fall_back_on_ids(names: dict[str, Any]) -> None:
    assert sorted(names["numbers"]) == ["1000", "1001", "1002"]
    assert len(set(names["ids"])) == 10
    assert names["ids"][0] == "channels-train.tfrecord-00000-of-00003__0"
    assert names["ids of a part"] == names["ids"][2:5]


def test_filenames_load_no_tensorflow(names: dict[str, Any]) -> None:
    assert names["has tensorflow"] is False


# download=True


def open_with_download(root: str) -> tuple[str, int, bool]:
    """Runs in a child."""
    parser = ParserTfds(root, "handmade", download=True)
    return parser.dataset_name, parser.num_examples, has_tensorflow()


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, int, bool]]]:
    """A dataset that two processes asked for at the same time, and afterwards a third one; and what they got."""
    root = tmp_path_factory.mktemp("downloads") / "new" / "folder"
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv(BUILD_LOG, str(root.parent.parent / "builds.log"))
        *first, last = (stack.enter_context(Answering(torch_zygote())) for _ in range(3))
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda process: process.ask(open_with_download, str(root)), first))
        results.append(last.ask(open_with_download, str(root)))
    return root, results


def test_download_prepares_a_dataset_once(downloads: tuple[Path, list[tuple[str, int, bool]]]) -> None:
    root, results = downloads
    assert [result[:2] for result in results] == [("handmade:1.0.0", 19)] * 3
    assert len((root.parent.parent / "builds.log").read_text().splitlines()) == 1


def test_download_loads_no_tensorflow_into_the_process_that_asks(
    downloads: tuple[Path, list[tuple[str, int, bool]]],
) -> None:
    assert [result[2] for result in downloads[1]] == [False] * 3


def assert_download_is_refused(root: Path, reason: str) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        ParserTfds(root, "mnist", download=True)
    begin = f"download=True: 'mnist' is not prepared under {root}, and cannot be prepared there: {reason} ({root}"
    assert str(caught.value).startswith(begin)
    assert str(caught.value).endswith(
        "Give a root that can be written to; or prepare it on another disk (tfds.builder('mnist', data_dir=...)."
        "download_and_prepare()), and open it there or copy it here."
    )


def test_a_download_to_where_no_folder_can_be_made_is_an_error_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_download_is_refused(tmp_path / "file" / "data", "Not a directory")
    assert_download_is_refused(Path("/proc/data"), "No such file or directory")


def test_a_download_to_a_read_only_disk_is_an_error_with_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(lock: Any, *arguments: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", lock.lock_file)

    monkeypatch.setattr(FileLock, "acquire", refuse)  # Permissions do not hold for root.
    assert_download_is_refused(tmp_path, "Read-only file system")
