"""Mixes three datasets by weights, and goes on where it was stopped: after Ctrl-C run the same line again.

    python examples/mixture.py --state mixture.json

It counts what comes of each dataset, where a training script would train. `shown` is a digest of all examples in their
order: that of a run which was stopped is that of one which was not.
"""

import argparse
import hashlib
import json
import signal
import sys
from collections import Counter
from pathlib import Path

from tfds_torch import ImageDataset, ParserMixture, ParserTfds, TrainPreprocess, create_loader, demo

WEIGHTS = {"digits": 0.5, "more digits": 0.3, "photos": 0.2}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--state", type=Path, help="file to go on from, and to save to")
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--workers", type=int, default=2)
    args = options.parse_args()
    digits, photos = demo.prepare("digits"), demo.prepare("photos")
    members = {
        "digits": ParserTfds(digits, "digits", split="train"),
        "more digits": ParserTfds(digits, "digits", split="test"),
        "photos": ParserTfds(photos, "photos", class_map={"china": 10, "flower": 11}),  # Digits are 0 to 9.
    }
    parser = ParserMixture(
        members,
        weights=WEIGHTS,
        stop="all_exhausted",  # An epoch ends where every dataset has been read whole once.
        is_training=True,
        batch_size=args.batch_size,
        preprocess=TrainPreprocess(32),
    )
    loader = create_loader(ImageDataset(parser, fields=("image", "label", "member", "id")), args.workers)
    saved = json.loads(args.state.read_text()) if args.state and args.state.exists() else None
    if saved:
        loader.load_state_dict(saved["loader"])
    shown = saved["shown"] if saved else ""

    stops = []
    signal.signal(signal.SIGINT, lambda *_: stops.append("Ctrl-C"))
    for epoch in range(saved["loader"]["epoch"] if saved else 0, args.epochs):
        counts = Counter()
        # Images uint8 [32, 3, 32, 32], labels int64 [32], members int64 [32], 32 ids such as "photos/...__7".
        for _, _, member, ids in loader:
            counts.update(member.tolist())
            shown = hashlib.sha256(f"{shown} {list(ids)}".encode()).hexdigest()
            if stops:
                if args.state:
                    args.state.write_text(json.dumps({"loader": loader.state_dict(), "shown": shown}))
                print(f"stopped in epoch {epoch}" + ("; the same command goes on" if args.state else ""))
                sys.exit(130)
        total = max(1, counts.total())
        shares = ", ".join(f"{name} {counts[number] / total:.1%}" for number, name in enumerate(parser.member_names))
        print(f"epoch {epoch}: {total:,} examples: {shares}", flush=True)
    print(f"shown {shown}")


if __name__ == "__main__":
    main()
