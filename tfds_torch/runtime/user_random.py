"""Random numbers for users' functions: `random`, numpy and torch are seeded before each call of a function."""

import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

TRANSFORM, TARGET_TRANSFORM, ITEM, FIRST_OF_PARSER = range(4)
"""Numbers of the functions that are called for an example: each has its own seed. A parser's count up from the last."""

_MOST_OF_NUMPY = 0xFFFF_FFFF

_lock = threading.RLock()
_of_thread = threading.local()
_worker: int | None = None
_of_numpy: Any = None


def _renew() -> None:
    """Unlock the generators in a forked child: another thread of the parent may have held them."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def renew_locks_of_generators() -> None:
    """Unlock the generators of numpy and torch in a forked child, where another thread of the parent held them.

    numpy's generator continues where it was. A generator of torch itself is native, and cannot be unlocked.
    """
    numpy_random: Any = np.random  # Its types lack the two functions.
    numpys = numpy_random.get_bit_generator()
    if _is_held(getattr(numpys, "lock", None)):
        renewed = type(numpys)()
        renewed.state = numpys.state
        numpy_random.set_bit_generator(renewed)
    for name in ("torch.cuda", "torch.xpu", "torch.mtia"):  # They take it in `torch.manual_seed`.
        module: Any = sys.modules.get(name)
        if _is_held(getattr(module, "_initialization_lock", None)):
            module._initialization_lock = threading.Lock()


def _is_held(lock: Any) -> bool:
    """Return whether a lock is held, in a process of one thread."""
    if lock is None:
        return False
    is_free = lock.acquire(blocking=False)
    if is_free:
        lock.release()
    return not is_free


def take_generators() -> None:
    """Note that this process is a loader's worker, whose generators nobody else uses."""
    global _worker
    _worker = os.getpid()


def are_taken() -> bool:
    """Return whether this process is such a worker."""
    return _worker == os.getpid()


def seed_generators(seed: int) -> None:
    """Seed `random`, `np.random` and, where it is imported, torch's default generator, 0 <= seed < 2**63."""
    random.seed(seed)
    np.random.seed(seed & _MOST_OF_NUMPY)
    generator = _generator_of_torch()
    if generator is not None:
        generator.manual_seed(seed)


def rng_of(seed: int) -> np.random.Generator:
    """Return this thread's generator, reset to the beginning of a seed's numbers: 1.5 us, where a new one takes 20.

    The next seed gets the same generator: its user must not keep it. Calls within a call (`calling`) have another one.

    Args:
        seed: 0 <= seed < 2**63.
    """
    own: list[tuple[np.random.Generator, Any]] = _of_thread.__dict__.setdefault("rngs", [])
    depth: int = _of_thread.__dict__.get("depth", 0)
    while len(own) <= depth:
        philox = np.random.Philox(key=0)
        own.append((np.random.Generator(philox), philox.state))
    rng: np.random.Generator
    rng, state = own[depth]
    state["state"]["key"][0] = seed
    rng.bit_generator.state = state
    return rng


def _generator_of_torch() -> Any:
    """Return torch's default generator; None: torch is not imported."""
    return getattr(sys.modules.get("torch"), "default_generator", None)


class calling:  # noqa: N801 (a context, as `suppress`)
    """A context in which functions of the user are called: one that reads other examples keeps its own numbers."""

    def __enter__(self) -> None:
        _of_thread.depth = _of_thread.__dict__.get("depth", 0) + 1

    def __exit__(self, *_: object) -> None:
        _of_thread.depth -= 1


@contextmanager
def borrowed_generators() -> Iterator[None]:
    """Let one thread at a time seed the generators, and leave those of a training process as they were found.

    Within a call of the user's function, it leaves the generators of a worker as they were, too.
    """
    if are_taken() and not _of_thread.__dict__.get("depth", 0):
        yield
        return
    with _lock:
        generator = _generator_of_torch()
        of_python = random.getstate()
        of_torch = None if generator is None else generator.get_state()
        try:
            with _other_generator_of_numpy():
                yield
        finally:
            random.setstate(of_python)
            if generator is not None:
                generator.set_state(of_torch)


@contextmanager
def _other_generator_of_numpy() -> Iterator[None]:
    """Let numpy's functions draw from a generator of ours: to exchange it takes half the time of keeping its state."""
    global _of_numpy
    numpy_random: Any = np.random  # Its types lack the two functions.
    theirs, state = numpy_random.get_bit_generator(), numpy_random.get_state(legacy=False)
    is_exchanged = theirs is not _of_numpy  # Else it is lent already, within another call.
    if is_exchanged:
        _of_numpy = _of_numpy or np.random.MT19937(0)
        numpy_random.set_bit_generator(_of_numpy)
    try:
        yield
    finally:
        if is_exchanged:
            numpy_random.set_bit_generator(theirs)
        if not is_exchanged or state["has_gauss"]:  # The second of two normal numbers, which is kept beside it.
            numpy_random.set_state(state)
