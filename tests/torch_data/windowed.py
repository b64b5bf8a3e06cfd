"""Windows of numbered episodes, as conformance.py and the kills drive loaders over them. Importable by every child."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from chosen import choose
from numbered_episodes import FIELDS, check_windows, mix_windows, windows_of

from tfds_torch.engines.batch import Batch
from tfds_torch.parsers.protocol import Parser
from torch_data.resuming import Setup


@dataclass(frozen=True)
class WindowsSetup(Setup):
    """A loader of whole batches of windows: 41, as many as `numbered` has examples; `chosen` says which come."""

    @property
    def content_fields(self) -> tuple[str, ...]:
        return FIELDS

    def check_batch(self, batch: Batch) -> None:
        check_windows(self.what, batch.index.tolist(), as_lists([batch.features[name] for name in FIELDS]))

    @property
    def loader_batch_size(self) -> int | None:
        return None

    @property
    def collate(self) -> Callable[[Any], Any]:
        return partial(columns_of_windows, self.what)

    @property
    def what(self) -> str:
        """A key of STEPS."""
        return "windows"

    def make_parser(self) -> Parser:
        arguments = {name: value for name, value in self.arguments.items() if name != "name"}
        how = arguments.pop("chosen", "all")
        return cast(Parser, choose(windows_of(**arguments, batch_size=self.batch_size), how))


@dataclass(frozen=True)
class MixedWindowsSetup(WindowsSetup):
    """The same over a mixture of three parsers of windows, by weights."""

    @property
    def what(self) -> str:
        return "mixture"

    def make_parser(self) -> Parser:
        arguments = {name: value for name, value in self.arguments.items() if name not in ("name", "chosen")}
        return mix_windows(**arguments, batch_size=self.batch_size)


def columns_of_windows(what: str, batch: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns the numbers of the windows and `valid`, once they have proved to hold the right steps."""
    index, valid, *contents = batch
    check_windows(what, index.tolist(), as_lists(contents))
    return [tuple(index.tolist()), tuple(valid.tolist())]


def as_lists(contents: Sequence[Any]) -> dict[str, Any]:
    """Returns FIELDS in lists."""
    values = [list(value) if isinstance(value, list) else value.tolist() for value in contents]
    return dict(zip(FIELDS, values, strict=True))
