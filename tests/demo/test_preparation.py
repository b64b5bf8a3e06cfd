import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import platformdirs
import pytest
from conftest import RunPython

from demo.conftest import DIGITS, PHOTOS
from tfds_torch.demo import prepare
from tfds_torch.errors import ConfigError, DatasetNotFoundError, WorkerError
from tfds_torch.runtime import subprocess_call

HEAVY = ("tensorflow", "tensorflow_datasets", "torch")
PREPARE = "from tfds_torch.demo import prepare; print(prepare('photos', root={root!r}, num_examples=20, num_shards=2))"


def start_python(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def list_folder(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test where a build begins."""

    def refuse(*args: object, **kwargs: Any) -> NoReturn:
        raise AssertionError(f"a build began: {args}")

    monkeypatch.setattr(subprocess_call, "call", refuse)


@pytest.fixture
def photos_copy(demo_root: Path, tmp_path: Path) -> Path:
    """A root with `photos` alone, which a test may damage."""
    shutil.copytree(demo_root / "photos", tmp_path / "copy" / "photos")
    return tmp_path / "copy"


@pytest.mark.usefixtures("no_build")
def test_a_prepared_dataset_is_returned_without_a_build(demo_root: Path) -> None:
    assert prepare("digits", root=demo_root, **DIGITS) == demo_root
    assert prepare("photos", root=str(demo_root), **PHOTOS) == demo_root


@pytest.mark.usefixtures("no_build")
def test_without_root_each_combination_has_its_folder_in_the_cache(
    demo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = platformdirs.user_cache_path("tfds_torch") / "demo" / "photos-37x5-1"
    assert folder.is_relative_to(tmp_path)
    shutil.copytree(demo_root / "photos", folder / "photos")
    assert prepare("photos", **PHOTOS) == folder


def test_nothing_is_left_beside_a_prepared_dataset_but_its_lock(demo_root: Path) -> None:
    assert [name for name in list_folder(demo_root) if name not in (".digits.lock", ".photos.lock")] == [
        "digits",
        "photos",
    ]
    assert list_folder(demo_root / "digits") == list_folder(demo_root / "photos") == ["1.0.0"]


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("photos", {"num_examples": 0}), ("photos", {"seed": -1}), ("digits", {"num_examples": 5})],
)
def test_parameters_are_checked_before_anything_is_touched(
    tmp_path: Path, name: str, parameters: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        prepare(name, root=tmp_path / "new", **parameters)
    with pytest.raises(DatasetNotFoundError):
        prepare("photographs", root=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize("other", [{"seed": 2}, {"num_examples": 36}, {"num_shards": 4}])
def test_a_root_with_other_parameters_says_what_was_found(demo_root: Path, other: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare("photos", root=demo_root, **{**PHOTOS, **other})
    wanted = ", ".join(f"{key}={value}" for key, value in {**PHOTOS, **other}.items())
    assert str(caught.value) == (
        f"Asked for the demo dataset 'photos' with {wanted}, but {demo_root / 'photos' / '1.0.0'} already holds "
        "'photos' with num_examples=37, num_shards=5, seed=1. Choose another root (root=None keeps a folder for each "
        "combination), or delete that folder."
    )


@pytest.mark.usefixtures("no_build")
def test_a_dataset_of_somebody_else_is_left_alone(photos_copy: Path) -> None:
    (photos_copy / "photos" / "1.0.0" / "metadata.json").unlink()
    before = list_folder(photos_copy / "photos" / "1.0.0")
    with pytest.raises(ConfigError, match=r"already holds a dataset that tfds_torch\.demo did not write"):
        prepare("photos", root=photos_copy, **PHOTOS)
    assert list_folder(photos_copy / "photos" / "1.0.0") == before


@pytest.mark.usefixtures("no_build")
def test_a_root_that_cannot_be_a_folder_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"cannot be prepared under root='.*file.*': .*(exists|Not a directory)"):
            prepare("digits", root=root)


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(function: Any, spec: Any, folder: str, existing: str, **kwargs: Any) -> NoReturn:
        (Path(folder) / "half").touch()
        raise WorkerError("no space left on device")

    monkeypatch.setattr(subprocess_call, "call", fail)
    with pytest.raises(WorkerError, match="no space left"):
        prepare("photos", root=tmp_path)
    assert set(list_folder(tmp_path)) <= {".photos.lock"}


BEFORE_THE_RENAME = (
    "import os, tfds_torch.demo.preparation as p; p._flush_to_disk = lambda path: os.kill(os.getpid(), 9); "
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
    leftovers = list(tmp_path.glob(".photos.building-*"))
    assert len(leftovers) == 1
    if moment != "while it builds":
        assert (leftovers[0] / "photos" / "1.0.0" / "dataset_info.json").exists()
    assert prepare("photos", root=tmp_path, num_examples=20, num_shards=2, progress=False) == tmp_path
    assert set(list_folder(tmp_path)) - {".photos.lock"} == {"photos"}


@dataclass(frozen=True)
class Race:
    """What two processes did that prepared one dataset at the same time."""

    root: Path
    exit_codes: list[int]
    outputs: list[str]
    errors: list[str]


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> Race:
    root = tmp_path_factory.mktemp("race")
    code = PREPARE.format(root=str(root)) + f"; import sys; print([m for m in {HEAVY} if m in sys.modules])"
    with start_python(code) as first:
        assert first.stderr
        line = first.stderr.readline()  # From here on the first one holds the lock.
        with start_python(code) as second:
            outputs, errors = zip(first.communicate(), second.communicate(), strict=True)
            codes = [first.returncode, second.returncode]
    return Race(root, codes, list(outputs), [line + errors[0], errors[1]])


def test_two_processes_at_once_build_once(race: Race) -> None:
    assert race.exit_codes == [0, 0]
    assert [output.splitlines()[0] for output in race.outputs] == [str(race.root)] * 2
    assert race.errors[1] == ""


def test_a_build_says_one_line_where_standard_error_is_no_terminal(race: Race) -> None:
    assert race.errors[0] == (
        "tfds_torch: building the demo dataset 'photos' with num_examples=20, num_shards=2, seed=0\n"
    )


def test_preparing_loads_no_tensorflow_in_the_calling_process(race: Race) -> None:
    assert [output.splitlines()[1] for output in race.outputs] == ["[]", "[]"]


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import tfds_torch.demo", []),
        ("from tfds_torch.demo import DEMO_NAMES, is_fake, prepare, prepare_fake", []),
        ("import tfds_torch.demo.builder", ["tensorflow_datasets"]),  # The check can fail.
    ],
)
def test_importing_the_room_loads_nothing_heavy(run_python: RunPython, code: str, loaded: list[str]) -> None:
    done = run_python("-c", f"import sys\n{code}\nprint([m for m in {HEAVY} if m in sys.modules])")
    assert done.stdout.strip() == str(loaded), done.stderr


def test_the_room_lists_what_it_offers() -> None:
    import tfds_torch.demo

    assert dir(tfds_torch.demo) == ["DEMO_NAMES", "is_fake", "prepare", "prepare_fake"]
    assert tfds_torch.demo.__all__ == dir(tfds_torch.demo)
    with pytest.raises(AttributeError, match="no attribute 'prepared'"):
        _ = tfds_torch.demo.prepared


def test_a_tilde_in_root_is_the_home_folder(demo_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.fspath(demo_root.parent))
    assert prepare("photos", root=f"~/{demo_root.name}", **PHOTOS) == demo_root


@pytest.mark.usefixtures("no_build")
def test_fewer_examples_than_shards_are_a_shard_each(demo_root: Path) -> None:
    with pytest.raises(ConfigError, match=r"Asked for the demo dataset 'photos' with num_examples=3, num_shards=3, "):
        prepare("photos", root=demo_root, num_examples=3)
