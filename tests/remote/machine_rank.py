"""A rank of one of several machines, started by torchrun: `machine_rank.py JSON`, by which it prints one line of JSON.

JSON: root, batch_size (of each rank), read (of ReadOptions). The line: rank, the examples of each batch of an epoch,
and how many bytes the fetcher of this rank has fetched.
"""

import json
import sys
from typing import Any

import torch.distributed

from tfds_torch import ImageDataset, ParserTfds, ReadOptions, create_loader


def main(setup: dict[str, Any]) -> None:
    torch.distributed.init_process_group("gloo")
    read = ReadOptions(**setup["read"])
    parser = ParserTfds(setup["root"], "numbered:1.0.0", is_training=True, batch_size=setup["batch_size"], read=read)
    with create_loader(ImageDataset(parser, fields=("index", "label")), num_workers=1) as loader:
        batches = []
        for index, label in loader:
            assert torch.equal(index, label)
            batches.append(index.tolist())
    rank, fetched = torch.distributed.get_rank(), parser.source.files.store.stats()["bytes_fetched"]
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.write(f"{json.dumps([rank, batches, fetched])}\n")  # One write: ranks of a machine share their pipe.


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
