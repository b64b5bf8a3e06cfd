"""Build one demo dataset: what runs in the process of its own."""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator

from tfds_torch.demo.recipe import NUM_DIGITS_TEST, Recipe
from tfds_torch.pipeline.tensorflow_runtime import QUIET_ENVIRON


def build(recipe: Recipe, data_dir: str, *, progress: bool) -> None:
    """Writes the dataset with TFDS. Call it in a fresh process only: it imports tensorflow and quiets it for good.

    Args:
        recipe: what to build.
        data_dir: an empty folder to become TFDS's data dir.
        progress: show on standard error how far the build is.
    """
    with _show_progress(recipe, progress) as on_example:
        _silence_tensorflow()
        from tfds_torch.demo.builders import BUILDERS, DemoConfig

        config = DemoConfig(
            num_shards=recipe.num_shards,
            num_train_examples=recipe.num_examples,
            try_download_gcs=False,  # No network.
        )
        builder = BUILDERS[recipe.name](recipe, data_dir=data_dir, on_example=on_example)
        with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints where it writes: here a temporary folder.
            builder.download_and_prepare(download_config=config, file_format="tfrecord")


def _silence_tensorflow() -> None:
    os.environ.update(QUIET_ENVIRON)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # A build needs no GPU; tensorflow would take all of its memory.
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    logging.getLogger("absl").setLevel(logging.ERROR)


@contextlib.contextmanager
def _show_progress(recipe: Recipe, progress: bool) -> Iterator[Callable[[], None]]:
    """Yields a function to be called once per example."""
    if not progress:
        yield lambda: None
        return
    if not sys.stderr.isatty():
        # One line, so that a log file says what took the seconds.
        sys.stderr.write(f"tfds_torch: building the demo dataset {recipe}\n")
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    class CursorKeeper(Console):
        def show_cursor(self, show: bool = True) -> bool:
            # Ctrl-C kills this process: a hidden cursor would stay hidden.
            del show
            return False

    columns = (TextColumn("building {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    total = recipe.num_examples + (NUM_DIGITS_TEST if recipe.name == "digits" else 0)
    with Progress(*columns, console=CursorKeeper(stderr=True), transient=True) as bar:
        task = bar.add_task(recipe.name, total=total)
        yield lambda: bar.advance(task)
