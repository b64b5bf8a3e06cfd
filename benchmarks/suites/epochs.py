"""The suites `jpeg`, `jpeg_eval`, `png32` and `sample`: examples a second of whole epochs, beside peers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.protocol import EVAL
from benchmarks.tables import Column, Table
from benchmarks.turns import (
    BY_TIMM,
    CPU,
    FIRST_BATCH,
    NUM_EXAMPLES,
    OURS,
    OURS_BY_IT,
    PNG,
    PNGS_FOR_A_PHOTO,
    SPEED,
    TAIL,
    TIMM,
    Peer,
    Run,
    Suite,
    compare,
)

PHOTOS = "Every peer reads the same photographs (the demo dataset `photos`: JPEG, about 500x375, 60 to 120 KB),"
SINGLE = f"""{PHOTOS} shuffled, decodes them whole, cuts and resizes a random piece to 224x224 with Pillow
(antialiased), flips half of them, and delivers batches uint8 [B, 3, 224, 224] to the training process, which does
nothing else."""
TURNS = """Peers live in processes of their own and take turns, epoch by epoch, in an order that is turned around from
round to round; a warm-up epoch is not counted; while the others have their turns, its processes are stopped (SIGSTOP).
Examples per second are those of whole epochs, the wait for the first batch and the tail after the last one included;
ratios are those of epochs of one round: median (least to greatest)."""
_DELIVER = "to the training process, which does nothing else. Each does it in its own fastest way."
_DECODERS = """`ours` decodes by the best decoder of the machine, libturbojpeg 3 where it is installed;
`ours_simplejpeg` by the one that comes with this package."""
_LIMIT = """The limit, `decode and crop alone`, decodes from memory, on all cores, by tensorflow's decoder; it resizes
nothing and hands nothing over."""

_SIMPLEJPEG = {"read": {"jpeg_decoder": "simplejpeg"}}
OURS_PEER = Peer(OURS, "tfds_torch", "ours")
BASELINE = replace(OURS_PEER, name="baseline", title="tfds_torch, baseline")
OURS_0 = Peer("ours_0", "tfds_torch, no workers", "ours", {"num_workers": 0})
TIMM_PEER = Peer(TIMM, "timm create_loader", "timm_reader")
WEBDATASET = Peer("webdataset", "WebDataset", "webdataset_tar", files="tars")
GRAIN = Peer("grain", "Grain", "grain_array_record", files="own")
DATA_SOURCE = Peer(
    "data_source", "tfds.data_source + DataLoader", "data_loader", options={"rows": "data_source"}, files="own"
)
HUGGING_FACE = Peer(
    "hugging_face", "Hugging Face datasets + DataLoader", "data_loader", options={"rows": "hugging_face"}, files="own"
)
FFCV = Peer("ffcv", "FFCV", "ffcv_beton", files="own")
LIMIT = Peer("limit", "decode and crop alone", "decode_limit", {"image_shape": None})
_DALI = Peer("dali", "DALI without a GPU", "dali")
_OTHERS = (TIMM_PEER, WEBDATASET, GRAIN, _DALI, FFCV, LIMIT)
_OURS_SIMPLEJPEG = Peer("ours_simplejpeg", "tfds_torch without libturbojpeg 3", "ours", options=_SIMPLEJPEG)

JPEG = (
    OURS_PEER,
    _OURS_SIMPLEJPEG,
    BASELINE,
    OURS_0,
    replace(OURS_0, name="ours_0_simplejpeg", title=f"{_OURS_SIMPLEJPEG.title}, no workers", options=_SIMPLEJPEG),
    *_OTHERS,
    DATA_SOURCE,
    HUGGING_FACE,
)
JPEG_EVAL = (OURS_PEER, _OURS_SIMPLEJPEG, OURS_0, *_OTHERS)
PNG32 = (
    OURS_PEER,
    BASELINE,
    Peer("ours_batched", "tfds_torch, no preprocess", "ours", options={"has_preprocess": False}),
    OURS_0,
    *_OTHERS,
)
_SINGLE = {"is_single": True}
SINGLES = (
    replace(OURS_PEER, options=_SINGLE),
    replace(BASELINE, options=_SINGLE),
    Peer(TIMM, "timm ReaderTfds", "timm_reader", options=_SINGLE),
    WEBDATASET,
    GRAIN,
    Peer("as_numpy", "tfds.as_numpy", "tfds_as_numpy"),
)


def competitors(*columns: Column) -> Table:
    """Returns the table of a suite that is one comparison, without rows."""
    return Table("competitors", "", "", "competitor", columns)


_WHOLE = competitors(
    SPEED,
    OURS_BY_IT,
    BY_TIMM,
    *(replace(column, has_spread=False) for column in (FIRST_BATCH, TAIL, CPU)),
    NUM_EXAMPLES,
)


def _measure_jpeg(run: Run) -> Iterator[Table]:
    yield compare(run, _WHOLE, JPEG, run.task(run.data_dir(), run.settings.num_photos))


def _measure_jpeg_eval(run: Run) -> Iterator[Table]:
    task = run.task(run.data_dir(), run.settings.num_photos, work=EVAL)
    yield compare(run, _WHOLE, JPEG_EVAL, task, most_rounds=1)


def _measure_png32(run: Run) -> Iterator[Table]:
    number = run.settings.num_photos * PNGS_FOR_A_PHOTO
    yield compare(run, _WHOLE, PNG32, run.task(run.data_dir("cifar10", number), number, dataset="cifar10", **PNG))


def _measure_sample(run: Run) -> Iterator[Table]:
    table = competitors(SPEED, OURS_BY_IT, FIRST_BATCH, TAIL, NUM_EXAMPLES)
    yield compare(run, table, SINGLES, run.task(run.data_dir(), run.settings.num_photos), most_rounds=1)


def names(peers: Sequence[Peer]) -> list[str]:
    """Returns what the command line may choose from."""
    return [peer.name for peer in peers]


SUITES = (
    Suite(
        "jpeg",
        "photographs a second into the training process, in whole batches",
        f"""{PHOTOS} shuffled, cuts and resizes a random piece of each to 224x224, bilinear and antialiased, flips half
        of them, and delivers batches uint8 [B, 3, 224, 224] {_DELIVER} {_DECODERS} A baseline, where --baseline
        names one,
        is another revision of this package, at the same work and with the same settings. {_LIMIT} {TURNS}""",
        _measure_jpeg,
        names(JPEG),
    ),
    Suite(
        "jpeg_eval",
        "photographs of an evaluation a second into the training process, in whole batches",
        f"""{PHOTOS} in the order of the files, resizes their short side to 256, bilinear and antialiased, cuts the
        middle 224x224, and delivers batches uint8 [B, 3, 224, 224] {_DELIVER} {_DECODERS} {_LIMIT} {TURNS} One
        epoch of each
        is measured.""",
        _measure_jpeg_eval,
        names(JPEG_EVAL),
    ),
    Suite(
        "png32",
        "small images a second into the training process, in whole batches",
        f"""Every peer reads the same 32x32 PNG images (cifar10 with made-up content), shuffled, decodes them, and
        delivers batches uint8 [B, 3, 32, 32] {_DELIVER} FFCV reads pixels, not PNG. {_LIMIT} {TURNS}""",
        _measure_png32,
        names(PNG32),
    ),
    Suite(
        "sample",
        "photographs a second through a transform of PIL images, whole epochs",
        f"{SINGLE} {TURNS} One epoch of each is measured.",
        _measure_sample,
        names(SINGLES),
    ),
)
