"""The suite `remote`: photographs from a server with a slow link, through a cache folder on this machine."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import bucket
from benchmarks.conversion import converted
from benchmarks.environments import Environment, environment_of
from benchmarks.remote_runs import Epoch, Served, run_epochs, serve, stream_format, with_home
from benchmarks.remote_tables import FIRST, LOCAL, LONG, NEW, PIXELS, RESUMED, RESUMED_ALONE
from benchmarks.remote_tasks import (
    FAST,
    LIMITS,
    OURS_PEER,
    Figures,
    extend,
    fresh_epochs,
    in_note,
    last_line,
    leave_index,
    local,
    readers_of,
    task_of,
)
from benchmarks.remote_transfer import (
    BYTES_COPIES,
    MACHINES_COPIES,
    measure_bytes,
    measure_machines,
    measure_small_cache,
)
from benchmarks.tables import Table
from benchmarks.task import ENCODED, LIMIT, OURS, STREAMS, WEBDATASET, Peer, Run, Task
from tfds_torch.errors import TfdsTorchError

STREAMING, LITDATA, WEBDATASET_CACHED = "streaming", "litdata", "webdataset_cached"
LONG_S = 66.0
"""How long the photographs of the long epoch take this package to decode from local files."""

_NUM_WARM = 3  # Epochs: one takes 4 s, give or take a tenth.
_STARTS = 3  # In each turn: they take 3 s, give or take half a second, and are compared by tenths.
_THEIRS = "benchmarks.peers.remote_streams:load"
_COMPETITORS = (
    OURS_PEER,
    replace(OURS_PEER, name=LOCAL, title="tfds_torch, local files"),
    Peer(STREAMING, "MosaicML Streaming", f"{_THEIRS}_streaming", "mds", environment=STREAMS),
    Peer(LITDATA, "litData", f"{_THEIRS}_litdata", "litdata", environment=STREAMS),
    Peer(WEBDATASET, "WebDataset over HTTP", f"{_THEIRS}_webdataset", "tar", environment=STREAMS),
    Peer(WEBDATASET_CACHED, "WebDataset, with a cache", f"{_THEIRS}_webdataset_cached", "tar", environment=STREAMS),
    Peer(LIMIT, "decode and crop alone", "benchmarks.peers.decode_limit:load", changes={"image_shape": None}),
)
_HERE = (LOCAL, LIMIT)
"""Competitors that read no server."""


def measure_remote(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite."""
    environments, others, missing = prepare(run)
    num_photos = run.settings.num_photos
    with serve(run.data_dir, num_photos, LIMITS, others=others) as served:
        pixels = measure_pixels(run, served, environments, missing)
        yield pixels
        yield measure_first(run, served)
    with serve(run.data_dir, num_photos, LIMITS, BYTES_COPIES) as served:
        yield measure_bytes(run, served)
        yield measure_small_cache(run, served)
    with serve(run.data_dir, num_photos, FAST, MACHINES_COPIES) as served:
        yield measure_machines(run, served)
    with serve(run.data_dir, num_photos, FAST, long_copies(pixels, num_photos)) as served:
        yield measure_long(run, served)


def long_copies(pixels: Table, num_photos: int) -> int:
    """Returns how many times the photographs make a long epoch, by the speed of local files."""
    speed = pixels.spread(LOCAL, "warm_per_s")
    return 1 if speed is None else max(1, math.ceil(LONG_S * speed.median / num_photos))


def prepare(run: Run) -> tuple[dict[str, Environment], dict[str, Path], dict[str, str]]:
    """Returns competitor -> environment, folder of the bucket -> its files, and competitor -> why it is missing."""
    environments: dict[str, Environment] = {}
    others: dict[str, Path] = {}
    missing: dict[str, str] = {}
    tars = converted(run.data_dir, "tar")
    for peer in _COMPETITORS:
        run.show_progress(f"preparing the files of {peer.title}")
        try:
            environments[peer.name] = environment = environment_of(peer, run.settings.baseline)
            run.versions.update(environment.versions)
            if peer.file_format == "tar":
                others[bucket.TARS] = tars
            elif peer.environment:
                others[peer.file_format] = stream_format(peer.file_format, tars, environment)
        except TfdsTorchError as error:
            missing[peer.name] = last_line(error)
    return environments, others, missing


def measure_pixels(
    run: Run, served: Served, environments: Mapping[str, Environment], missing: Mapping[str, str]
) -> Table:
    """Starts each competitor with an empty cache, in turns."""
    samples: dict[str, Figures] = {peer.name: {} for peer in _COMPETITORS}
    reasons = dict(missing)
    tars = str(converted(run.data_dir, "tar"))
    for turn in range(run.settings.num_repeats):
        for peer in _COMPETITORS:
            if peer.name in reasons:
                continue
            run.show_progress(f"{PIXELS.title}, {turn + 1} of {run.settings.num_repeats}: {peer.title}")
            cache = served.new_folder("cache")
            task = task_of(run, served, cache, **peer.changes)
            if peer.name in _HERE:
                task = local(task, run.data_dir)
            if peer.file_format == "tar":
                task = replace(task, converted_dir=tars)
            environment = with_home(environments[peer.name], served.new_folder("home"))
            try:
                epochs = run_epochs(readers_of(run, served, peer, [task], environment), 1 + _NUM_WARM)
            except TfdsTorchError as error:
                reasons[peer.name], samples[peer.name] = last_line(error), {}
            else:
                extend(samples[peer.name], _pixel_figures(epochs, served, has_server=peer.name not in _HERE))
            finally:
                shutil.rmtree(cache)
    titles = {peer.name: peer.title for peer in _COMPETITORS}
    return PIXELS.fill(samples, titles, reasons, **in_note(run, served, LIMITS))


