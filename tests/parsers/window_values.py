"""What windows must hold, cut out of episodes as TFDS reads them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parsers.robot_episodes import Robots, value_at
from tfds_torch.parsers.tfds.parser import ParserTfds


def step_fields(robots: Robots, name: str) -> list[str]:
    """Returns the keys of all features of steps."""

    def keys(value: Any, prefix: str = "") -> Iterator[str]:
        for key, inner in value.items():
            if isinstance(inner, dict):
                yield from keys(inner, f"{prefix}{key}/")
            else:
                yield prefix + key

    return sorted(keys(robots.episodes[name][0]["steps"][0]))


def expected_value(
    episode: Mapping[str, Any], key: str, step: int, offsets: Sequence[int] | None, pad: str = "edge"
) -> Any:
    """Returns what a window has of a feature, cut out of an episode as TFDS reads it."""
    steps = episode["steps"]
    values = []
    for offset in (0,) if offsets is None else offsets:
        at = step + offset
        value = value_at(steps[min(max(at, 0), len(steps) - 1)], key)
        if pad == "zero" and not 0 <= at < len(steps):
            value = type(value)() if isinstance(value, list | bytes) else np.zeros_like(value)
            value = value[:0] if key.startswith("objects") else value
        if np.ndim(value) == 3:
            value = np.moveaxis(value, -1, 0)
        values.append(value)
    return values[0] if offsets is None else values


def assert_equal(found: Any, expected: Any, where: str, tolerance: float = 0.0) -> None:
    """Asserts that values are equal in every bit; images of JPEG files within a few grey levels."""
    if isinstance(expected, list):
        assert len(found) == len(expected), where
        for our, their in zip(found, expected, strict=True):
            assert_equal(our, their, where, tolerance)
    elif isinstance(expected, bytes | str):
        assert found == expected, where
    elif tolerance:
        assert found.shape == expected.shape, where
        assert np.abs(found.astype(int) - expected.astype(int)).mean() <= tolerance, where
    else:
        their = np.asarray(expected)
        assert np.shape(found) == their.shape, where
        if their.dtype != object:
            assert np.asarray(found).dtype == their.dtype, where
        np.testing.assert_array_equal(found, their, where)


def check_batches(parser: ParserTfds, robots: Robots, name: str, keys: Sequence[str]) -> int:
    """Compares all windows of a parser with TFDS's; returns how many there are."""
    windows = parser.windows
    assert windows is not None
    padding = [f"{key}_pad" for key in keys if key in windows.offsets]
    count = 0
    for batch in parser.batches(fields=[*keys, *padding, "episode", "step"]):
        count += len(batch)
        for row, (number, step) in enumerate(
            zip(batch.features["episode"].tolist(), batch.features["step"].tolist(), strict=True)
        ):
            episode = robots.episodes[name][number]
            assert batch.id[row] == f"{episode['tfds_id'].decode()}/{step}"
            for key in keys:
                offsets = windows.offsets.get(key)
                expected = expected_value(episode, key, step, offsets, windows.pad)
                is_jpeg = key == "image" or key.startswith("observation/image_")
                tolerance = 2.0 if is_jpeg else 0.0  # TFDS decodes JPEG files in another way than Pillow.
                found = np.moveaxis(batch.image[row], -1, 0) if key == "image" else batch.features[key][row]
                assert_equal(found, expected, f"{key} of {batch.id[row]}", tolerance)
            for key in padding:
                outside = [not 0 <= step + offset < len(episode["steps"]) for offset in windows.offsets[key[:-4]]]
                assert batch.features[key][row].tolist() == outside
    return count
