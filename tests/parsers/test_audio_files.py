"""Audio files to samples."""

import io
import sys
import wave
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.audio_files import decode_audio


def write_wav(samples: np.ndarray, width: int = 2) -> bytes:
    """Returns a WAV file of integers [samples, channels]."""
    shifted = samples + 128 if width == 1 else samples
    content = shifted.astype("<i4").reshape(-1, 1).view(np.uint8)[:, :width].tobytes()
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(samples.shape[1])
        writer.setsampwidth(width)
        writer.setframerate(8000)
        writer.writeframes(content)
    return file.getvalue()


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_files_give_the_integers_that_were_written(width: int, channels: int) -> None:
    most = 1 << (8 * width - 1)
    samples = np.random.default_rng(0).integers(-most, most, (50, channels))
    decoded = decode_audio(write_wav(samples, width), channels)
    assert decoded.dtype == np.int32
    assert np.array_equal(decoded, samples)


def test_without_channels_there_is_one_dimension() -> None:
    assert decode_audio(write_wav(np.array([[1], [2]])), None).tolist() == [1, 2]


def test_one_channel_is_repeated_and_several_are_averaged() -> None:
    assert decode_audio(write_wav(np.array([[1], [2]])), 2).tolist() == [[1, 1], [2, 2]]
    assert decode_audio(write_wav(np.array([[1, 3], [-3, -6]])), None).tolist() == [2, -5]
    with pytest.raises(ValueError, match=r"It has 3 channels, and 2 are declared\."):
        decode_audio(write_wav(np.zeros((4, 3), int)), 2)


def test_a_damaged_wav_file_is_an_error() -> None:
    with pytest.raises(ValueError, match="It cannot be read as a WAV file"):
        decode_audio(write_wav(np.zeros((4, 1), int))[:20], None)


def test_other_files_need_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    floats = write_wav(np.zeros((4, 1), int)).replace(b"fmt \x10\0\0\0\x01", b"fmt \x10\0\0\0\x03")
    for file in (b"fLaC", floats):
        with pytest.raises(ConfigError, match=r"that are not plain WAV files.*pip install soundfile"):
            decode_audio(file, None)


@pytest.mark.parametrize(("subtype", "shift"), [("PCM_16", 16), ("PCM_24", 8), ("PCM_S8", 24), ("VORBIS", 16)])
def test_soundfile_gives_the_integers_that_are_stored(
    monkeypatch: pytest.MonkeyPatch, subtype: str, shift: int
) -> None:
    monkeypatch.setitem(
        sys.modules, "soundfile", fake_soundfile(subtype, np.array([[3 << shift], [-5 << shift]], np.int32))
    )
    assert decode_audio(b"fLaC", None).tolist() == [3, -5]


def test_what_soundfile_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", fake_soundfile("PCM_16", None))
    with pytest.raises(ValueError, match=r"It cannot be read as an audio file: Format not recognised\."):
        decode_audio(b"junk", None)


def fake_soundfile(subtype: str, samples: np.ndarray | None) -> Any:
    """Returns what of soundfile is used, with samples scaled to 32 bits; None: it refuses the file."""

    class SoundFileError(Exception):
        error_string = "Format not recognised."

    class SoundFile:
        def __init__(self, file: Any) -> None:
            if samples is None:
                raise SoundFileError
            self.subtype = subtype

        def __enter__(self) -> "SoundFile":
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def read(self, dtype: str, always_2d: bool) -> Any:
            assert (dtype, always_2d) == ("int32", True)
            return samples

    return SimpleNamespace(SoundFile=SoundFile, SoundFileError=SoundFileError)
