"""Audio files to samples: WAV by Python itself, anything else by soundfile where that is installed."""

import io
import wave

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError

Samples = NDArray[np.int32]


def decode_audio(file: bytes, channels: int | None) -> Samples:
    """Return the samples of an audio file as the stored integers.

    Args:
        file: the content of the file, bytes.
        channels: how many channels to return: one channel is repeated, several are averaged to one; None: one.

    Returns:
        int32 [samples], or [samples, channels] where channels are asked for.

    Raises:
        ValueError: it is not an audio file, or its channels cannot be turned into those asked for.
        ConfigError: soundfile is not installed, and it is not a plain WAV file.
    """
    samples = _decode_wav(file) if file[:4] == b"RIFF" else _decode_other(file)
    found, wanted = samples.shape[1], channels or 1
    if found != wanted:
        if 1 not in (found, wanted):
            raise ValueError(f"It has {found} channels, and {wanted} are declared.")
        samples = np.repeat(samples, wanted, axis=1) if found == 1 else _average(samples)
    return samples if channels else samples[:, 0]


def _decode_wav(file: bytes) -> Samples:
    """Return int32 [samples, channels]."""
    try:
        with wave.open(io.BytesIO(file)) as reader:
            width, channels = reader.getsampwidth(), reader.getnchannels()
            content = reader.readframes(reader.getnframes())
    except (wave.Error, EOFError) as error:
        if "unknown format" in str(error):  # Not plain samples: floats, for example.
            return _decode_other(file)
        raise ValueError(f"It cannot be read as a WAV file: {error or 'it ends too early'}.") from None
    stored = np.frombuffer(content[: len(content) // width * width], np.uint8).reshape(-1, width)
    if width == 1:  # Unsigned, unlike the wider ones.
        samples = stored[:, 0].astype(np.int32) - 128
    else:
        wide = np.zeros((len(stored), 4), np.uint8)
        wide[:, 4 - width :] = stored
        samples = wide.view("<i4")[:, 0].astype(np.int32) >> (8 * (4 - width))
    return samples[: len(samples) // channels * channels].reshape(-1, channels)


def _decode_other(file: bytes) -> Samples:
    """Return int32 [samples, channels]."""
    try:
        import soundfile  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise ConfigError(
            "The dataset keeps audio files that are not plain WAV files. The package soundfile reads them. Install it "
            "with: pip install soundfile"
        ) from None
    try:
        with soundfile.SoundFile(io.BytesIO(file)) as reader:
            shift = {"PCM_24": 8, "PCM_32": 0, "PCM_S8": 24, "PCM_U8": 24}.get(reader.subtype, 16)
            samples: Samples = reader.read(dtype="int32", always_2d=True) >> shift
    except soundfile.SoundFileError as error:
        reason = getattr(error, "error_string", str(error)).rstrip(".")
        raise ValueError(f"It cannot be read as an audio file: {reason}.") from None
    return samples


def _average(samples: Samples) -> Samples:
    averaged: Samples = (samples.sum(axis=1, keepdims=True, dtype=np.int64) // samples.shape[1]).astype(np.int32)
    return averaged
