"""The start of a loader's worker: its signals, its parent, its metrics and output, and its turn among the others."""

import ctypes
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import psutil

from tfds_torch.runtime.group_signals import do_nothing_for_group_signals
from tfds_torch.runtime.limits import usable_cores
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.user_random import take_generators
from tfds_torch.runtime.worker_output import WorkerOutput

_PARENT_CHECK_S = 1.0
_LONGEST_TURN_S = 2.0  # Whatever keeps the others.
_TURN_PERIOD_S = 0.005
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # Of glibc's malloc.h.
_KEPT_BYTES, _LARGEST_HEAPED_BYTES = 1 << 27, 1 << 26


def init_worker(worker: int, metrics: StageMetrics, output: WorkerOutput, slots: SharedSlots | None) -> None:
    """Prepare this process to be a worker: its signals, its parent, its metrics, output and slots."""
    # Ctrl-C reaches the whole process group: the training process ends its workers when it gives up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Those of a job scheduler do, too; a handler that was inherited would act in each of the processes.
    do_nothing_for_group_signals()
    end_with_parent()
    take_generators()
    metrics.bind(worker)
    output.bind(worker)
    if slots is not None:
        slots.bind(worker)


def use_one_thread_of_torch() -> None:
    """Let torch, where it is imported, use one thread: workers share the cores, and a fork loses all other threads."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


_watching_in: int | None = None  # The process that watches its parent already.


def end_with_parent() -> None:
    """Let this process end soon after its parent, whatever its other threads wait for; further calls do nothing."""
    global _watching_in
    parent = parent_process()
    if parent is not None and _watching_in != os.getpid():
        _watching_in = os.getpid()
        threading.Thread(target=_watch_parent, args=(parent.pid, parent.sentinel), daemon=True).start()


def _watch_parent(pid: int, sentinel: int) -> None:
    # The sentinel alone would not do: processes forked later by the parent hold it open too.
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        while not wait([sentinel], _PARENT_CHECK_S) and parent.is_running() and parent.status() != psutil.STATUS_ZOMBIE:
            pass
    os._exit(1)


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, up to 128 MiB in each arena, instead of giving it back to the system.

    Decoded images are a few hundred kilobytes each. Left alone, their memory goes back to the system at every turn, and
    comes again page by page: a sixth of a decoding process's time. For processes of our own only: it cannot be undone.

    Returns:
        Whether this system's allocator takes such settings.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # Another C library than glibc.
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST_HEAPED_BYTES))


def stagger_first_batch(metrics: StageMetrics, worker: int) -> None:
    """Let workers of lower numbers make their first batches first, where there are more workers than cores.

    The loop takes a batch of each worker in turn: where all share the cores from the start, the first batch is as late
    as the last one. The cores are busy all the while.
    """
    num_cores, stop = usable_cores().number, time.monotonic() + _LONGEST_TURN_S
    if metrics.num_workers <= num_cores or metrics.has_started(worker):
        return
    while time.monotonic() < stop and sum(not metrics.has_started(other) for other in range(worker)) >= num_cores:
        time.sleep(_TURN_PERIOD_S)


def seed_random_and_numpy(*numbers: int) -> int:
    """Seed `random` and `numpy.random` of this process with a few integers >= 0; return a seed for one more."""
    words = np.random.SeedSequence(numbers).generate_state(8)
    random.seed(words[:4].tobytes())
    np.random.seed(words[4:6])
    return int(words[6]) << 32 | int(words[7])
