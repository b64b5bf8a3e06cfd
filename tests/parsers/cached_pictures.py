"""Small datasets whose decoded images are cached, and what came of a parser. Importable by every child."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_fixtures import save, write_pictures
from PIL import Image

from tfds_torch import DecodedCache, EvalPreprocess, ParserTfds, World
from tfds_torch.engines.batch import Batch
from tfds_torch.parsers.cache import SUFFIX, read_status, status_path

NUM_EXAMPLES, SIDE, SHARDS = 60, 32, (25, 35)
WHOLE = EvalPreprocess(size=SIDE, crop_pct=1.0)


def small_picture(number: int) -> bytes:
    """Returns a PNG image of 32 x 32 pixels; every fifth one is grey."""
    rng = np.random.default_rng(number)
    image = Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))
    return save(image.convert("L") if number % 5 == 0 else image, "PNG", compress_level=1)


def write_small(root: Path, num_examples: int = NUM_EXAMPLES, masks: Sequence[bytes] = (), first: int = 0) -> Path:
    """Writes the dataset `pictures` of small images from a first one on, whose labels are the examples' indices."""
    images = [small_picture(number) for number in range(first, first + num_examples)]
    return write_pictures(root, images, masks, SHARDS if num_examples == NUM_EXAMPLES else ())


def read(parser: ParserTfds, epoch: int = 0, **options: Any) -> list[Batch]:
    """Returns the batches of an epoch."""
    return list(parser.batches(World(), epoch, **options))


def assert_same_batches(ours: Sequence[Batch], theirs: Sequence[Batch]) -> None:
    """Asserts that batches are equal in everything, pixels and types included."""
    for one, other in zip(ours, theirs, strict=True):
        assert (one.epoch, one.batch, list(one.id)) == (other.epoch, other.batch, list(other.id))
        for name in ("index", "valid", "label"):
            mine, yours = getattr(one, name), getattr(other, name)
            assert (mine is None) == (yours is None)
            if mine is not None:
                assert mine.dtype == yours.dtype
                np.testing.assert_array_equal(mine, yours)
        for mine, yours in zip(one.image, other.image, strict=True):
            assert mine.shape == yours.shape
            assert mine.dtype == yours.dtype
            np.testing.assert_array_equal(mine, yours)


def open_parser(root: Path, cache: DecodedCache | Path | None, preprocess: Any = WHOLE) -> ParserTfds:
    cache = DecodedCache(cache) if isinstance(cache, Path) else cache
    return ParserTfds(root, "pictures", batch_size=16, preprocess=preprocess, cache=cache)


def assert_reads_right(parser: ParserTfds, root: Path) -> None:
    assert_same_batches(read(parser), read(open_parser(root, None, parser.preprocess)))


def caches(folder: Path | DecodedCache) -> list[Path]:
    """Returns the places of the caches of a folder, whether they are complete or not."""
    folder = folder.path if isinstance(folder, DecodedCache) else folder
    return sorted({path.with_suffix(SUFFIX) for path in folder.glob("*-????????????????.*")})


def phase_of(path: Path) -> str:
    """Returns what a cache's builder, or a reader, said of it last."""
    status = read_status(status_path(path))
    assert status is not None
    return status.phase


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]
