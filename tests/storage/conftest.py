import sys
from pathlib import Path

import pytest

# The package array-record has no wheel for older Pythons, and no extra of ours asks for it there.
collect_ignore = [] if sys.version_info >= (3, 11) else ["test_array_record.py"]


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of this test's own."""
    home = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home
