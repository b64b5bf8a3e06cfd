"""prepare_fake: what it leaves in a data dir, and what it refuses. What the examples hold: test_fake_content.py."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import platformdirs
import pytest
from conftest import RunPython
from zygote import tensorflow_zygote

from demo.fake_reading import ask_for_fakes
from tfds_torch.demo import is_fake, prepare_fake
from tfds_torch.demo.spec import FAKE_KEY, DemoMetadata, DemoSpec, tfds_version
from tfds_torch.errors import ConfigError, CorruptRecordError, DatasetNotFoundError
from tfds_torch.runtime import subprocess_call

# A dataset with configs whose builder does not need tensorflow to start.
NAME, CONFIG, VERSION = "emnist", "letters", "3.1.0"
PARAMETERS: dict[str, Any] = {"num_examples": 30, "num_shards": 4, "splits": ("train", "test"), "seed": 3}
ASKED = "'emnist/letters' (fake) with num_examples=30, num_shards=4, splits=train+test, seed=3"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with one fake. Shared: copy before damaging anything."""
    root = tmp_path_factory.mktemp("fake") / "new" / "root"
    code = (
        f"from tfds_torch.demo import prepare_fake; print(prepare_fake('{NAME}/{CONFIG}', root={str(root)!r}, "
        f"**{PARAMETERS!r})); import sys; print([m for m in ('tensorflow', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(root), "[]"], "the caller imported tensorflow or torch"
    assert done.stderr == f"tfds_torch: building the demo dataset {ASKED}\n"
    return root


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise AssertionError(f"a build began: {args}")

    monkeypatch.setattr(subprocess_call, "call", refuse)


def version_dir(root: Path) -> Path:
    return root / NAME / CONFIG / VERSION


def test_it_lies_where_tfds_looks_and_nothing_else_is_left(built: Path) -> None:
    assert {path.name for path in built.iterdir()} <= {NAME, f".{NAME}.lock"}
    assert sorted(path.name for path in (built / NAME).iterdir()) == [".config", CONFIG]
    assert [path.name for path in (built / NAME / CONFIG).iterdir()] == [VERSION]
    shards = sorted(path.name for path in version_dir(built).glob("*.tfrecord*"))
    assert shards == [f"{NAME}-{split}.tfrecord-{i:05}-of-00004" for split in ("test", "train") for i in range(4)]


def test_the_default_config_is_kept_for_reading_without_the_code(built: Path) -> None:
    (kept,) = (built / NAME / ".config").iterdir()
    assert json.loads(kept.read_text()) == {"default_config_name": "byclass"}


def test_metadata_says_how_it_was_made(built: Path) -> None:
    values = json.loads((version_dir(built) / "metadata.json").read_text())[FAKE_KEY]
    assert values == {
        "recipe": {
            "name": NAME,
            "config": CONFIG,
            "version": VERSION,
            "num_examples": 30,
            "num_shards": 4,
            "splits": ["train", "test"],
            "seed": 3,
        },
        "default_config": "byclass",
        "default_version": VERSION,
        "tfds_version": tfds_version(),
        "has_all_splits": False,
    }


def test_is_fake_tells_fakes_from_other_datasets(built: Path, demo_root: Path, copy: Path) -> None:
    assert is_fake(version_dir(built))
    assert is_fake(str(version_dir(built)))
    assert not is_fake(demo_root / "digits" / "1.0.0")
    assert not is_fake(built)
    assert not is_fake(built / "nowhere")
    (version_dir(copy) / "metadata.json").write_text('{"tfds_torch_fake": 3}')
    assert not is_fake(version_dir(copy))


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize("name", [f"{NAME}/{CONFIG}", f"{NAME}/{CONFIG}:{VERSION}"])
def test_what_is_there_is_returned_without_a_build(built: Path, name: str) -> None:
    assert prepare_fake(name, root=built, **PARAMETERS) == built


def test_reusing_one_imports_no_tfds(built: Path, run_python: RunPython) -> None:
    done = run_python(
        "-c",
        f"from tfds_torch.demo import prepare_fake; import sys; "
        f"prepare_fake('{NAME}/{CONFIG}', root={str(built)!r}, **{PARAMETERS!r}); "
        "print([m for m in ('tensorflow', 'tensorflow_datasets', 'torch') if m in sys.modules])",
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.usefixtures("no_build")
def test_without_root_each_combination_has_its_folder_in_the_cache(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = DemoSpec.fake(f"{NAME}/{CONFIG}", **PARAMETERS)
    folder = platformdirs.user_cache_path("tfds_torch") / "demo" / spec.folder_name
    assert folder.is_relative_to(tmp_path)
    shutil.copytree(built / NAME, folder / NAME)
    assert prepare_fake(f"{NAME}/{CONFIG}", **PARAMETERS) == folder


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize(
    "other",
    [{"num_examples": 29}, {"num_shards": 3}, {"splits": ("train",)}, {"splits": ("test", "train")}, {"seed": 4}],
)
def test_other_parameters_in_the_same_root_are_a_conflict(built: Path, other: dict[str, Any]) -> None:
    parameters = {**PARAMETERS, **other}
    with pytest.raises(ConfigError) as caught:
        prepare_fake(f"{NAME}/{CONFIG}", root=built, **parameters)
    wanted = (
        f"num_examples={parameters['num_examples']}, num_shards={parameters['num_shards']}, "
        f"splits={'+'.join(parameters['splits'])}, seed={parameters['seed']}"
    )
    assert str(caught.value) == (
        f"Asked for the demo dataset 'emnist/letters' (fake) with {wanted}, but {version_dir(built)} already holds "
        "'emnist/letters:3.1.0' (fake) with num_examples=30, num_shards=4, splits=train+test, seed=3. Choose another "
        "root (root=None keeps a folder for each combination), or delete that folder."
    )


@pytest.mark.usefixtures("no_build")
def test_splits_of_a_fake_are_asked_for_as_they_were(copy: Path) -> None:
    """All splits of the dataset, or these: which splits it has is only known once it is built."""
    asked = {key: value for key, value in PARAMETERS.items() if key != "splits"}
    with pytest.raises(ConfigError, match=r"num_shards=4, splits=all, seed=3, but .* splits=train\+test, seed=3\."):
        prepare_fake(f"{NAME}/{CONFIG}", root=copy, **asked)
    path = version_dir(copy) / "metadata.json"
    path.write_text(path.read_text().replace('"has_all_splits": false', '"has_all_splits": true'))
    assert prepare_fake(f"{NAME}/{CONFIG}", root=copy, **asked) == copy
    assert prepare_fake(f"{NAME}/{CONFIG}", root=copy, **PARAMETERS) == copy
    with pytest.raises(ConfigError, match=r"splits=train, seed=3, but"):
        prepare_fake(f"{NAME}/{CONFIG}", root=copy, **PARAMETERS | {"splits": ("train",)})


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize("name", [f"{NAME}/{CONFIG}", f"{NAME}/digits", NAME])
def test_a_real_dataset_of_this_name_is_left_alone(copy: Path, name: str) -> None:
    """Also in another config or version: a reader might take the one for the other."""
    (version_dir(copy) / "metadata.json").unlink()
    before = sorted(copy.rglob("*"))
    with pytest.raises(ConfigError, match=r"already holds a dataset that tfds_torch\.demo did not write"):
        prepare_fake(name, root=copy, **PARAMETERS)
    assert sorted(copy.rglob("*")) == before


@pytest.mark.usefixtures("no_build")
def test_a_damaged_one_names_the_shard(copy: Path) -> None:
    shard = version_dir(copy) / f"{NAME}-test.tfrecord-00002-of-00004"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError) as caught:
        prepare_fake(f"{NAME}/{CONFIG}", root=copy, **PARAMETERS)
    assert f"The demo dataset in {version_dir(copy)} is damaged: {shard}" in str(caught.value)


def test_a_default_is_only_known_to_the_tfds_that_wrote_it(built: Path) -> None:
    written = DemoMetadata.read(version_dir(built))
    assert written is not None
    asked = DemoSpec.fake(f"{NAME}/{CONFIG}", **PARAMETERS)
    assert written.complete(asked) == written.spec
    older = DemoMetadata(written.spec, written.default_config, written.default_version, "0.0.1")
    assert older.complete(asked) == asked


def test_a_fake_of_another_tfds_is_taken_once_its_version_is_known(copy: Path) -> None:
    """And the build that finds this out writes nothing."""
    path = version_dir(copy) / "metadata.json"
    values = json.loads(path.read_text())
    values[FAKE_KEY]["tfds_version"] = "0.0.1"
    path.write_text(json.dumps(values))
    before = {file: file.stat().st_mtime_ns for file in version_dir(copy).iterdir()}
    assert prepare_fake(f"{NAME}/{CONFIG}", root=copy, progress=False, **PARAMETERS) == copy
    assert {file: file.stat().st_mtime_ns for file in version_dir(copy).iterdir()} == before
    with pytest.raises(ConfigError, match=r"already holds 'emnist/letters:3\.1\.0' .* seed=3"):
        prepare_fake(f"{NAME}/{CONFIG}", root=copy, progress=False, **{**PARAMETERS, "seed": 4})


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "imagenet2013",
            "TFDS has no dataset 'imagenet2013'. Did you mean 'imagenet2012'? A fake takes its features from",
        ),
        ("photos", "TFDS has no dataset 'photos'. prepare('photos') has it."),
        ("zzzzzzzzzz", "TFDS has no dataset 'zzzzzzzzzz'. A fake takes its features from TFDS's own builder"),
    ],
)
def test_an_unknown_name_says_the_nearest_and_touches_nothing(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        prepare_fake(name, num_examples=3, root=tmp_path / "new")
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("../x", {}), ("mnist", {"num_examples": 0}), ("mnist", {"num_shards": 4}), ("mnist", {"splits": ("../x",)})],
)
def test_parameters_are_checked_before_anything_is_touched(
    tmp_path: Path, name: str, parameters: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        prepare_fake(name, root=tmp_path / "new", **{"num_examples": 3, **parameters})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_build")
def test_a_root_that_cannot_be_a_folder_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"'mnist' \(fake\) .* cannot be prepared under root='.*file.*'"):
            prepare_fake("mnist", num_examples=3, root=root)


