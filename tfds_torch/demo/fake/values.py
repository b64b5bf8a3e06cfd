"""How classes, texts, numbers and sound are filled. For the process that builds."""

import io
import math
import wave
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.demo.fake import words
from tfds_torch.demo.fake.draft import Draft, Fill, Place, deal_class

NUM_UNNAMED_CLASSES = 10
"""Of a class label whose names the real builder reads from its download."""

_FREE_DIMENSION = (2, 9)
_MAX_REPEATED_IDS = 1000
_SOUND_S, _SAMPLE_RATE_HZ = 1.0, 16_000
_LOWEST_HZ, _NUM_TONES = 110, 48
_INT64_MAX = np.iinfo(np.int64).max


def fill_class(feature: Any, place: Place) -> Fill:
    """Returns how `ClassLabel` is filled: dealt, so that each class comes; in a sequence, after the first, drawn."""
    if feature.num_classes is None:
        feature.names = [f"class_{number}" for number in range(NUM_UNNAMED_CLASSES)]
    num_classes = feature.num_classes

    def fill(draft: Draft) -> int:
        if place.count_visit(draft) == 0:
            return deal_class(draft.seed, draft.split, place.path, num_classes, draft.index)
        return int(draft.rng.integers(0, num_classes))

    return fill


def fill_text(feature: Any, place: Place) -> Fill:
    """Returns how `Text` is filled."""
    if feature.shape != ():
        raise place.refuse(feature, "a deprecated encoder makes integers of it")
    return _fill_string(place)


def fill_tensor(feature: Any, place: Place) -> Fill:
    """Returns how `Tensor` and `Scalar` are filled."""
    dtype, shape = np.dtype(feature.np_dtype), tuple(feature.shape)
    if dtype.kind in "OUS":
        fill_one = _fill_string(place)
        return fill_one if shape == () else _fill_strings(fill_one, shape)
    info = feature.get_tensor_info()
    if shape == () and dtype.kind in "iu" and info.minimum is None and info.maximum is None:
        if words.means_id(place.words):
            return _fill_number_id(dtype, place)
        if place.words and place.words[-1] in ("height", "width"):
            return _fill_size(dtype, place.words[-1])
    return _fill_numbers(dtype, shape, *_bounds(info, dtype))


def fill_audio(feature: Any, place: Place) -> Fill:
    """Returns how `Audio` is filled: with a second of a tone that depends on the label."""
    dtype, rate_hz = np.dtype(feature.np_dtype), feature.sample_rate or _SAMPLE_RATE_HZ
    channels = feature.shape[1] if len(feature.shape) > 1 else None
    length = feature.shape[0] or int(_SOUND_S * rate_hz)
    is_file = feature._lazy_decode
    if is_file and feature._file_format not in (None, "wav"):
        raise place.refuse(feature, f"it is kept as a file of the format {feature._file_format!r}")

    def fill(draft: Draft) -> Any:
        frequency_hz = _LOWEST_HZ * 2 ** (draft.label % _NUM_TONES / 12)
        times_s = np.arange(length) / rate_hz
        sound = 0.4 * np.sin(2 * math.pi * frequency_hz * times_s) + draft.rng.normal(0, 0.02, length)  # [length]
        if channels:
            sound = np.repeat(sound[:, None], channels, axis=1)  # [length, channels]
        if is_file:
            return _write_wav(sound, rate_hz)
        if dtype.kind == "f":
            return sound.astype(dtype)
        return (sound * min(32767, np.iinfo(dtype).max)).astype(dtype)

    return fill


def _fill_string(place: Place) -> Fill:
    key_words, name = place.words, place.dataset.partition("/")[0].partition(":")[0]
    is_file_name, is_id = words.means_file_name(key_words), words.means_id(key_words)

    def fill(draft: Draft) -> str:
        visit = place.count_visit(draft)
        number = f"{draft.index:06d}_{visit}" if place.is_repeated else f"{draft.index:06d}"
        if is_file_name:
            return f"{name}_{number}{draft.file_suffix}"
        if is_id:
            return f"{name}_{number}"
        return words.write(key_words, draft.label, draft.rng)

    return fill


def _fill_strings(fill_one: Fill, shape: tuple[int | None, ...]) -> Fill:
    def fill(draft: Draft) -> Any:
        found = _draw_shape(shape, draft.rng)
        values = np.empty(math.prod(found), dtype=object)
        values[:] = [fill_one(draft) for _ in range(values.size)]
        return values.reshape(found)

    return fill


def _fill_number_id(dtype: "np.dtype[Any]", place: Place) -> Fill:
    span = int(np.iinfo(dtype).max) + 1

    def fill(draft: Draft) -> Any:
        number = draft.index * _MAX_REPEATED_IDS + place.count_visit(draft) if place.is_repeated else draft.index
        return dtype.type(number % span)

    return fill


def _fill_size(dtype: "np.dtype[Any]", side: str) -> Fill:
    most = int(np.iinfo(dtype).max)
    return lambda draft: dtype.type(min(getattr(draft.scene, side), most))


def _fill_numbers(dtype: "np.dtype[Any]", shape: tuple[int | None, ...], least: float, most: float) -> Fill:
    def fill(draft: Draft) -> Any:
        found = _draw_shape(shape, draft.rng)
        if dtype.kind == "b":
            values: Any = draft.rng.random(found) < 0.5
        elif dtype.kind in "iu":
            values = draft.rng.integers(int(least), int(most), size=found, endpoint=True)
        else:
            values = draft.rng.uniform(least, most, size=found)
        return np.asarray(values).astype(dtype)

    return fill


def _draw_shape(shape: tuple[int | None, ...], rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(rng.integers(*_FREE_DIMENSION)) if size is None else size for size in shape)


def _bounds(info: Any, dtype: "np.dtype[Any]") -> tuple[float, float]:
    """Returns the least and the greatest number of a tensor: as declared, and where that is free as is usual."""
    usual_least, usual_most = {"f": (0.0, 1.0)}.get(dtype.kind, (0, 255 if dtype == np.uint8 else 99))
    least, most = _finite(info.minimum, np.max), _finite(info.maximum, np.min)
    if least is None:
        least = usual_least if most is None else min(usual_least, most)
    if most is None:
        most = max(usual_most, least)
    return (least, most) if dtype.kind not in "iu" else (max(least, -_INT64_MAX), min(most, _INT64_MAX))


def _finite(bound: Any, tightest: Any) -> Any:
    """Returns the tightest of a tensor's declared bounds, or None where there is none."""
    if bound is None:
        return None
    value = tightest(bound).item()
    return value if math.isfinite(value) else None


def _write_wav(sound: NDArray[np.float64], rate_hz: int) -> io.BytesIO:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1 if sound.ndim == 1 else sound.shape[1])
        writer.setsampwidth(2)
        writer.setframerate(rate_hz)
        writer.writeframes((sound * 32767).astype("<i2").tobytes())
    file.seek(0)
    return file
