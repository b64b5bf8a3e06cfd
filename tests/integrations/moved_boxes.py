"""An example whose boxes are painted in its mask: what a transform makes of both must agree."""

from typing import Any

import numpy as np
import torch

from tfds_torch import ImageDataset, ParserMapStyle, create_loader

HEIGHT, WIDTH = 20, 30
PIXELS = np.array([(2, 3, 6, 9), (10, 15, 18, 27), (5, 5, 5, 9), (-4, 20, 4, 34)], np.float32)
"""ymin, xmin, ymax, xmax. The third one is empty, the last one reaches beyond the image."""
SIDES = np.array([HEIGHT, WIDTH, HEIGHT, WIDTH], np.float32)
KEPT = [0, 1, 3]
SEQUENCE = {"objects/bbox": ["objects/label"]}
"""The boxes of an example, with a field that has a row for each."""


def make_example(num_boxes: int = len(PIXELS)) -> dict[str, Any]:
    mask = np.zeros((HEIGHT, WIDTH, 1), np.uint16)
    for row, (top, left, bottom, right) in enumerate(np.maximum(PIXELS[:num_boxes], 0).astype(int)):
        mask[top:bottom, left:right] = 1_000 * (row + 1)
    return {
        "image": np.repeat(np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH, 1) % 251, 3, axis=2).astype(np.uint8),
        "objects/bbox": PIXELS[:num_boxes] / SIDES,
        "objects/label": np.arange(num_boxes),
        "objects/name": np.array([b"a", b"b", b"c", b"d"], object)[:num_boxes],
        "mask": mask,
    }


def call(transform: Any, example: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """Returns an example as a parser would give it, with random numbers of a seed."""
    torch.manual_seed(seed)
    return {**example, **transform(example, np.random.Generator(np.random.Philox(seed)))}


def check_agreement(found: dict[str, Any]) -> list[int]:
    """Fails where boxes and mask differ; returns the rows that are left."""
    boxes, rows, mask = found["objects/bbox"], found["objects/label"], found["mask"]
    assert (boxes.dtype, rows.dtype, mask.dtype) == (np.float32, np.int64, np.uint16)
    assert (boxes.shape, mask.shape) == ((len(rows), 4), (*found["image"].shape[:2], 1))
    assert list(found["objects/name"]) == [b"abcd"[row : row + 1] for row in rows]
    assert set(np.unique(mask)) - {0} == {1_000 * (row + 1) for row in rows}
    for box, row in zip(boxes, rows, strict=True):
        ys, xs = np.nonzero(mask[..., 0] == 1_000 * (row + 1))
        painted = np.array([ys.min(), xs.min(), ys.max() + 1, xs.max() + 1]) / np.tile(mask.shape[:2], 2)
        np.testing.assert_allclose(box, painted, atol=1e-6)
    return list(rows)


def check_mirrored(transform: Any) -> None:
    """Fails where a transform of image and mask, not of boxes, does not mirror both, or gives more than these."""
    found = transform(make_example(), np.random.default_rng())
    assert found.keys() == {"image", "mask"}
    for name, value in found.items():
        np.testing.assert_array_equal(value, make_example()[name][:, ::-1])


def check_worlds(transform: Any) -> None:
    """Fails where batches of two epochs differ with workers."""
    rows = [make_example(number % 5) for number in range(12)]
    names = tuple(name for name in rows[0] if name != "objects/name")  # Texts must be of one number in all rows.
    parser = ParserMapStyle(
        [{name: row[name] for name in names} for row in rows], is_training=True, batch_size=4, transform=transform
    )
    found = []
    for num_workers in (0, 2):
        dataset = ImageDataset(parser, fields=names, as_dict=True, batched=True)
        with create_loader(dataset, num_workers=num_workers) as loader:
            found.append([[np.asarray(value) for value in flat(batch)] for _ in range(2) for batch in loader])
    for batch, other in zip(*found, strict=True):
        assert all(map(np.array_equal, batch, other))
    assert len({batch[0].tobytes() for batch in found[0]}) == len(found[0]) == 6


def flat(batch: dict[str, Any]) -> list[Any]:
    """Returns the values of a batch, and those of its lists one by one."""
    return [one for value in batch.values() for one in (value if isinstance(value, list) else [value])]
