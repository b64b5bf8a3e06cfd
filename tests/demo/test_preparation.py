"""prepare and prepare_fake: what they leave in a data dir, what they take from there, and what they refuse."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import platformdirs
import pytest
from conftest import RunPython
from tfds_fixtures import frame_record, record_offsets

from demo.conftest import DIGITS, PHOTOS
from tfds_torch.demo import is_fake, prepare, prepare_fake
from tfds_torch.demo.preparation import check_files
from tfds_torch.demo.spec import FAKE_KEY, DemoMetadata, DemoSpec, tfds_version
from tfds_torch.errors import ConfigError, CorruptRecordError, DatasetNotFoundError, ShardError, WorkerError
from tfds_torch.runtime import subprocess_call

HEAVY = ("tensorflow", "tensorflow_datasets", "torch")
PREPARE = "from tfds_torch.demo import prepare; print(prepare('photos', root={root!r}, num_examples=20, num_shards=2))"


@dataclass(frozen=True)
class Case:
    """A prepared dataset: how it is asked for, where it lies below the root, and its parameters in words."""

    name: str
    prepare: Callable[..., Path]
    parameters: dict[str, Any]
    version_dir: str
    spec: DemoSpec
    asked: str
    found: str


_FAKE: dict[str, Any] = {"num_examples": 30, "num_shards": 4, "splits": ("train", "test"), "seed": 3}
# A dataset with configs whose builder does not need tensorflow to start.
NAME, IN_ROOT = "emnist/letters", "emnist/letters/3.1.0"
_NUMBERS = "num_examples={num_examples}, num_shards={num_shards}"
_OF_PHOTOS, _OF_FAKE = f"with {_NUMBERS}, seed={{seed}}", f"with {_NUMBERS}, splits={{splits}}, seed={{seed}}"
_PHOTOS_SPEC, _FAKE_SPEC = DemoSpec.embedded("photos", **PHOTOS), DemoSpec.fake(NAME, **_FAKE)
_PHOTOS_WORDS = f"'photos' {_OF_PHOTOS}"
_FAKE_WORDS = f"'{NAME}' (fake) {_OF_FAKE}", f"'{NAME}:3.1.0' (fake) {_OF_FAKE}"
CASES = {
    "embedded": Case("photos", prepare, PHOTOS, "photos/1.0.0", _PHOTOS_SPEC, _PHOTOS_WORDS, _PHOTOS_WORDS),
    "fake": Case(NAME, prepare_fake, _FAKE, IN_ROOT, _FAKE_SPEC, *_FAKE_WORDS),
}
BOTH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def in_words(text: str, parameters: dict[str, Any]) -> str:
    return text.format(**{**parameters, "splits": "+".join(parameters.get("splits", ()))})


@pytest.fixture(scope="module")
def fake_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with one fake. Shared: copy before damaging anything."""
    root = tmp_path_factory.mktemp("fake") / "new" / "root"
    code = (
        f"from tfds_torch.demo import prepare_fake; print(prepare_fake('{NAME}', root={str(root)!r}, **{_FAKE!r})); "
        f"import sys; print([m for m in ('tensorflow', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(root), "[]"], "the caller imported tensorflow or torch"
    case = CASES["fake"]
    assert done.stderr == f"tfds_torch: building the demo dataset {in_words(case.asked, _FAKE)}\n"
    return root


@pytest.fixture
def root(case: Case, request: pytest.FixtureRequest) -> Path:
    """The shared root of a case."""
    found: Path = request.getfixturevalue("fake_root" if case.spec.is_fake else "demo_root")
    return found


@pytest.fixture
def copy(case: Case, root: Path, tmp_path: Path) -> Path:
    """A root with the case's dataset alone, which a test may damage."""
    shutil.copytree(root / case.spec.name, tmp_path / "copy" / case.spec.name)
    return tmp_path / "copy"


def start_python(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def list_folder(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# What is there is taken


def test_nothing_is_left_beside_a_prepared_dataset_but_its_lock(demo_root: Path, fake_root: Path) -> None:
    assert [name for name in list_folder(demo_root) if not name.endswith(".lock")] == ["digits", "photos"]
    assert list_folder(demo_root / "digits") == list_folder(demo_root / "photos") == ["1.0.0"]
    assert set(list_folder(fake_root)) <= {"emnist", ".emnist.lock"}
    assert list_folder(fake_root / "emnist") == [".config", "letters"]
    (kept,) = (fake_root / "emnist" / ".config").iterdir()  # For reading without the code.
    assert json.loads(kept.read_text()) == {"default_config_name": "byclass"}
    shards = sorted(path.name for path in (fake_root / IN_ROOT).glob("*.tfrecord*"))
    assert shards == [f"emnist-{split}.tfrecord-{i:05}-of-00004" for split in ("test", "train") for i in range(4)]


@BOTH
@pytest.mark.usefixtures("no_build")
def test_a_prepared_dataset_is_returned_without_a_build(
    case: Case, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert case.prepare(case.name, root=str(root), **case.parameters) == root
    monkeypatch.setenv("HOME", os.fspath(root.parent))
    assert case.prepare(case.name, root=f"~/{root.name}", **case.parameters) == root
    if case.spec.is_fake:
        assert prepare_fake(f"{NAME}:3.1.0", root=root, **_FAKE) == root
    else:
        assert prepare("digits", root=root, **DIGITS) == root
    # Without root each combination has its folder in the cache.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = platformdirs.user_cache_path("tfds_torch") / "demo" / case.spec.folder_name
    assert folder.is_relative_to(tmp_path)
    shutil.copytree(root / case.spec.name, folder / case.spec.name)
    assert case.prepare(case.name, **case.parameters) == folder


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import tfds_torch.demo", []),
        ("from tfds_torch.demo import DEMO_NAMES, is_fake, prepare, prepare_fake", []),
        (f"from tfds_torch import demo; demo.prepare_fake('{NAME}', root={{root!r}}, **{_FAKE!r})", []),
        ("import tfds_torch.demo.builder", ["tensorflow_datasets"]),  # The check can fail.
    ],
)
def test_the_room_and_what_is_there_load_nothing_heavy(
    fake_root: Path, run_python: RunPython, code: str, loaded: list[str]
) -> None:
    code = code.replace("{root!r}", repr(str(fake_root)))
    done = run_python("-c", f"import sys\n{code}\nprint([m for m in {HEAVY} if m in sys.modules])")
    assert done.stdout.strip() == str(loaded), done.stderr


def test_the_room_lists_what_it_offers() -> None:
    import tfds_torch.demo

    assert dir(tfds_torch.demo) == ["DEMO_NAMES", "is_fake", "prepare", "prepare_fake"]
    assert tfds_torch.demo.__all__ == dir(tfds_torch.demo)
    with pytest.raises(AttributeError, match="no attribute 'prepared'"):
        _ = tfds_torch.demo.prepared


def test_metadata_says_how_a_fake_was_made(fake_root: Path, demo_root: Path, tmp_path: Path) -> None:
    values = json.loads((fake_root / IN_ROOT / "metadata.json").read_text())[FAKE_KEY]
    assert values == {
        "recipe": {
            "name": "emnist",
            "config": "letters",
            "version": "3.1.0",
            "num_examples": 30,
            "num_shards": 4,
            "splits": ["train", "test"],
            "seed": 3,
        },
        "default_config": "byclass",
        "default_version": "3.1.0",
        "tfds_version": tfds_version(),
        "has_all_splits": False,
    }
    assert is_fake(str(fake_root / IN_ROOT))
    (tmp_path / "metadata.json").write_text('{"tfds_torch_fake": 3}')
    for other in (demo_root / "digits" / "1.0.0", fake_root, fake_root / "nowhere", tmp_path):
        assert not is_fake(other)


# What is there is something else


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize(
    ("case", "other"),
    [
        *((CASES["embedded"], other) for other in ({"seed": 2}, {"num_examples": 36}, {"num_shards": 4})),
        *((CASES["fake"], other) for other in ({"num_examples": 29}, {"num_shards": 3}, {"seed": 4})),
        *((CASES["fake"], {"splits": splits}) for splits in (("train",), ("test", "train"))),
    ],
)
def test_a_root_with_other_parameters_says_what_was_found(case: Case, root: Path, other: dict[str, Any]) -> None:
    parameters = {**case.parameters, **other}
    with pytest.raises(ConfigError) as caught:
        case.prepare(case.name, root=root, **parameters)
    assert str(caught.value) == (
        f"Asked for the demo dataset {in_words(case.asked, parameters)}, but {root / case.version_dir} already holds "
        f"{in_words(case.found, case.parameters)}. Choose another root (root=None keeps a folder for each "
        f"combination), or delete that folder."
    )


@pytest.mark.usefixtures("no_build")
def test_fewer_examples_than_shards_are_a_shard_each(demo_root: Path) -> None:
    with pytest.raises(ConfigError, match=r"Asked for the demo dataset 'photos' with num_examples=3, num_shards=3, "):
        prepare("photos", root=demo_root, num_examples=3)


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize(
    ("case", "name"),
    # Of a fake also another config or version: a reader might take the one for the other.
    [(CASES["embedded"], "photos"), *((CASES["fake"], name) for name in (NAME, "emnist/digits", "emnist"))],
)
def test_a_dataset_of_somebody_else_is_left_alone(case: Case, copy: Path, name: str) -> None:
    (copy / case.version_dir / "metadata.json").unlink()
    before = sorted(copy.rglob("*"))
    with pytest.raises(ConfigError, match=r"already holds a dataset that tfds_torch\.demo did not write"):
        case.prepare(name, root=copy, **case.parameters)
    assert sorted(copy.rglob("*")) == before


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize("case", [CASES["fake"]])
def test_splits_of_a_fake_are_asked_for_as_they_were(copy: Path) -> None:
    """All splits of the dataset, or these: which splits it has is only known once it is built."""
    asked = {key: value for key, value in _FAKE.items() if key != "splits"}
    with pytest.raises(ConfigError, match=r"num_shards=4, splits=all, seed=3, but .* splits=train\+test, seed=3\."):
        prepare_fake(NAME, root=copy, **asked)
    path = copy / IN_ROOT / "metadata.json"
    path.write_text(path.read_text().replace('"has_all_splits": false', '"has_all_splits": true'))
    assert prepare_fake(NAME, root=copy, **asked) == copy
    assert prepare_fake(NAME, root=copy, **_FAKE) == copy
    with pytest.raises(ConfigError, match=r"splits=train, seed=3, but"):
        prepare_fake(NAME, root=copy, **_FAKE | {"splits": ("train",)})


@pytest.mark.parametrize("case", [CASES["fake"]])
def test_a_fake_of_another_tfds_is_taken_once_its_version_is_known(case: Case, copy: Path) -> None:
    """And the build that finds this out writes nothing."""
    folder = copy / IN_ROOT
    written = DemoMetadata.read(folder)
    assert written is not None
    assert written.complete(case.spec) == written.spec
    values = json.loads((folder / "metadata.json").read_text())
    values[FAKE_KEY]["tfds_version"] = "0.0.1"
    (folder / "metadata.json").write_text(json.dumps(values))
    older = DemoMetadata.read(folder)
    assert older is not None
    assert older.complete(case.spec) == case.spec
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert prepare_fake(NAME, root=copy, progress=False, **_FAKE) == copy
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    with pytest.raises(ConfigError, match=r"already holds 'emnist/letters:3\.1\.0' .* seed=3"):
        prepare_fake(NAME, root=copy, progress=False, **{**_FAKE, "seed": 4})


# What is refused


WRONG: list[tuple[Callable[..., Path], str, Any, type[Exception], str]] = [
    (prepare, "photos", {"num_examples": 0}, ConfigError, "num_examples=0"),
    (prepare, "photographs", {}, DatasetNotFoundError, "There is no demo dataset 'photographs'"),
    (prepare_fake, "../x", {"num_examples": 3}, ConfigError, "The dataset name '../x'"),
    (prepare_fake, "mnist", {"num_examples": 3, "splits": ("../x",)}, ConfigError, "The split '../x'"),
    *(
        (prepare_fake, name, {"num_examples": 3}, DatasetNotFoundError, f"TFDS has no dataset '{name}'.{hint}")
        for name, hint in {
            "imagenet2013": " Did you mean 'imagenet2012'? A fake takes its features from TFDS's own builder",
            "photos": " prepare('photos') has it. A fake takes",
            "zzzzzzzzzz": " A fake takes its features",
        }.items()
    ),
]


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize(("function", "name", "parameters", "error", "message"), WRONG)
def test_parameters_are_checked_before_anything_is_touched(
    tmp_path: Path, function: Callable[..., Path], name: str, parameters: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        function(name, root=tmp_path / "new", **parameters)
    assert str(caught.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


@BOTH
@pytest.mark.usefixtures("no_build")
def test_a_root_that_cannot_be_a_folder_is_a_config_error(case: Case, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"cannot be prepared under root='.*file.*': .*(exists|Not a directory)"):
            case.prepare(case.name, root=root, **case.parameters)


def test_an_error_of_the_building_process_reaches_the_caller(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'emnist' has no config 'leters'\. Did you mean 'letters'\?"):
        prepare_fake("emnist/leters", num_examples=3, root=tmp_path, progress=False)
    assert set(list_folder(tmp_path)) <= {".emnist.lock"}


# What is damaged


SHARD = "photos-train.tfrecord-00002-of-00005"


@pytest.fixture
def folder(demo_root: Path, tmp_path: Path) -> Path:
    """The version directory of a copy of `photos`."""
    shutil.copytree(demo_root / "photos", tmp_path / "copy" / "photos")
    return tmp_path / "copy" / "photos" / "1.0.0"


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])


def grow(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def exchange(path: Path) -> None:
    """With a shard of another length: each is whole, but here is too little."""
    path.write_bytes(path.with_name(SHARD.replace("00002", "00001")).read_bytes())


def replace_last(path: Path) -> None:
    """As many records, with other bytes."""
    path.write_bytes(path.read_bytes()[: record_offsets(path)[6]] + frame_record(b"another"))


def write_info(text: str, path: Path) -> None:
    path.with_name("dataset_info.json").write_text(text)


def add_foreign(path: Path) -> None:
    shutil.copy(path, path.with_name("photos-train.tfrecord-00005-of-00006"))


DAMAGES: dict[str, tuple[Callable[[Path], Any], type[ShardError], str]] = {
    "a byte cut": (lambda path: cut(path, path.stat().st_size - 1), CorruptRecordError, "inside record 6"),
    "a record cut": (lambda path: cut(path, record_offsets(path)[6]), ShardError, "holds 6 of 7 examples"),
    "emptied": (lambda path: cut(path, 0), ShardError, "holds 0 of 7 examples"),
    "deleted": (Path.unlink, ShardError, "missing"),
    "a record more": (lambda path: grow(path, frame_record(b"more")), ShardError, "holds 8 of 7 examples"),
    "a byte more": (lambda path: grow(path, b"?"), CorruptRecordError, "inside record 7"),
    "exchanged": (exchange, ShardError, "holds 8 of 7 examples"),
    "renamed": (lambda path: path.rename(f"{path}-of-before"), ShardError, "missing"),
}
NO_INFO = r"is damaged: dataset_info\.json cannot be read \(.*\)\. Delete that folder"
UNNAMED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "other bytes": (replace_last, r"split 'train' has 5 shard\(s\) with \d+ bytes, and should have 5 with \d+"),
    "a shard more": (add_foreign, r"photos-train\.tfrecord-00005-of-00006 does not belong to it"),
    "no info": (lambda path: path.with_name("dataset_info.json").unlink(), NO_INFO),
    **{
        f"info {text!r}": (partial(write_info, text), NO_INFO)
        for text in ("", "{}", "[]", '{"name": "photos", "splits": [{}]}')
    },
}


@pytest.mark.parametrize("what", DAMAGES)
def test_the_damaged_shard_is_named(folder: Path, what: str) -> None:
    do, kind, fact = DAMAGES[what]
    check_files(folder)
    do(folder / SHARD)
    with pytest.raises(ShardError) as caught:
        prepare("photos", root=folder.parents[1], **PHOTOS)
    assert type(caught.value) is kind
    message = str(caught.value)
    assert message.startswith(f"The demo dataset in {folder} is damaged: ")
    assert str(folder / SHARD) in message
    assert fact in message
    assert message.endswith("Delete that folder and prepare the dataset again.")
    assert message.lower().count("prepare the dataset again") == 1


@pytest.mark.parametrize("what", UNNAMED)
def test_what_else_is_damage(folder: Path, what: str) -> None:
    do, message = UNNAMED[what]
    do(folder / SHARD)
    with pytest.raises(ShardError, match=message):
        prepare("photos", root=folder.parents[1], **PHOTOS)


# Builds that fail, die or meet


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(function: Any, spec: Any, folder: str, existing: str, **kwargs: Any) -> NoReturn:
        (Path(folder) / "half").touch()
        raise WorkerError("no space left on device")

    monkeypatch.setattr(subprocess_call, "call", fail)
    with pytest.raises(WorkerError, match="no space left"):
        prepare("photos", root=tmp_path)
    assert set(list_folder(tmp_path)) <= {".photos.lock"}


BEFORE_THE_RENAME = (
    "import os, tfds_torch.demo.preparation as p; p.flush_to_disk = lambda path: os.kill(os.getpid(), 9); "
)


@pytest.mark.parametrize(
    "moment", ["while it builds", pytest.param("when all is written but the rename", marks=pytest.mark.slow)]
)
def test_a_killed_build_leaves_nothing_that_opens_and_the_next_one_clears_up(tmp_path: Path, moment: str) -> None:
    code = PREPARE.format(root=str(tmp_path))
    with start_python(code if moment == "while it builds" else BEFORE_THE_RENAME + code) as process:
        assert process.stderr
        assert process.stderr.readline().startswith("tfds_torch: building the demo dataset 'photos'")
        if moment == "while it builds":
            process.kill()
        process.stderr.read()  # Ends when the process and its child, which builds, are gone.
        assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "photos").exists()
    (leftover,) = tmp_path.glob(".photos.building-*")
    if moment != "while it builds":
        assert (leftover / "photos" / "1.0.0" / "dataset_info.json").exists()
    assert prepare("photos", root=tmp_path, num_examples=20, num_shards=2, progress=False) == tmp_path
    assert set(list_folder(tmp_path)) - {".photos.lock"} == {"photos"}


def test_two_processes_at_once_build_once_and_load_no_tensorflow(tmp_path: Path) -> None:
    code = PREPARE.format(root=str(tmp_path)) + f"; import sys; print([m for m in {HEAVY} if m in sys.modules])"
    with start_python(code) as first:
        assert first.stderr
        line = first.stderr.readline()  # From here on the first one holds the lock.
        with start_python(code) as second:
            outputs = [process.communicate() for process in (first, second)]
    assert line == "tfds_torch: building the demo dataset 'photos' with num_examples=20, num_shards=2, seed=0\n"
    assert outputs == [(f"{tmp_path}\n[]\n", "")] * 2
    assert first.returncode == second.returncode == 0