def _pixel_figures(epochs: Sequence[Epoch], served: Served, *, has_server: bool) -> Figures:
    cold, *warm = epochs
    figures: Figures = {
        "warm_per_s": [epoch.ranks[0].examples_per_s for epoch in warm],
        "num_examples": [float(epoch.num_examples) for epoch in epochs],
        "start_s": [cold.ranks[0].start_s],
    }
    if has_server:
        figures |= {
            "cold_per_s": [cold.ranks[0].examples_per_s],
            "fetched": [cold.data_bytes / served.split_bytes],
            "warm_fetched": [epoch.data_bytes / served.split_bytes for epoch in warm],
        }
    return figures


def measure_long(run: Run, served: Served) -> Table:
    """Reads many photographs once, from the server and from the disk."""
    samples: dict[str, Figures] = {}
    missing: dict[str, str] = {}
    titles = {OURS: "from the server", LOCAL: "local files"}
    home = served.new_folder("home")
    try:
        leave_index(run, served, home)
    except TfdsTorchError as error:
        samples[OURS], missing[OURS] = {}, last_line(error)
    for name, title in [(name, title) for name, title in titles.items() if name not in missing]:
        run.show_progress(f"{LONG.title}, {title}")
        cache = served.new_folder("cache")
        task = task_of(run, served, cache)
        if name == LOCAL:
            task = local(task, served.dataset_dir.parents[1])
        try:
            (epoch,) = fresh_epochs(run, served, OURS_PEER, [task], home=home)
            samples[name] = {
                "per_s": [epoch.num_examples / epoch.whole_s],
                "epoch_s": [epoch.whole_s],
                "fetched": [epoch.data_bytes / served.split_bytes if name == OURS else None],
            }
        except TfdsTorchError as error:
            samples[name], missing[name] = {}, last_line(error)
        finally:
            shutil.rmtree(cache)
    return LONG.fill(samples, titles, missing, copies=served.num_copies, **in_note(run, served, FAST))


def measure_first(run: Run, served: Served) -> Table:
    """Starts training with and without an index, and in mid-epoch."""
    titles = {
        LOCAL: "local files",
        NEW: "no index",
        OURS: "with an index",
        RESUMED: "resumed in mid-epoch",
        RESUMED_ALONE: "resumed, encoded images, no workers",
    }
    samples: dict[str, Figures] = {name: {} for name in titles}
    missing: dict[str, str] = {}
    home = served.new_folder("home")
    try:
        leave_index(run, served, home)
    except TfdsTorchError as error:
        missing = dict.fromkeys((OURS, RESUMED, RESUMED_ALONE), last_line(error))
    num_turns = _STARTS * run.settings.num_repeats
    for turn in range(num_turns):
        local_s = None
        for name in [name for name in titles if name not in missing]:
            run.show_progress(f"{FIRST.title}, {turn + 1} of {num_turns}: {titles[name]}")
            cache = served.new_folder("cache")
            try:
                own = None if name in (LOCAL, NEW) else home
                (epoch,) = fresh_epochs(run, served, OURS_PEER, [_first_task(run, served, name, cache)], home=own)
            except TfdsTorchError as error:
                missing[name], samples[name] = last_line(error), {}
                continue
            finally:
                shutil.rmtree(cache)
            local_s = epoch.ranks[0].start_s if name == LOCAL else local_s
            extend(samples[name], _first_figures(epoch, served, local_s, name))
    return FIRST.fill(samples, titles, missing, **in_note(run, served, LIMITS))


def _first_task(run: Run, served: Served, name: str, cache: Path) -> Task:
    middle = run.settings.num_photos // run.settings.batch_size // 2
    task = task_of(run, served, cache, **({"work": ENCODED} if name == RESUMED_ALONE else {}))
    task = local(task, run.data_dir) if name == LOCAL else task
    first_batch = middle if name in (RESUMED, RESUMED_ALONE) else 0
    return replace(task, remote={**task.remote, "most_batches": 1, "first_batch": first_batch})


def _first_figures(epoch: Epoch, served: Served, local_s: float | None, name: str) -> Figures:
    (rank,) = epoch.ranks
    if name == LOCAL:
        return {"start_s": [rank.start_s]}
    batch_bytes = served.split_bytes / served.num_examples * rank.num_examples
    figures: Figures = {"before": [rank.report["bytes_before"] / batch_bytes]}
    if name == RESUMED_ALONE or rank.start_s is None or local_s is None:
        return figures
    beyond_s, window_s = rank.start_s - local_s, served.split_bytes / served.link_bytes_per_s
    return figures | {"start_s": [rank.start_s], "beyond_s": [beyond_s], "by_window": [beyond_s / window_s]}
