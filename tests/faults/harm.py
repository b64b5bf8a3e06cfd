"""What happens to the process that comes to a certain example, and a parser whose readers it happens to.

Importable without torch: workers of a MultiLoader have none.
"""

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tfds_torch import ParserTfds
from tfds_torch.errors import CorruptRecordError

LAST_WORDS = "the last words"
SIGNALS = {
    "kill": signal.SIGKILL,
    "segfault": signal.SIGSEGV,
    "bus": signal.SIGBUS,
}


@dataclass(frozen=True)
class Harm:
    """Happens once, to the process that comes to an example.

    Attributes:
        how: a key of SIGNALS, `exit`, `hang`, `slow`, `wait` (for the file `gate`), or the name of an error.
        index: of the example.
        folder: where the file `reached` is made first.
    """

    how: str
    index: int
    folder: str

    def __call__(self, indices: Collection[int]) -> None:
        """Does harm, if the example is one of these."""
        if self.index not in indices:
            return
        try:
            (Path(self.folder) / "reached").touch(exist_ok=False)
        except FileExistsError:
            return
        self._act()

    def _act(self) -> None:
        if self.how in (*SIGNALS, "exit"):
            print(LAST_WORDS, file=sys.stderr, flush=True)
            faulthandler.disable()  # pytest's own would write more.
        if self.how in SIGNALS:
            os.kill(os.getpid(), SIGNALS[self.how])
            time.sleep(60)  # A signal may come a moment later.
        elif self.how == "exit":
            os._exit(0)
        elif self.how == "hang":
            time.sleep(3600)
        elif self.how == "slow":
            time.sleep(0.5)
        elif self.how == "wait":
            while not (Path(self.folder) / "gate").exists():
                time.sleep(0.01)
        else:
            raise_error(self.how)


class HarmedParser(ParserTfds):
    """A parser whose reader is harmed before it hands over a batch with a certain example."""

    def __init__(self, harm: Harm | None, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.harm = harm

    def batches(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        for batch in super().batches(*arguments, **options):
            if self.harm is not None:
                self.harm(batch.index.tolist())
            yield batch


@dataclass(frozen=True)
class HarmedTarget:
    """A target transform, for labels that are the examples' indices."""

    harm: Harm

    def __call__(self, label: Any) -> Any:
        self.harm([int(label)])
        return label


class TwoArgumentsError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first, second)


def raise_error(name: str) -> NoReturn:
    """Raises an exception."""
    if name == "local":

        class LocalError(Exception):
            def __reduce__(self) -> Any:
                raise TypeError("not to be pickled")

        raise LocalError("only here")
    if name == "two arguments":
        raise TwoArgumentsError("one", "two")
    if name == "nested":
        try:
            raise OSError("the cause")
        except OSError as error:
            raise ValueError("the error") from error
    if name == "tensorflow":
        import tensorflow as tf

        raise tf.errors.DataLossError(None, None, "tensorflow's own")
    errors = {
        "end of file": EOFError("the file is cut"),
        "broken pipe": BrokenPipeError("the user's own pipe"),
        "stop iteration": StopIteration("not the end"),
        "key": KeyError("no such key"),
        "ours": CorruptRecordError("file x, offset 3"),
    }
    raise errors[name]
