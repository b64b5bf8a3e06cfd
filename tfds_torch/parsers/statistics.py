"""Statistics of fields over all steps, as policies normalise actions and states with; in Octo's and OpenVLA's layout.

Source: octo/data/utils/data_utils.py (`get_dataset_statistics`, `normalize_action_and_proprio`) of octo-models/octo,
and the file of the same name of openvla/openvla, which calls the quantiles q01 and q99 instead of p01 and p99.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.kept_values import kept_path, load_kept, store_kept
from tfds_torch.runtime.arguments import check_choice, did_you_mean
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import is_numeric

if TYPE_CHECKING:
    from tfds_torch.parsers.dataset import Dataset

Layout = Literal["openvla", "octo"]
Float64Array = NDArray[np.float64]

_ACTION, _PROPRIO = "action", "proprio"
_QUANTILES = {"openvla": "q", "octo": "p"}


@dataclass(frozen=True, eq=False)
class FieldStatistics:
    """Statistics of one field over n steps, float64 of the shape of one value.

    Attributes:
        mean: mean value.
        std: standard deviation, of the n steps themselves: the sum of squares is divided by n.
        min: least value.
        max: largest value.
        q01: quantile of 1 %, linear between neighbours, as of `np.quantile`.
        q99: quantile of 99 %.
    """

    mean: Float64Array
    std: Float64Array
    min: Float64Array
    max: Float64Array
    q01: Float64Array
    q99: Float64Array

    def as_dict(self, layout: Layout = "openvla") -> dict[str, Any]:
        """Returns name -> numbers, in lists where a value has several; quantiles by the name that a layout has."""
        letter = _QUANTILES[layout]
        values = {one.name: getattr(self, one.name).tolist() for one in fields(self)}
        return {letter + name[1:] if name.startswith("q") else name: value for name, value in values.items()}


@dataclass(frozen=True, eq=False)
class Statistics(Mapping[str, FieldStatistics]):
    """Statistics of some fields of the windows of a parser: field -> FieldStatistics.

    Attributes:
        dataset: name of the dataset.
        by_field: the fields, in the order asked for.
        num_transitions: steps that they are of: one for each window.
        num_trajectories: episodes that these steps belong to.
    """

    dataset: str
    by_field: Mapping[str, FieldStatistics]
    num_transitions: int
    num_trajectories: int

    def __getitem__(self, field: str) -> FieldStatistics:
        return self.by_field[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_field)

    def __len__(self) -> int:
        return len(self.by_field)

    def as_dict(
        self,
        layout: Layout = "openvla",
        *,
        action: str = _ACTION,
        proprio: str | None = None,
        mask: Sequence[bool] | None = None,
    ) -> dict[str, Any]:
        """Returns the statistics of one dataset as Octo and OpenVLA keep them.

        Args:
            layout: "openvla", with the quantiles q01 and q99; or "octo", with p01 and p99.
            action: the field that becomes `action`.
            proprio: the field that becomes `proprio`; None: the only one beside the action, if there is one.
            mask: of each number of the action, whether it is normalised: False for a gripper that is 0 or 1.

        Returns:
            `action` and `proprio`, each mean, std, max, min and two quantiles in lists; further fields by their own
            names; num_transitions and num_trajectories.

        Raises:
            ConfigError: a field has no statistics here, several could be `proprio`, or a mask of another length.
        """
        check_choice("statistics: layout", layout, tuple(_QUANTILES))
        names = {self._checked(action): _ACTION}
        others = [name for name in self if name != action]
        if proprio is not None:
            names[self._checked(proprio)] = _PROPRIO
        elif len(others) == 1:
            names[others[0]] = _PROPRIO
        elif others and _PROPRIO not in others:
            raise ConfigError(
                f"{self.dataset}: several fields could be `proprio`: {', '.join(others)}. Say which one is, such as "
                f"as_dict(proprio={quoted(others[0])})."
            )
        found = {names.get(name, name): one.as_dict(layout) for name, one in self.items()}
        if mask is not None:
            found[_ACTION]["mask"] = self._mask(mask, self[action])
        return found | {"num_transitions": self.num_transitions, "num_trajectories": self.num_trajectories}

    def as_json(
        self,
        layout: Layout = "openvla",
        *,
        name: str | None = None,
        action: str = _ACTION,
        proprio: str | None = None,
        mask: Sequence[bool] | None = None,
    ) -> str:
        """Returns the text of a `dataset_statistics.json`; arguments and errors as of `as_dict`.

        Args:
            layout: see `as_dict`.
            name: the dataset's name, as the key of its statistics: OpenVLA's files hold several datasets, and a policy
                names one as `unnorm_key`. None: the file is of this dataset alone.
            action: see `as_dict`.
            proprio: see `as_dict`.
            mask: see `as_dict`.
        """
        own = self.as_dict(layout, action=action, proprio=proprio, mask=mask)
        return json.dumps(own if name is None else {name: own}, indent=2)

    def _checked(self, field: str) -> str:
        if field not in self.by_field:
            raise ConfigError(
                f"{self.dataset}: there are no statistics of {quoted(field)} here: they are of "
                f"{', '.join(self)}.{did_you_mean(field, list(self))}"
            )
        return field

    def _mask(self, mask: Sequence[bool], action: FieldStatistics) -> list[bool]:
        values = np.asarray(mask)
        if values.dtype != np.bool_ or values.shape != action.mean.shape:
            raise ConfigError(
                f"{self.dataset}: mask={quoted(mask)} must have one bool for each number of the action, of the shape "
                f"{action.mean.shape}."
            )
        flags: list[bool] = values.tolist()
        return flags


@dataclass(frozen=True, eq=False)
class MemberStatistics(Mapping[str, Statistics]):
    """Statistics of the members of a mixture: name -> Statistics. Each dataset is normalised with its own.

    Attributes:
        by_member: the members, in their order.
    """

    by_member: Mapping[str, Statistics]

    def __getitem__(self, member: str) -> Statistics:
        return self.by_member[member]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_member)

    def __len__(self) -> int:
        return len(self.by_member)

    def as_dict(
        self,
        layout: Layout = "openvla",
        *,
        action: str = _ACTION,
        proprio: str | None = None,
        mask: Mapping[str, Sequence[bool]] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Returns member -> its statistics, as Octo's and OpenVLA's policies hold them.

        Args:
            layout: see `Statistics.as_dict`, as for the other arguments.
            action: the field that becomes `action`.
            proprio: the field that becomes `proprio`.
            mask: member -> of each number of the action, whether it is normalised.

        Raises:
            ConfigError: as `Statistics.as_dict`; or mask names a member that is not there.
        """
        masks = mask or {}
        unknown = next((name for name in masks if name not in self.by_member), None)
        if unknown is not None:
            there = ", ".join(self)
            raise ConfigError(f"mask= names the member {quoted(unknown)}: the mixture has {there}.")
        return {
            name: own.as_dict(layout, action=action, proprio=proprio, mask=masks.get(name))
            for name, own in self.items()
        }

    def as_json(
        self,
        layout: Layout = "openvla",
        *,
        action: str = _ACTION,
        proprio: str | None = None,
        mask: Mapping[str, Sequence[bool]] | None = None,
    ) -> str:
        """Returns the text of a `dataset_statistics.json` of several datasets; arguments and errors as of `as_dict`."""
        return json.dumps(self.as_dict(layout, action=action, proprio=proprio, mask=mask), indent=2)


