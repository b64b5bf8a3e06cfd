"""Numbers of the type bfloat16: arrays of ml_dtypes, and tensors of torch; tensorflow stays out of this process."""

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow_datasets as tfds
import torch
from zygote import tensorflow_zygote

from parsers.robot_episodes import write_dataset
from tfds_torch import ImageDataset, MultiLoader, ParserMapStyle, ParserMixture, ParserTfds, Windows, create_loader
from tfds_torch.errors import ConfigError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def declared_as(halves: Path, folder: Path, dtype: str) -> Path:
    """Returns a copy of the episodes that says of another type: TFDS writes none of these, and stores all alike."""
    root = Path(shutil.copytree(halves, folder / dtype))
    declared = root / "arm" / "1.0.0" / "features.json"
    declared.write_text(declared.read_text().replace('"float16"', f'"{dtype}"'))
    return root


def write_halves(root: str) -> None:
    vector = tfds.features.Tensor(shape=(3,), dtype=np.float16)
    steps = {"action": vector, "reward": np.float32, "is_first": np.bool_, "is_last": np.bool_}
    features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(steps), "goal": vector})
    write_dataset(root, "arm", features, (4, 3, 5))


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("float16")
    tensorflow_zygote().call(write_halves, str(root))
    return root


@pytest.fixture(scope="module")
def root(halves: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return declared_as(halves, tmp_path_factory.mktemp("other"), "bfloat16")


def open_windows(root: Path) -> ParserTfds:
    return ParserTfds(root, "arm", windows=Windows(offsets={"action": range(2)}), batch_size=4)


def test_whole_examples_have_the_values_that_tfds_wrote(root: Path, halves: Path) -> None:
    parser = ParserTfds(root, "arm", batch_size=3)
    (batch,) = parser.batches(fields=("goal",))
    assert (batch.features["goal"].dtype, batch.features["goal"].shape) == (BFLOAT16, (3, 3))
    (tensor,) = next(iter(create_loader(ImageDataset(parser, fields=("goal",), batched=True))))
    assert tensor.dtype == torch.bfloat16
    np.testing.assert_array_equal(tensor.float().numpy(), batch.features["goal"].astype(np.float32))
    (wanted,) = ParserTfds(halves, "arm", batch_size=3).batches(fields=("goal",))
    np.testing.assert_array_equal(batch.features["goal"], wanted.features["goal"].astype(BFLOAT16))


def test_windows_columns_statistics_and_mixtures(root: Path) -> None:
    parser = open_windows(root)
    column = parser.columns(["action"])["action"]
    assert (column.dtype, column.shape) == (BFLOAT16, (12, 3))
    found = parser.statistics(["action"])["action"]
    np.testing.assert_allclose(found.mean, column.astype(np.float64).mean(axis=0))
    mixture = ParserMixture({"a": parser, "b": open_windows(root)}, batch_size=4)
    for one in (parser, mixture):
        with create_loader(ImageDataset(one, fields=("action",)), 1) as loader:
            tensors = [action for (action,) in loader]
        assert {(tensor.dtype, tensor.shape[1:]) for tensor in tensors} == {(torch.bfloat16, (2, 3))}
        np.testing.assert_array_equal(torch.cat(tensors)[:12, 0].float().numpy(), column.astype(np.float32))
        with MultiLoader(one, 1, fields=("action",)) as arrays:
            assert {batch.features["action"].dtype for batch in arrays} == {BFLOAT16}


def test_own_datasets_hold_arrays_or_tensors_of_it() -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(3, 2)
    for x in (numbers.astype(BFLOAT16), torch.from_numpy(numbers).bfloat16()):
        for rows in ({"x": x}, [{"x": one} for one in x]):
            (batch,) = create_loader(ImageDataset(ParserMapStyle(rows, batch_size=3), fields=("x",), batched=True))
            assert torch.equal(batch[0], torch.from_numpy(numbers).bfloat16())


def test_float8_is_refused_by_name(halves: Path, tmp_path: Path) -> None:
    root = declared_as(halves, tmp_path, "float8_e5m2")
    with pytest.raises(ConfigError, match="The field 'goal' is float8_e5m2, which is not read: leave it out of fields"):
        next(ParserTfds(root, "arm", batch_size=3).batches(fields=("goal",)))
