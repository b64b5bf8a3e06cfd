"""Entry point of `python -m tfds_torch.export`."""

import os
import signal
import sys
from types import FrameType

from tfds_torch.export.arguments import parse_arguments

_INTERRUPTED = 130


def _main() -> int:
    flags = parse_arguments(None)
    ending = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, _end) for one in ending}
    try:
        from tfds_torch.export.command import run  # Only now: TFDS takes a second.

        for number, handler in before.items():
            signal.signal(number, handler)
        return run(flags)
    except KeyboardInterrupt:  # One more, while the first one was reported.
        return _INTERRUPTED
    finally:
        for number in ending:  # Only the end of Python is left.
            signal.signal(number, signal.SIG_IGN)
        exec("")  # noqa: S102 (where Ctrl-C met code in a string, a dataclass's, Python would end by the signal)


def _end(number: int, frame: FrameType | None) -> None:
    """Ends this process, which has done nothing yet."""
    try:
        os.write(2, b"Interrupted.\n")
    finally:
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(_main())
