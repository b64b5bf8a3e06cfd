"""Audio files to samples."""

import io
import sys
import wave

import numpy as np
import pytest
import soundfile

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.audio_files import decode_audio

RATE = 8000


def write_wav(samples: np.ndarray, width: int = 2) -> bytes:
    """Returns a WAV file of integers [samples, channels]."""
    shifted = samples + 128 if width == 1 else samples
    content = shifted.astype("<i4").reshape(-1, 1).view(np.uint8)[:, :width].tobytes()
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(samples.shape[1])
        writer.setsampwidth(width)
        writer.setframerate(RATE)
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


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("subtype", "bits"), [("PCM_S8", 8), ("PCM_16", 16), ("PCM_24", 24)])
def test_flac_files_give_the_integers_that_were_written(subtype: str, bits: int, channels: int) -> None:
    most = 1 << (bits - 1)
    samples = np.random.default_rng(0).integers(-most, most, (50, channels))
    decoded = decode_audio(write(samples << (32 - bits), "FLAC", subtype), channels)
    assert decoded.dtype == np.int32
    assert np.array_equal(decoded, samples)


@pytest.mark.parametrize(("bits", "subtype"), [(8, "PCM_U8"), (8, "PCM_S8"), (24, "PCM_24"), (32, "PCM_32")])
def test_aiff_files_give_the_integers_that_were_written(bits: int, subtype: str) -> None:
    most = 1 << (bits - 1)
    samples = np.array([[-most], [-1], [0], [1], [2], [most - 1]])  # Even: libsndfile pads odd ones
    assert np.array_equal(decode_audio(write(samples << (32 - bits), "AIFF", subtype), 1), samples)


@pytest.mark.parametrize(("kind", "subtype"), [("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III"), ("WAV", "FLOAT")])
def test_samples_that_are_not_stored_as_integers_have_16_bits(kind: str, subtype: str) -> None:
    wave = (20000 * np.sin(np.arange(8000) * (2 * np.pi * 440 / RATE))).astype(np.int64)[:, None]
    decoded = decode_audio(write(wave << 16, kind, subtype), None)
    assert decoded.shape == (8000,)
    assert np.corrcoef(decoded, wave[:, 0])[0, 1] > 0.99
    assert 0.9 < decoded.std() / wave.std() < 1.1


def test_channels_of_a_flac_file_are_averaged_and_repeated() -> None:
    assert decode_audio(write(np.array([[1, 3], [-3, -6]]) << 16, "FLAC", "PCM_16"), None).tolist() == [2, -5]
    assert decode_audio(write(np.array([[1], [-3]]) << 16, "FLAC", "PCM_16"), 2).tolist() == [[1, 1], [-3, -3]]


def test_what_soundfile_refuses_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^It cannot be read as an audio file: Format not recognised\.$"):
        decode_audio(b"junk", None)


def test_a_flac_file_that_is_cut_or_changed_is_an_error() -> None:
    file = write(np.random.default_rng(0).integers(-(1 << 15), 1 << 15, (400, 1)) << 16, "FLAC", "PCM_16")
    changed = bytearray(file)
    changed[len(file) // 2] ^= 4
    for damaged in (file[: len(file) // 2], file[:-1], bytes(changed)):
        with pytest.raises(ValueError, match=r"^It cannot be read as an audio file: .*[^.]\.$"):
            decode_audio(damaged, None)


def write(samples: np.ndarray, kind: str, subtype: str) -> bytes:
    """Returns an audio file of integers [samples, channels] that fill 32 bits."""
    file = io.BytesIO()
    soundfile.write(file, samples.astype(np.int32), RATE, format=kind, subtype=subtype)
    return file.getvalue()
