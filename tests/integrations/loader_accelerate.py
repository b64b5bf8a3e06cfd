"""Ranks that train with Hugging Face Accelerate over Loaders: `loader_accelerate.py FUNCTION ARGUMENTS...`."""

import json
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # As a script, this folder is on the path; the package of the tests is one up. Spawned workers inherit the path.
    sys.path[0] = str(Path(__file__).parents[1])

import torch
from torch_data.reading import rows_of

from integrations.accelerate_scenarios import make_accelerator, make_dataset
from tfds_torch import create_loader


def train_and_evaluate(root: str) -> dict[str, Any]:
    """Everything goes through `prepare`, which leaves Loaders as they are."""
    accelerator = make_accelerator()
    loaders = [
        create_loader(make_dataset(root, is_training), device=accelerator.device) for is_training in (True, False)
    ]
    model = torch.nn.Linear(1, 10)
    _, train_loader, eval_loader = accelerator.prepare(model, *loaders)
    result = {
        "same": [train_loader is loaders[0], eval_loader is loaders[1]],
        "len": [len(train_loader), len(eval_loader)],
        "epochs": [rows_of(train_loader) for _ in range(2)],
        "evaluated": [rows_of(eval_loader) for _ in range(2)],
    }
    accelerator.end_training()
    return result


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)
