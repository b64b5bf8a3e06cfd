"""FeedOptions: how a Feeder reads a source, checked when it is added; FeedLimits: when a Feeder reports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.arguments import check_choice, check_flag, check_integer, check_seconds

_MOST_THREADS = 1024


@dataclass(frozen=True)
class FeedLimits:
    """How long, in seconds, a Feeder waits before it warns, reports, and stops waiting for threads.

    Attributes:
        slow_s: seconds between two warnings that a waiting training loop gets no data.
        lagging_s: seconds for which the queue may hold fewer than two chunks before a warning.
        status_s: seconds between two status lines of a source.
        join_s: seconds that `stop` waits for threads to end.
    """

    slow_s: float = 10.0
    lagging_s: float = 60.0
    status_s: float = 60.0
    join_s: float = 5.0


@dataclass(frozen=True)
class FeedOptions:
    """The arguments of `Feeder.add_source`, which describes them."""

    name: str
    names: Sequence[str]
    batch_size: int
    num_threads: int = 2
    max_buffered_chunks: int = 800
    batch_axes: int | Sequence[int] = 0
    rebatch: bool = True
    init: Callable[[], Any] | None = None
    shutdown: Callable[[], Any] | None = None
    timeout_s: float | None = 600.0
    at_end: str = "stop"
    last: str = "keep"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"add_source: name={self.name!r} must be a string that names the source, as 'train'.")
        self._check_names()
        for name, most in (("batch_size", None), ("num_threads", _MOST_THREADS), ("max_buffered_chunks", None)):
            object.__setattr__(self, name, check_integer(f"{self._where}: {name}", getattr(self, name), 1, most))
        object.__setattr__(self, "batch_axes", self._find_axes())
        for name in ("init", "shutdown"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigError(f"{self._where}: {name}={getattr(self, name)!r} must be a function, or None.")
        check_flag(f"{self._where}: rebatch", self.rebatch)
        check_seconds(f"{self._where}: timeout_s", self.timeout_s, can_be_none=True)
        check_choice(f"{self._where}: at_end", self.at_end, ("stop", "cycle"))
        check_choice(f"{self._where}: last", self.last, ("keep", "drop"))

    @property
    def axes(self) -> tuple[int, ...]:
        """The batch axis of each array, in the order of the names."""
        return self.batch_axes  # type: ignore[return-value] # As __post_init__ left it.

    @property
    def _where(self) -> str:
        return f"add_source({self.name!r})"

    def _check_names(self) -> None:
        names = self.names
        if isinstance(names, str) or not isinstance(names, Sequence) or not names:
            raise ConfigError(
                f"{self._where}: names={names!r} must be a list of names, one for each array of a chunk, such as "
                f"['image', 'label']."
            )
        wrong = [name for name in names if not isinstance(name, str) or not name]
        if wrong or len(set(names)) != len(names):
            problem = f"{wrong[0]!r} is not a name" if wrong else "a name is there twice"
            raise ConfigError(f"{self._where}: names={list(names)!r}: {problem}.")
        object.__setattr__(self, "names", tuple(names))

    def _find_axes(self) -> tuple[int, ...]:
        axes: object = self.batch_axes
        if isinstance(axes, Sequence) and not isinstance(axes, str):
            if len(axes) != len(self.names):
                raise ConfigError(
                    f"{self._where}: batch_axes={list(axes)!r} are {len(axes)}, and there are {len(self.names)} names: "
                    f"give one axis for each, or one number for all."
                )
            found = list(axes)
        else:
            found = [axes] * len(self.names)
        for axis in found:
            if isinstance(axis, bool) or not isinstance(axis, int):
                raise ConfigError(
                    f"{self._where}: batch_axes={self.batch_axes!r} must be an integer, or one for each name."
                )
        return tuple(found)
