"""One folder with both demo datasets of images."""

from pathlib import Path
from typing import Any, NoReturn

import pytest
from zygote import forked_instead_of_fresh

from tfds_torch.demo import prepare
from tfds_torch.runtime import subprocess_call

DIGITS: dict[str, Any] = {"num_shards": 3}
PHOTOS: dict[str, Any] = {"num_examples": 37, "num_shards": 5, "seed": 1}


@pytest.fixture(scope="session")
def demo_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `digits` and `photos` with the parameters above. Shared: copy before damaging anything."""
    root = tmp_path_factory.mktemp("demo")
    with forked_instead_of_fresh():
        assert prepare("digits", root=root, progress=False, **DIGITS) == root
        assert prepare("photos", root=root, progress=False, **PHOTOS) == root
    return root


@pytest.fixture
def no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test where a build begins."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise AssertionError(f"a build began: {args}")

    monkeypatch.setattr(subprocess_call, "call", refuse)
