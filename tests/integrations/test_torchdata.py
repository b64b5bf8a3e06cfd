"""torchdata's StatefulDataLoader: its state goes on in any number of workers."""

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch_data.reading import LEDGER, rows_of
from torchdata.stateful_dataloader import StatefulDataLoader

from tfds_torch import ImageDataset, ParserTfds
from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.integrations.torchdata import load_state

BATCH_SIZE = 8

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it.


def make_loader(
    root: Path, num_workers: int, kind: Any = StatefulDataLoader, name: str = "photos", batch_size: int = BATCH_SIZE
) -> Any:
    parser = ParserTfds(str(root), name, is_training=True, batch_size=batch_size)
    return kind(ImageDataset(parser, fields=LEDGER), batch_size, num_workers=num_workers)


@pytest.fixture(scope="module")
def epochs(data_root: Path) -> list[Any]:
    loader = make_loader(data_root, 0, DataLoader)
    return [rows_of(loader), rows_of(loader)]


def state_after(loader: Any, num_batches: int) -> Any:
    for _, _ in zip(range(num_batches), loader, strict=False):
        state = loader.state_dict()
    return state


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0), (2, 3), (0, 0), (1, 1)])
def test_a_state_goes_on_exactly_in_other_workers(data_root: Path, epochs: list[Any], before: int, after: int) -> None:
    state = state_after(make_loader(data_root, before), 3)
    loader = make_loader(data_root, after)
    load_state(loader, state)
    assert rows_of(loader) == epochs[0][3:]
    assert rows_of(loader) == epochs[1]


def test_a_plain_loader_goes_on_too(data_root: Path, epochs: list[Any]) -> None:
    loader = make_loader(data_root, 0, DataLoader)
    load_state(loader, state_after(make_loader(data_root, 0), 3))
    assert rows_of(loader) == epochs[0][3:]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 0), (0, 0)])
def test_a_state_goes_on_in_other_batches_where_that_is_allowed(
    data_root: Path, epochs: list[Any], before: int, after: int
) -> None:
    state = state_after(make_loader(data_root, before), 3)
    with pytest.raises(StateMismatchError, match=r"global_batch: 8 in the state, 4 here"):
        begin_at(make_loader(data_root, after, batch_size=4), state)
    loader = make_loader(data_root, after, batch_size=4)
    load_state(loader, state, allow_batch_change=True)
    assert flat(rows_of(loader)) == flat(epochs[0][3:])


def begin_at(loader: Any, state: Any) -> None:
    """Loads a state, which a worker may refuse only when it begins."""
    load_state(loader, state)
    next(iter(loader))


def flat(batches: list[Any]) -> list[Any]:
    """Returns the examples of batches."""
    return [row for batch in batches for row in batch]


def test_states_that_cannot_go_on_are_refused(data_root: Path) -> None:
    state = state_after(make_loader(data_root, 0), 3)
    with pytest.raises(ConfigError, match="does not read an ImageDataset"):
        load_state(StatefulDataLoader([1, 2]), state)
    with pytest.raises(StateMismatchError, match=r"dataset: 'photos:1\.0\.0' in the state, 'digits:1\.0\.0' here"):
        load_state(make_loader(data_root, 1, name="digits"), state)
    with pytest.raises(StateMismatchError, match="is a dict with '_snapshot' or 'dataset_state'"):
        load_state(make_loader(data_root, 1), "nothing")  # type: ignore[arg-type]
    with pytest.raises(AssertionError):  # Why there is load_state.
        iter(make_loader_with(data_root, state))


def make_loader_with(root: Path, state: Any) -> Any:
    loader = make_loader(root, 1)
    loader.load_state_dict(state)
    return loader
