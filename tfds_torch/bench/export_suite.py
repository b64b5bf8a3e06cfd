"""The suite `export`: photographs as a `.beton` file, by this package and by FFCV's own writer.

Command: `python -m tfds_torch.bench export`. Explanation: FFCV's writer takes pixels, so that photographs are decoded
and encoded again; we keep their bytes. As pixels, both decode, and what is written are 0.6 MB for each.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfds_torch.bench.conversion import converted
from tfds_torch.bench.figures import Spread
from tfds_torch.bench.peers import exports
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.suite import Found, Run, Suite
from tfds_torch.bench.targets import Target, judge_figure
from tfds_torch.errors import TfdsTorchError
from tfds_torch.runtime import fresh_process

LEAST_RATIOS = {"passthrough": 5.0, "raw": 1.0}
"""Of FFCV's examples per second, for every mode of ours that is measured."""

_MOST_PHOTOS = 512


@dataclass
class Writing:
    """One mode of one writer.

    Attributes:
        writer: who wrote.
        mode: of the images.
        num_photos: that were written.
        took_s: seconds, for every turn.
        missing: why there are no figures; None: there are.
    """

    writer: str
    mode: str
    num_photos: int
    took_s: list[float] = field(default_factory=list)
    missing: str | None = None


def _measure(run: Run) -> Found:
    num_photos, writings = min(run.settings.num_photos, _MOST_PHOTOS), []
    for mode in exports.MODES:
        ours, ffcv = Writing("tfds_torch", mode, num_photos), Writing("FFCV", mode, num_photos)
        for number in range(run.settings.num_repeats):
            run.say(f"writing photographs, {mode}, {number + 1} of {run.settings.num_repeats}")
            _write(ours, exports.export, run.data_dir)
            _write(ffcv, exports.write_with_ffcv, run.data_dir)
        writings += [ours, ffcv]
    return Found(judge_exports(writings), sections=[_section(writings)])


def _write(writing: Writing, write: exports.Write, data_dir: Path) -> None:
    """Lets a writer have its turn, in a fresh process; one that failed has no further ones."""
    if writing.missing is not None:
        return
    try:
        source = data_dir if write is exports.export else converted(data_dir, "tar")
        with tempfile.TemporaryDirectory() as folder:
            target = str(Path(folder) / "images.beton")
            writing.took_s.append(fresh_process.call(write, str(source), target, writing.mode, writing.num_photos))
    except TfdsTorchError as error:
        writing.missing = str(error).strip().splitlines()[-1]


def judge_exports(writings: Sequence[Writing]) -> list[Target]:
    """Returns the targets of the suite: ratios are medians of those of all turns."""
    targets = []
    for mode, least in LEAST_RATIOS.items():
        ours, ffcv = (one for one in writings if one.mode == mode)
        ratio = _ratio(ours, ffcv)
        targets.append(
            judge_figure(
                f"speed of writing photographs, {mode}",
                f"at least {least:g} x FFCV's",
                None if ratio is None else ratio.median,
                "{:.2f} x",
                least.__le__,
            )
        )
    return targets


def _ratio(one: Writing, other: Writing) -> Spread | None:
    """Returns how many times as fast one is as another, turn by turn."""
    return Spread.of(theirs / ours for ours, theirs in zip(one.took_s, other.took_s, strict=False))


def _section(writings: Sequence[Writing]) -> Section:
    rows = []
    for writing in writings:
        (ffcv,) = (one for one in writings if one.mode == writing.mode and one.writer == "FFCV")
        mode = _FFCV_MODES[writing.mode] if writing is ffcv else writing.mode
        rows.append(
            {
                "writer": f"{writing.writer}, {mode}",
                "photos_per_s": Spread.of(writing.num_photos / took_s for took_s in writing.took_s),
                "ratio": _ratio(writing, ffcv),
            }
        )
    return Section(
        "writing",
        "photographs into a .beton file",
        f"The first {writings[0].num_photos:,} photographs (JPEG, about 500x375), image and label, with all cores; we "
        "wait until the disk has them, FFCV does not. Writers take turns, each in a fresh process, whose imports are "
        "not counted.",
        [
            Column("writer", "writer, mode"),
            Column("photos_per_s", "photographs/s"),
            Column("ratio", "x FFCV, turn by turn", "{:.2f}"),
        ],
        rows,
        [f"{one.writer}, {one.mode}, is missing: {one.missing}" for one in writings if one.missing],
        bars="photos_per_s",
    )


_FFCV_MODES = {"passthrough": "jpg", "raw": "raw"}

EXPORT = Suite(
    "export",
    "photographs a second into a .beton file",
    "This package's `export_dataset` against FFCV's `DatasetWriter`, median (least to greatest).",
    _measure,
    "how each writer is used, and why: tfds_torch.bench.peers.exports",
    distributions=("ffcv", "numba"),
)