def test_an_unknown_config_reaches_the_caller(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'emnist' has no config 'leters'\. Did you mean 'letters'\?"):
        prepare_fake("emnist/leters", num_examples=3, root=tmp_path, progress=False)
    assert {path.name for path in tmp_path.iterdir()} <= {".emnist.lock"}


REFUSED: dict[str, tuple[str, ...]] = {
    "voc/2013": ("'voc' has no config '2013'", "Did you mean", "The configs are: 2007, 2012"),
    "mnist/small": ("'mnist' has no config 'small'. It has no configs.",),
    "mnist:1.2.3": ("'mnist' has no version '1.2.3' in TFDS", "The versions are: 3.0.1."),
    "voc/2007:1.2.3": ("'voc' has no version '1.2.3'", "5.0.0"),
    "dices": (
        "'dices'",
        "does not start here, without a network (ModuleNotFoundError:",
        "pandas",
        "Install the package",
    ),
    "bridge": ("'bridge'", "does not start here, without a network", "gs://", "choose another dataset"),
    "my_own": ("'my_own' is not among the datasets that TFDS itself has", "another process"),
    "librispeech/lazy_decode": ("The feature 'speech' of 'librispeech/lazy_decode:", "is a Audio", "'flac'"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Name -> type and message of the error, without pandas."""
    specs = [DemoSpec.fake(name, 3, 2) for name in REFUSED]
    answers = tensorflow_zygote().call(ask_for_fakes, str(tmp_path_factory.mktemp("refused")), specs, "pandas")
    return dict(zip(REFUSED, answers, strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_what_tfds_cannot_tell_is_a_config_error(refusals: dict[str, tuple[str, str]], name: str) -> None:
    kind, message = refusals[name]
    assert kind == ("DatasetNotFoundError" if name == "my_own" else "ConfigError"), message
    for fact in REFUSED[name]:
        assert fact in message
