"""Pictures with boxes that can be seen: the area of box j of an image is bright in channel j, and only there."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from storage.webdataset.made_tars import write_samples
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import write_shard

from tfds_torch.storage.beton.fields import BetonArray, BetonInt, BetonJson
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

NAME, NUM_EXAMPLES = "boxed", 12
CLASSES = ["red", "green", "blue"]
_SIZES = [(120, 90), (64, 200), (101, 99), (300, 240)]


def make_boxes(number: int) -> np.ndarray:
    """Returns the boxes of an image, float32 [number % 4, 4]; each has its edges between two pixels."""
    height, width = _SIZES[number % len(_SIZES)]
    rng = np.random.default_rng(number)
    rows = [sorted(rng.choice(np.arange(0, height, 8), 2, replace=False)) for _ in range(number % 4)]
    columns = [sorted(rng.choice(np.arange(0, width, 8), 2, replace=False)) for _ in range(number % 4)]
    pairs = zip(rows, columns, strict=True)
    boxes = [(top / height, left / width, low / height, right / width) for (top, low), (left, right) in pairs]
    return np.array(boxes, np.float32).reshape(-1, 4)


def draw(number: int) -> np.ndarray:
    """Returns an image, uint8 [h, w, 3]."""
    height, width = _SIZES[number % len(_SIZES)]
    pixels = np.zeros((height, width, 3), np.uint8)
    for channel, box in enumerate(make_boxes(number)):
        top, left, low, right = np.round(box * [height, width, height, width]).astype(int)
        pixels[top:low, left:right, channel] = 255
    return pixels


def encode(pixels: np.ndarray, file_format: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, file_format, quality=95, subsampling=0)
    return file.getvalue()


def features(*, is_declared: bool = True, form: str | None = "REL_YXYX") -> Any:
    """Returns the features; whether `bboxes` are declared to be boxes, and of which form, if that is known."""
    f = tfds.features
    box = f.BBoxFeature(bbox_format=form) if is_declared else f.Tensor(shape=(4,), dtype=np.float32)
    row = {"bbox": f.BBoxFeature(bbox_format=form), "label": f.ClassLabel(names=CLASSES), "name": f.Text()}
    return f.FeaturesDict(
        {
            "image": f.Image(shape=(None, None, 3)),
            "mask": f.Image(shape=(None, None, 3)),
            "objects": f.Sequence(row),
            "bboxes": f.Sequence(box),
            "codes": f.Sequence(np.int64),
            "head": f.BBoxFeature(),
            "corners": f.BBoxFeature(bbox_format="XYXY"),
        }
    )


def record(number: int, file_format: str = "PNG", boxes: np.ndarray | None = None) -> bytes:
    """Returns the record of an example; `boxes` are stored in the place of its own."""
    boxes = make_boxes(number) if boxes is None else boxes
    example, channels = tf_example_pb2.Example(), range(len(boxes))
    stored = example.features.feature
    stored["image"].bytes_list.value.append(encode(draw(number), file_format))
    stored["mask"].bytes_list.value.append(encode(draw(number)))
    for name in ("objects/bbox", "bboxes"):
        stored[name].float_list.value.extend(boxes.ravel())
    for name in ("objects/label", "codes"):
        stored[name].int64_list.value.extend(channels)
    stored["objects/name"].bytes_list.value.extend(CLASSES[channel].encode() for channel in channels)
    stored["head"].float_list.value.extend(boxes[0] if len(boxes) else (0, 0, 1, 1))
    stored["corners"].float_list.value.extend((1, 2, 3, 4))
    return example.SerializeToString()


def write_boxed(
    root: Path,
    records: list[bytes] | None = None,
    file_format: str = "PNG",
    name: str = NAME,
    *,
    is_declared: bool = True,
    form: str | None = "REL_YXYX",
) -> Path:
    """Writes a TFDS dataset."""
    records = records or [record(number, file_format) for number in range(NUM_EXAMPLES)]
    directory = root / name / "1.0.0"
    directory.mkdir(parents=True)
    write_shard(directory / f"{name}-train.tfrecord-00000-of-00001", records)
    split = tfds.core.SplitInfo(name="train", shard_lengths=[len(records)], num_bytes=sum(map(len, records)))
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory),
        features=features(is_declared=is_declared, form=form),
        split_infos=[split],
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        check_data=False,
    )
    return root


def write_tar_of_boxes(path: Path) -> Path:
    """Writes a tar: boxes in JSON, and beside it as arrays."""

    def sample(number: int) -> dict[str, Any]:
        boxes = make_boxes(number)
        facts = {"boxes": boxes.tolist(), "labels": [CLASSES[channel] for channel in range(len(boxes))], "id": number}
        return {
            "__key__": f"{number:04d}",
            "png": encode(draw(number)),
            "json": json.dumps(facts).encode(),
            "npy": boxes,
        }

    write_samples(path, map(sample, range(NUM_EXAMPLES)))
    return path


def write_beton_of_boxes(path: Path) -> Path:
    """Writes a `.beton` file whose images have two boxes each, the rest of the field being empty boxes."""
    fields = {"image": BetonImage("raw"), "boxes": BetonArray(np.float32, (3, 4)), "codes": BetonArray(np.int64, (3,))}
    with BetonWriter(path, fields | {"number": BetonInt(), "facts": BetonJson()}, NUM_EXAMPLES) as writer:
        for number in range(NUM_EXAMPLES):
            boxes = np.zeros((3, 4), np.float32)
            own = make_boxes(number)
            boxes[: len(own)] = own
            writer.add((draw(number), boxes, np.arange(3), number, {"number": number}))
    return path


def assert_seen(image: np.ndarray, channels: list[int], boxes: np.ndarray, *, within: float = 1.0) -> None:
    """Boxes end where their channel of an image, uint8 [H, W, 3], is bright."""
    size = np.array(image.shape[:2] * 2)
    assert boxes.dtype == np.float32
    assert boxes.shape == (len(channels), 4)
    assert boxes.min(initial=0) >= 0
    assert boxes.max(initial=1) <= 1
    for channel, box in zip(channels, boxes, strict=True):
        ends = box * size
        if (ends[2:] - ends[:2]).min() < 3:
            continue  # Too thin to be seen.
        rows, columns = np.nonzero(image[..., channel] > 127)
        seen = rows.min(), columns.min(), rows.max() + 1, columns.max() + 1
        assert np.abs(ends - seen).max() <= within, (channel, ends, seen)
