"""The suite `composed`: people's transforms of PIL images, whose beginning this package does while it decodes."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.suites.epochs import PHOTOS, TURNS
from benchmarks.tables import Column, Ratio, Table
from benchmarks.turns import CPU, FIRST_BATCH, NUM_EXAMPLES, SPEED, Peer, Run, Suite, compare

_SCRIPT = "composed"
_OVER_MEMORY = (
    Peer("memory", "torch dataset in memory", _SCRIPT, options={"way": "memory"}),
    Peer("whole", "ImageDataset, fuse=False", _SCRIPT, options={"way": "whole"}),
    Peer("behind_torch", "ImageDataset, torch's DataLoader", _SCRIPT, options={"way": "behind_torch"}),
    Peer("fused", "ImageDataset, create_loader", _SCRIPT, options={"way": "fused"}),
)
_OVER_TIMM = (
    Peer("timm_itself", "timm's own reader", _SCRIPT, options={"way": "timm"}),
    Peer("drop_in_whole", "install(fuse=False)", _SCRIPT, options={"way": "drop_in_whole"}),
    Peer("drop_in", "install()", _SCRIPT, options={"way": "drop_in"}),
)
_BY_MEMORY = Column("by_memory", "x in memory", "{:.2f}", ratio=Ratio(SPEED.key, by="memory"))
_BY_WHOLE = Column("by_whole", "x fuse=False", "{:.2f}", ratio=Ratio(SPEED.key, by="drop_in_whole"))
_BY_TIMM = Column("by_timm_itself", "x timm's reader", "{:.2f}", ratio=Ratio(SPEED.key, by="timm_itself"))
_OTHERS = (*(replace(column, has_spread=False) for column in (FIRST_BATCH, CPU)), NUM_EXAMPLES)
_WORKS = {
    "plain": "RandomResizedCrop(224), RandomHorizontalFlip, PILToTensor",
    "rand-m5": "timm's transform with rand-m5, bilinear",
    "rand-m5, random": "timm's transform with rand-m5, random interpolation",
}
_WORKS_OF_TIMM = {
    "train.py, no jitter": "timm's train.py --color-jitter 0, its data alone",
    "train.py": "timm's train.py, its data alone",
}


def _measure(run: Run) -> Iterator[Table]:
    data_dir = run.data_dir()
    for works, peers, ratios in (
        (_WORKS, _OVER_MEMORY, (_BY_MEMORY,)),
        (_WORKS_OF_TIMM, _OVER_TIMM, (_BY_WHOLE, _BY_TIMM)),
    ):
        for name, title in works.items():
            table = Table(name, title, "", "way", (SPEED, *ratios, *_OTHERS))
            yield compare(run, table, peers, run.task(data_dir, run.settings.num_photos, options={"transform": name}))


SUITE = Suite(
    "composed",
    "photographs a second through transforms of torchvision and timm",
    f"""{PHOTOS} shuffled, through a transform that is written for PIL images, and delivers batches uint8
    [B, 3, 224, 224] to the training process, which does nothing else. Where the beginning of the transform is fused,
    its crop, resize and flip are done while the image is decoded. {TURNS}""",
    _measure,
    [peer.name for peer in (*_OVER_MEMORY, *_OVER_TIMM)],
)
