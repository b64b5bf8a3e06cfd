"""Reading in processes that cannot import tensorflow: this one, its workers, and whatever else is started."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from zygote import Script, last_line_of, torch_zygote

from torch_data import tensorflow_free_lives as lives

slow = pytest.mark.slow
METHODS = [
    pytest.param("none", marks=slow),
    "fork",
    pytest.param("spawn", marks=slow),
    pytest.param("forkserver", marks=pytest.mark.campaign),
]
Live = Callable[..., tuple[Any, list[str]]]


@pytest.fixture
def live(root: Path, tmp_path: Path, run_python: Callable[..., Any]) -> Live:
    """`live(function, *args)`: what a function returned as a script, and who imported tensorflow: "<pid> <module>".

    The script begins with the imports of torch and of this package behind it, but where it `is_fresh`.
    """

    def run(function: Callable[..., Any], *args: object, is_fresh: bool = False) -> tuple[Any, list[str]]:
        log = tmp_path / "imports.txt"
        log.touch()
        folder = Path(__file__).parent
        path = [str(folder / "refuse_tensorflow"), str(root), str(folder), os.environ.get("PYTHONPATH", "")]
        environment = {"PYTHONPATH": os.pathsep.join(path), "TENSORFLOW_IMPORTS": str(log)}
        command = [lives.__file__, function.__name__, *map(str, args)]
        if is_fresh:
            done = run_python(*command, env=environment)
        else:
            done = Script(torch_zygote(), command, {**os.environ, **environment}, tmp_path).finish()
        return last_line_of(done), log.read_text().splitlines()

    return run


@pytest.mark.parametrize("method", METHODS)
def test_every_way_of_reading_goes_without_tensorflow(method: str, data_root: Path, live: Live) -> None:
    found, imports = live(lives.read_everything, data_root, method, is_fresh=method != "fork")
    assert imports == []
    assert len(found) == (11 if method == "none" else 6)
    for way, indices in found.items():
        assert sorted(indices) == list(range(lives.NUM_EXAMPLES)), way


@slow
def test_single_examples_are_decoded_without_tensorflow(data_root: Path, live: Live) -> None:
    found, imports = live(lives.look_at_examples, data_root)
    assert imports == []
    assert found == {name: [3, lives.NUM_EXAMPLES - 1, 3, 5, 6, 7] for name in lives.NAMES}


@slow
def test_check_reads_without_tensorflow(data_root: Path, tmp_path: Path, live: Live) -> None:
    found, imports = live(lives.check, data_root, tmp_path)
    assert imports == []
    assert found == {"broken": [], "num_promises": [8, 8], "is_batched": True, "sizes": 2, "sheet": True}


@pytest.mark.parametrize("method", METHODS)
def test_the_hook_finds_an_augment_that_imports_tensorflow(method: str, data_root: Path, live: Live) -> None:
    found, imports = live(lives.use_tensorflow, data_root, method)
    assert "tensorflow was imported" in found["error"]
    assert [line.split()[1] for line in imports][:1] == ["tensorflow"]
    importers = {int(line.split()[0]) for line in imports}
    assert importers == {found["pid"]} if method == "none" else found["pid"] not in importers
