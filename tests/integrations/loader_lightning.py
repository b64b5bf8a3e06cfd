"""The programs of lightning_scenarios.py, with Loaders in place of torch's: same arguments, same results."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # As a script, this folder is on the path; the package of the tests is one up. Spawned workers inherit the path.
    sys.path[0] = str(Path(__file__).parents[1])

from integrations import lightning_scenarios as scenarios
from tfds_torch import ImageDataset, Loader, ParserTfds, create_loader


def make_loader(root: str, is_training: bool, num_workers: int = 0) -> Loader:
    parser = ParserTfds(root, "photos", is_training=is_training, batch_size=scenarios.BATCH_SIZE)
    return create_loader(ImageDataset(parser, fields=scenarios.LEDGER), num_workers)


if __name__ == "__main__":
    scenarios.make_loader = make_loader  # type: ignore[assignment]
    getattr(scenarios, sys.argv[1])(*sys.argv[2:])
