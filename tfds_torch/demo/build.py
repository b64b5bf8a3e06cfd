"""Build one demo dataset: what runs in the process of its own."""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfds_torch.demo.spec import DemoSpec
from tfds_torch.runtime.terminal import QUIET_ENVIRON

NO_PROXY = "http://no-network.invalid:9"
"""Where a build sends every request: a name that no resolver knows."""


def build(spec: DemoSpec, data_dir: str, existing: str, *, progress: bool) -> str:
    """Writes the dataset with TFDS. For a fresh process only: it changes how TFDS writes, and quiets it.

    Args:
        spec: what to build.
        data_dir: an empty folder to become TFDS's data dir.
        existing: nothing is written where this data dir has the version directory already.
        progress: show on standard error how far the build is.

    Returns:
        The version directory, relative to the data dir: `voc/2007/5.0.0`.

    Raises:
        DatasetNotFoundError: TFDS itself does not have the dataset of a fake.
        ConfigError: of a fake: an unknown config or version, a builder that does not start, or a feature for which
            nothing can be made up.
    """
    with _show_progress(spec, progress) as shown:
        _silence_tensorflow()
        _cut_network()
        from tfds_torch.demo.builder import DemoConfig, make_builder, write_without_tensorflow

        write_without_tensorflow()
        builder = make_builder(spec, data_dir=data_dir, on_example=shown.add_example)
        shown.expect(sum(builder.spec.split_sizes.values()))
        version_dir = Path(builder.data_dir).relative_to(data_dir)
        if not Path(existing, version_dir).exists():
            config = DemoConfig(num_shards=spec.num_shards, num_examples=spec.num_examples, try_download_gcs=False)
            with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints where it writes: here a temporary folder.
                builder.download_and_prepare(download_config=config, file_format="tfrecord")
    return os.fspath(version_dir)


def _silence_tensorflow() -> None:
    os.environ.update(QUIET_ENVIRON)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # A build needs no GPU; tensorflow would take all of its memory.
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    logging.getLogger("absl").setLevel(logging.ERROR)


def _cut_network() -> None:
    """A build downloads nothing, but TFDS, and some of its builders, would ask a bucket about the dataset.

    A proxy that no resolver knows fails at once in Python's and in tensorflow's HTTP clients; one that refuses the
    connection would be tried again for minutes.
    """
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        os.environ[variable] = os.environ[variable.upper()] = NO_PROXY
    for variable in ("no_proxy", "NO_PROXY"):
        os.environ.pop(variable, None)


@dataclass(frozen=True)
class _Shown:
    """What a build tells of itself: how many examples there will be, and each of them."""

    expect: Callable[[int], None] = lambda number: None
    add_example: Callable[[], None] = lambda: None


@contextlib.contextmanager
def _show_progress(spec: DemoSpec, progress: bool) -> Iterator[_Shown]:
    if not progress:
        yield _Shown()
        return
    if not sys.stderr.isatty():
        # One line, so that a log file shows what took the seconds.
        sys.stderr.write(f"tfds_torch: building the demo dataset {spec}\n")
        yield _Shown()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    class CursorKeeper(Console):
        def show_cursor(self, show: bool = True) -> bool:
            # Ctrl-C kills this process: a hidden cursor would stay hidden.
            del show
            return False

    columns = (TextColumn("building {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=CursorKeeper(stderr=True), transient=True) as bar:
        task = bar.add_task(spec.full_name, total=None)
        yield _Shown(lambda number: bar.update(task, total=number), lambda: bar.advance(task))
