"""litData: chunks of the same encoded images on a server, through a cache folder on this machine.

Configured as its documentation does it for training, with everything else a default: shuffled; encoded images as bytes,
which Pillow decodes in the workers, where the shared transform cuts and resizes; its own loader; persistent workers. It
speaks S3, with the server as the endpoint and made-up keys, whose signature it does not look at, and keeps all chunks
(`max_cache_size`), which have 64 MB as it advises. One thing is done for it that its documentation does not name: its
client refuses plain http unless it is allowed.
"""

import os
from typing import Any

from benchmarks.peers.streaming_mds import CHUNK_BYTES, S3_KEYS, Decoded
from benchmarks.protocol import Epochs, Task, serve
from benchmarks.transform import read_tars

MOST_CACHE = "1000GB"


def prepare(task: Task) -> None:
    """Writes the images of `task.tars` with its own writer: the encoded image as it is, and the label."""
    import litdata

    litdata.optimize(
        fn=_examples,
        inputs=[task.tars],
        output_dir=f"{task.files}/litdata",
        num_workers=1,
        chunk_bytes=CHUNK_BYTES,
        verbose=False,
    )


def _examples(tars: str) -> Any:
    for image, label in read_tars(tars):
        yield {"image": image, "label": label}


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    os.environ.update(S3_KEYS)
    import litdata
    from litdata.streaming import downloader
    from litdata.streaming.resolver import Dir

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    photos = litdata.StreamingDataset(
        Dir(path=task.options["cache_dir"], url=f"s3://{task.options['bucket']}/litdata_chunks/litdata"),
        shuffle=task.is_training,
        max_cache_size=MOST_CACHE,
        storage_options={"endpoint_url": task.options["endpoint"]},
        transform=Decoded(task),
    )
    loader = litdata.StreamingDataLoader(
        photos, batch_size=task.batch_size, num_workers=task.num_workers, persistent_workers=task.num_workers > 0
    )
    return lambda epoch: (images for images, _ in loader)


if __name__ == "__main__":
    serve(
        load,
        ("litdata", "torch"),
        prepare=prepare,
        install="in an environment of its own: pip install litdata obstore pillow; then --venv litdata=DIR",
    )
