"""A disk that is full, or refuses, is an error that says what is needed; what was there stays."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.exports import PATHS
from export.made_sources import PAGE, Numbered
from tfds_torch.errors import ExportError
from tfds_torch.export.exporting import export_dataset
from tfds_torch.runtime.atomic_file import AtomicFile


class Refusing:
    """Lets the n-th write fail, counted in each process."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, number: int) -> None:
        self.left, self.number, self.write = at, number, AtomicFile.write
        patch.setattr(AtomicFile, "write", lambda *arguments: self.act(*arguments))

    def act(self, *arguments: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.number, os.strerror(self.number))
        self.write(*arguments)


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("has_old", [False, True])
def test_a_full_disk_says_what_is_needed_and_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, has_old: bool
) -> None:
    path = tmp_path / "a.beton"
    if has_old:
        path.write_bytes(b"old")
    Refusing(monkeypatch, at, errno.ENOSPC)
    with pytest.raises(ExportError) as caught:
        export_dataset(Numbered(), path, format="beton", num_workers=2, chunk_size=4, page_size=PAGE, overwrite=True)
    said = str(caught.value)
    assert "cannot be written: No space left on device. About " in said
    assert "of 40 samples), and " in said
    assert "are free: make room, or write elsewhere. What was there before is untouched." in said
    assert os.listdir(tmp_path) == (["a.beton"] if has_old else [])
    assert not has_old or path.read_bytes() == b"old"


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (3 * 2**20, 3 * 2**20))
from export.made_sources import PAGE
from tfds_torch.errors import ExportError
from tfds_torch.export.exporting import export_dataset
samples = [{"text": bytes(2**19)}] * 32
try:
    export_dataset(samples, sys.argv[1], format="beton", num_workers=2, chunk_size=2, page_size=PAGE)
except ExportError as error:
    print(error)
"""


def test_a_limit_of_the_files_size_is_met_by_a_worker_and_told_with_its_remedy(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    done = run_python("-c", LIMITED, str(tmp_path / "a.beton"), env=PATHS)
    assert "cannot be written: File too large. About " in done.stdout, done.stderr
    assert "of 32 samples), and no file may be as large, by a limit (ulimit -f) " in done.stdout
    assert os.listdir(tmp_path) == []