def read_statistics(parser: "Dataset", names: Sequence[str], *, stored: bool = False) -> Statistics:
    """Returns statistics of fields over the own steps of a parser's windows, from the cache folder where they are kept.

    Those of what a function of the user's gives are computed each time.

    Args:
        parser: has windows.
        names: the fields.
        stored: whether they are of what is stored, as in `Dataset.columns`.

    Raises:
        ConfigError: as of `Dataset.columns`; a field is not numbers, a value is not finite, or there are no windows.
        ShardError, CorruptRecordError: as reading raises them.
    """
    if isinstance(names, str):
        raise ConfigError(f"statistics: fields={quoted(names)} must be a list of the names of fields.")
    if stored:
        parser = parser.as_stored(names)
    episode = parser.columns(["episode"])["episode"]
    parser.check_fields(names)
    if not len(episode):
        raise ConfigError(f"{parser.dataset_name}: there are no windows, and so no statistics.")
    keys = {name: parser.column_keys(name) for name in names}
    of_none = {name: parser.number_of_none(name) for name in names}
    files = {
        name: kept_path("statistics", (1, parser.fingerprint, parser.source.stamps, own), ".json")
        for name, own in keys.items()
        if own is not None and of_none[name] is None  # Those of older versions count None as a number.
    }
    found = {name: own for name, file in files.items() if (own := _decode(load_kept(file))) is not None}
    for name, values in parser.columns([name for name in keys if name not in found]).items():
        _check_numbers(parser, name, values, of_none[name])
        found[name] = compute_statistics(values)
        if name in files:
            store_kept(files[name], json.dumps(found[name].as_dict()).encode(), "Statistics")
    in_order = {name: found[name] for name in keys}
    return Statistics(parser.dataset_name, in_order, len(episode), len(np.unique(episode)))


