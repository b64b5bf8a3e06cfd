"""Streaming, litData and WebDataset: photographs from a server, through a cache folder on this machine.

Configured as their documentation does it for training, with everything else a default: shuffled; encoded images as
bytes, which Pillow decodes in the workers, where the shared transform cuts and resizes; torch's collation in the
workers; persistent workers. Streaming and litData speak S3, with the server as the endpoint and made-up keys, whose
signature it does not look at. Streaming knows the batch size, and reads its default of 8 batches ahead; litData's
loader is its own, and keeps all chunks (`max_cache_size`). WebDataset reads over HTTP, by curl, as it does by itself:
from the server in every epoch, or (`cached`) by whole files from a folder that it fills. Shards of MDS and chunks of
litData have 64 MB, tar files as many images as the TFRecord files.

Two things are done for them that their documentation does not name. Streaming's client has fetched the index before
workers are forked, which would then take each other's answers from the one connection that they inherit: it is asked to
forget it. litData's client refuses plain http unless it is allowed: it is.

Streaming imports torchvision, of which it uses nothing here. Where torchvision was built for another build of torch, so
that its operators are missing, the one that its import asks for is declared, without an implementation.
"""

import io
import os
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.bucket import BUCKET, LITDATA, MDS, TARS, RemoteWork
from benchmarks.task import Task
from benchmarks.transform import transform_of

MOST_CACHE = "1000GB"
_DECLARED = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))
_KEYS = {
    "AWS_ACCESS_KEY_ID": "made-up",
    "AWS_SECRET_ACCESS_KEY": "made-up",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

Epochs = Callable[[int], Iterable[Any]]


class Decoded:
    """Decodes an example's image and applies a task's work; picklable.

    Args:
        task: the work.
    """

    def __init__(self, task: Task) -> None:
        self._transform = transform_of(task)

    def __call__(self, example: Any) -> Any:
        """Returns uint8 [3, H, W] and the label."""
        image = Image.open(io.BytesIO(example["image"])).convert("RGB")
        return self._transform(image), example["label"]


def load_streaming(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]; by MosaicML Streaming."""
    work = RemoteWork(**task.remote)
    os.environ.update(_KEYS, S3_ENDPOINT_URL=work.url)
    declare_operators()
    import streaming
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    class Photos(streaming.StreamingDataset):  # type: ignore[misc]
        decode = Decoded(task)

        def __getitem__(self, number: int) -> Any:
            return self.decode(super().__getitem__(number))

    clean_stale_shared_memory()  # Of one that was killed.
    photos = Photos(
        remote=f"s3://{BUCKET}/{MDS}", local=work.cache_dir, shuffle=task.is_training, batch_size=task.batch_size
    )
    for stream in photos.streams:
        stream._downloader.clean_up()
    loader: DataLoader[Any] = DataLoader(
        photos,
        batch_size=task.batch_size,
        num_workers=task.num_workers,
        persistent_workers=task.num_workers > 0,
    )
    return lambda epoch: (images for images, _ in loader)


def load_litdata(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]; by litData."""
    work = RemoteWork(**task.remote)
    os.environ.update(_KEYS)
    import litdata
    from litdata.streaming import downloader
    from litdata.streaming.resolver import Dir

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    photos = litdata.StreamingDataset(
        Dir(path=work.cache_dir, url=f"s3://{BUCKET}/{LITDATA}"),
        shuffle=task.is_training,
        max_cache_size=MOST_CACHE,
        storage_options={"endpoint_url": work.url},
        transform=Decoded(task),
    )
    loader = litdata.StreamingDataLoader(
        photos,
        batch_size=task.batch_size,
        num_workers=task.num_workers,
        persistent_workers=task.num_workers > 0,
    )
    return lambda epoch: (images for images, _ in loader)


def load_webdataset(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]; by WebDataset, without a cache."""
    return _load_webdataset(task, {})


def load_webdataset_cached(task: Task) -> Epochs:
    """As `load_webdataset`, with a cache of whole files."""
    return _load_webdataset(task, {"cache_dir": RemoteWork(**task.remote).cache_dir})


def _load_webdataset(task: Task, cache: dict[str, str]) -> Epochs:
    import webdataset as wds
    from torch.utils.data import default_collate

    names = sorted(path.name for path in Path(str(task.converted_dir)).glob("*.tar"))
    work = RemoteWork(**task.remote)
    urls = [f"{work.url}/{BUCKET}/{TARS}/{name}" for name in names]
    dataset = wds.WebDataset(urls, shardshuffle=100, **cache).shuffle(1000).decode("pil").to_tuple("jpg;png", "cls")
    dataset = dataset.map_tuple(transform_of(task), int).batched(task.batch_size, collation_fn=default_collate)
    loader = wds.WebLoader(
        dataset, batch_size=None, num_workers=task.num_workers, persistent_workers=task.num_workers > 0
    )
    return lambda epoch: (images for images, _ in loader)


def declare_operators() -> None:
    """Makes `import torchvision` possible; see above."""
    import torch

    spec = find_spec("torchvision")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    try:
        for path in folder.glob("_C*.so"):
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except OSError:
        _OPERATORS.append(torch.library.Library("torchvision", "DEF"))  # type: ignore[no-untyped-call]
        for operator in _DECLARED:
            _OPERATORS[0].define(operator)


_OPERATORS: list[Any] = []
"""Declarations last as long as their library."""
