"""WebDataset: tar files of the same encoded images, through its `WebLoader`; from a folder, or over HTTP.

Configured as its documentation does it for training: shards are shuffled (`shardshuffle=100`), then 1,000 encoded
examples (`shuffle(1000)`), before they are decoded by Pillow (`decode("pil")`) and transformed; batches are made in the
workers, with torch's collation, so that they travel in shared memory; persistent workers. Each worker reads its own tar
files. For an evaluation nothing is shuffled. Over HTTP (the option `url`) it reads by curl, as it does by itself: from
the server in every epoch, or by whole files from a folder that it fills (the option `cache_dir`).
"""

from pathlib import Path
from typing import Any

from benchmarks.protocol import Epochs, Task, serve
from benchmarks.transform import transform_of


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    import webdataset as wds
    from torch.utils.data import default_collate

    names = sorted(path.name for path in Path(task.tars).glob("*.tar"))
    shards = [f"{task.options.get('url', task.tars)}/{name}" for name in names]
    cache: dict[str, Any] = {"cache_dir": task.options["cache_dir"]} if "cache_dir" in task.options else {}
    dataset = wds.WebDataset(shards, shardshuffle=100 if task.is_training else False, **cache)
    if task.is_training:
        dataset = dataset.shuffle(1000)
    dataset = (
        dataset.decode("pil")
        .to_tuple("jpg;png", "cls")
        .map_tuple(transform_of(task), int)
        .batched(task.batch_size, collation_fn=default_collate)
    )
    loader = wds.WebLoader(
        dataset, batch_size=None, num_workers=task.num_workers, persistent_workers=task.num_workers > 0
    )
    return lambda epoch: (images for images, _ in loader)


if __name__ == "__main__":
    serve(load, ("webdataset", "torch"))
