"""Every output is written whole or not at all: the report, the page and the contact sheet."""

import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from check.test_contact_sheet import Gallery
from tfds_torch.check.command import save_output
from tfds_torch.check.contact_sheet import save_contact_sheet
from tfds_torch.check.findings import Findings
from tfds_torch.check.json_report import make_report
from tfds_torch.errors import ConfigError


def write_report(flag: str, path: Path) -> None:
    save_output(flag, path, Findings(), make_report(Findings(), [], time.time(), 0))


def write_sheet(flag: str, path: Path) -> None:
    save_contact_sheet(Gallery([]), path, "title")  # type: ignore[arg-type]


Write = Callable[[str, Path], None]
OUTPUTS = [
    pytest.param(write_report, "--json", "report", id="json"),
    pytest.param(write_report, "--html", "page", id="html"),
    pytest.param(write_sheet, "--images", "contact sheet", id="images"),
]


@pytest.mark.parametrize(("write", "flag", "name"), OUTPUTS)
def test_a_new_file_has_the_users_own_mode_and_a_replaced_one_keeps_its_mode(
    tmp_path: Path, write: Write, flag: str, name: str
) -> None:
    path = tmp_path / "out"
    before = os.umask(0o027)
    try:
        write(flag, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    for mode in (0o600, 0o664):
        path.chmod(mode)
        write(flag, path)
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(("write", "flag", "name"), OUTPUTS)
def test_a_place_that_cannot_be_written_is_an_error_that_leaves_nothing(
    tmp_path: Path, write: Write, flag: str, name: str
) -> None:
    (tmp_path / "out" / "inside").mkdir(parents=True)
    for path in (tmp_path / "out", tmp_path / "nowhere" / "out"):
        with pytest.raises(ConfigError, match=re.escape(f"The {name} {path} cannot be written: ")):
            write(flag, path)
    assert os.listdir(tmp_path) == ["out"]
