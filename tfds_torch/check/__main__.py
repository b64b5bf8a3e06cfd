"""Entry point of `python -m tfds_torch.check`."""

import signal
import sys

from tfds_torch.check.arguments import parse_arguments

if __name__ == "__main__":
    flags = parse_arguments(None)
    pressed: list[int] = []  # Ctrl-C before there is anyone who could write the report that was asked for.
    is_reported = flags.json is not None or flags.html is not None
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number)) if is_reported else None
    try:
        from tfds_torch.check.command import run  # Only now: torch and TFDS take seconds.
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    if before is not None:
        signal.signal(signal.SIGINT, before)
    try:
        code = run(flags, sys.argv[1:], is_interrupted=bool(pressed))
    except KeyboardInterrupt:  # One more, while the first one was reported.
        code = 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Only the end of Python is left.
    sys.exit(code)