def compute_statistics(values: NDArray[Any]) -> FieldStatistics:
    """Returns the statistics of n values, [n, ...] of numbers, n >= 1, all finite; computed in float64."""
    shape = values.shape[1:]
    rows = values.reshape(len(values), -1)
    found: dict[str, list[Any]] = {one.name: [] for one in fields(FieldStatistics)}
    for place in range(rows.shape[1]):  # One number of a step after the other: memory stays small.
        column = rows[:, place].astype(np.float64)
        low, high = np.quantile(column, [0.01, 0.99])
        own = (column.mean(), column.std(), column.min(), column.max(), low, high)
        for numbers, value in zip(found.values(), own, strict=True):
            numbers.append(value)
    return FieldStatistics(**{name: np.array(own, np.float64).reshape(shape) for name, own in found.items()})


def _decode(content: bytes | None) -> FieldStatistics | None:
    """Returns the statistics that are kept; None: there are none."""
    if content is None:
        return None
    try:
        found = json.loads(content)
        return FieldStatistics(**{one.name: np.array(found[one.name], np.float64) for one in fields(FieldStatistics)})
    except (ValueError, TypeError, KeyError):
        return None


def _check_numbers(parser: "Dataset", name: str, values: NDArray[Any], none: float | None) -> None:
    if not is_numeric(values.dtype) or values.dtype.kind == "c":
        raise ConfigError(
            f"{parser.dataset_name}: statistics are of numbers, and the field {quoted(name)} is texts or bytes."
        )
    num_none = 0 if none is None else np.count_nonzero((values == none).reshape(len(values), -1).all(axis=1))
    if num_none:
        number = "-np.inf" if none == -np.inf else repr(none)
        largest = "" if values.ndim == 1 else f".reshape({len(values)}, -1).max(axis=1)"
        raise ConfigError(
            f"{parser.dataset_name}: {quoted(name)} is an optional feature, and {num_none:,} of {len(values):,} values "
            f"are None, for which TFDS reads {number}. Leave these steps out: "
            f"parser.subset(parser.columns([{quoted(name)}])[{quoted(name)}]{largest} > {number})."
        )
    is_finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not is_finite.all():
        row = int(np.flatnonzero(~is_finite)[0])
        (id_,) = parser.ids(parser.indices[row : row + 1])
        raise ConfigError(
            f"{parser.dataset_name}: {np.count_nonzero(~is_finite):,} of {len(values):,} values of {quoted(name)} are "
            f"not finite, the first one at {id_}. Leave these steps out: "
            f"parser.subset(np.isfinite(parser.columns([{quoted(name)}])[{quoted(name)}]).all(axis=1))."
        )
