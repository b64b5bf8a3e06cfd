"""check_parser over windows of episodes: the same promises, by ids that are counted in another way, and real bytes."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered_episodes import NAME, mix_windows, name_of, windows_of, write_numbered_episodes

from tfds_torch import ParserTfds, Windows
from tfds_torch.check.expected import ids_of
from tfds_torch.check.parser_check import check_parser
from tfds_torch.check.reader import content_of
from tfds_torch.errors import CorruptRecordError
from tfds_torch.plan.windows import WindowTable

TRAINING: dict[str, Any] = {"is_training": True, "batch_size": 4}
CASES: dict[str, tuple[Callable[..., Any], str, int]] = {
    "windows": (windows_of, "every example once", 41),
    "every other one that lies whole": (
        lambda root, **own: windows_of(root, stride=2, whole=True, **own),
        "every example once",
        9,
    ),
    "a slice": (lambda root, **own: windows_of(root, "train[3:9]", **own), "every example once", 27),
    "subset": (
        lambda root, **own: windows_of(root, **own).subset(range(5, 30)),
        "every example of the subset once",
        41,
    ),
    "short epochs": (
        lambda root, **own: windows_of(root, epoch_size=20, **own),
        "every example once in each pass",
        41,
    ),
    "weighted": (
        lambda root, **own: windows_of(root, **own).weighted(np.arange(41.0)),
        "every example as often as the order of the weights draws it",
        41,
    ),
    "mixture": (mix_windows, "every example once in each pass of its member", 52),
}


@pytest.fixture
def own_root(tmp_path: Path) -> str:
    """Holds `numbered_episodes`, for a test that damages them."""
    write_numbered_episodes(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_windows_keep_every_promise_of_their_kind(case: str, numbered_root: str) -> None:
    make, once, num_windows = CASES[case]
    parser = make(numbered_root, **TRAINING)
    ids = ids_of(parser.dataset)
    assert list(ids) == list(parser.ids(np.arange(num_windows)))
    assert [ids.find(one) for one in ids] == list(range(num_windows))
    report = check_parser(parser, num_replicas=2, num_workers=int(case in ("windows", "mixture")))
    assert report.is_kept, report
    assert any(promise.name.startswith(once) for promise in report.promises), report
    assert "resume is exact" in {promise.name for promise in report.promises}
    assert "TFDS reads whole episodes, not windows of them" in {one.reason for one in report.not_judged}


def test_the_index_of_steps_says_how_many_windows_there_are(numbered_root: str) -> None:
    report = check_parser(windows_of(numbered_root, batch_size=4), num_workers=0, num_epochs=1)
    assert report.is_kept, report
    assert "The index of steps promises 41 examples" in str(report)


def test_an_id_that_no_window_has_is_not_found(numbered_root: str) -> None:
    ids = ids_of(windows_of(numbered_root, stride=2, **TRAINING).dataset)
    first = f"{NAME}-train.tfrecord-00000-of-00004__0"
    assert [ids.find(f"{first}/{step}") for step in (0, 1, 2, 4)] == [0, None, 1, None]
    assert ids.find(first) is None


def test_fields_with_offsets_are_read(numbered_root: str) -> None:
    assert content_of(windows_of(numbered_root, **TRAINING)) == ["name"]
    assert content_of(mix_windows(numbered_root, **TRAINING)) == ["name"]
    without = ParserTfds(numbered_root, NAME, windows=Windows(), **TRAINING)
    assert content_of(without) == ["episode", "name", "number", "step"]


def test_windows_that_are_numbered_one_too_far_break_their_ids(
    numbered_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    locate = WindowTable.locate

    def too_far(table: WindowTable, index: Any) -> Any:
        episode, step = locate(table, index)
        return episode, step + 1

    monkeypatch.setattr(WindowTable, "locate", too_far)
    report = check_parser(
        ParserTfds(numbered_root, NAME, windows=Windows(offsets={"name": [-1]}), **TRAINING), num_workers=0
    )
    assert "ids as promised" in {promise.name for promise in report.promises if not promise.kept}


def test_a_flipped_bit_of_a_step_is_found(own_root: str) -> None:
    parser = windows_of(own_root, **TRAINING)
    assert len(parser) == 41  # The steps are indexed.
    shard = next(Path(own_root).rglob("*-00002-of-00004"))
    content, stamp = bytearray(shard.read_bytes()), shard.stat()
    content[content.index(name_of(20).encode()) + 5] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(CorruptRecordError, match=rf"{re.escape(shard.name)}: record 1 .* 'steps/name' at step 6"):
        check_parser(parser, num_workers=0)
