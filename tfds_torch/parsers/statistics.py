"""Statistics of fields over all steps, for policies that normalise actions and states; in Octo's or OpenVLA's layout.

Source: octo/data/utils/data_utils.py (`get_dataset_statistics`, `normalize_action_and_proprio`) of octo-models/octo,
and the file of the same name of openvla/openvla, which calls the quantiles q01 and q99 instead of p01 and p99.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.kept_values import kept_path, load_kept, store_kept
from tfds_torch.runtime.arguments import check_choice, did_you_mean
from tfds_torch.runtime.printable import quoted
from tfds_torch.runtime.tensor_type import is_numeric
from tfds_torch.storage.source import Source

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
        """Return name -> numbers, in lists where a value has several.

        Args:
            layout: "openvla", with the quantiles q01 and q99; or "octo", with p01 and p99.

        Raises:
            KeyError: there is no such layout.
        """
        letter = _QUANTILES[layout]
        values = {one.name: getattr(self, one.name).tolist() for one in fields(self)}
        return {letter + name[1:] if name.startswith("q") else name: value for name, value in values.items()}


class Statistics(dict[str, FieldStatistics]):
    """Statistics of some fields over the windows of a dataset: field -> FieldStatistics, in the order asked for.

    Args:
        dataset: name of the dataset.
        by_field: field -> its statistics.
        num_transitions: number of steps in the statistics, one for each window.
        num_trajectories: number of episodes that these steps belong to.

    Attributes:
        dataset: name of the dataset.
        num_transitions: number of steps in the statistics, one for each window.
        num_trajectories: number of episodes that these steps belong to.
    """

    def __init__(
        self, dataset: str, by_field: Mapping[str, FieldStatistics], num_transitions: int, num_trajectories: int
    ) -> None:
        super().__init__(by_field)
        self.dataset, self.num_transitions, self.num_trajectories = dataset, num_transitions, num_trajectories

    def as_dict(
        self,
        layout: Layout = "openvla",
        *,
        action: str = _ACTION,
        proprio: str | None = None,
        mask: Sequence[bool] | None = None,
    ) -> dict[str, Any]:
        """Return the statistics of one dataset as Octo and OpenVLA keep them.

        Args:
            layout: "openvla", with the quantiles q01 and q99; or "octo", with p01 and p99.
            action: the field that becomes `action`.
            proprio: the field that becomes `proprio`; None: the only one beside the action, if there is one.
            mask: for each number of the action, whether it is normalised: False for a gripper that is 0 or 1.

        Returns:
            `action` and `proprio`, each mean, std, max, min and two quantiles in lists; further fields by their own
            names; num_transitions and num_trajectories.

        Raises:
            ConfigError: there is no such layout; a field has no statistics here; several fields could be `proprio`; or
                the mask has another length.
        """
        check_choice("statistics: layout", layout, tuple(_QUANTILES))
        for name in (action, proprio):
            if name is not None and name not in self:
                raise ConfigError(
                    f"{self.dataset}: there are no statistics of {quoted(name)} here: they are of "
                    f"{', '.join(self)}.{did_you_mean(name, list(self))}"
                )
        others = [name for name in self if name != action]
        if proprio is None and len(others) > 1 and _PROPRIO not in others:
            raise ConfigError(
                f"{self.dataset}: several fields could be `proprio`: {', '.join(others)}. Say which one is, such as "
                f"as_dict(proprio={quoted(others[0])})."
            )
        names = {action: _ACTION}
        if proprio is not None or len(others) == 1:
            names[proprio or others[0]] = _PROPRIO
        found = {names.get(name, name): one.as_dict(layout) for name, one in self.items()}
        if mask is not None:
            flags, shape = np.asarray(mask), self[action].mean.shape
            if flags.dtype != np.bool_ or flags.shape != shape:
                raise ConfigError(
                    f"{self.dataset}: mask={quoted(mask)} must have one bool for each number of the action, of the "
                    f"shape {shape}."
                )
            found[_ACTION]["mask"] = flags.tolist()
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
        """Return the text of a `dataset_statistics.json`.

        Args:
            layout: "openvla", with the quantiles q01 and q99; or "octo", with p01 and p99.
            name: key of this dataset in the file. OpenVLA's files hold several datasets, and a policy names one by this
                key, as `unnorm_key`. None: the file holds this dataset alone, without a key.
            action: the field that becomes `action`.
            proprio: the field that becomes `proprio`; None: the only one beside the action, if there is one.
            mask: for each number of the action, whether it is normalised: False for a gripper that is 0 or 1.

        Raises:
            ConfigError: as `as_dict` raises it.
        """
        own = self.as_dict(layout, action=action, proprio=proprio, mask=mask)
        return json.dumps(own if name is None else {name: own}, indent=2)


class MemberStatistics(dict[str, Statistics]):
    """Statistics of the members of a mixture: name -> Statistics. Each dataset is normalised with its own."""

    def as_dict(
        self,
        layout: Layout = "openvla",
        *,
        action: str = _ACTION,
        proprio: str | None = None,
        mask: Mapping[str, Sequence[bool]] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Return member -> its statistics, as Octo's and OpenVLA's policies hold them; see `Statistics.as_dict`.

        Args:
            layout: "openvla", with the quantiles q01 and q99; or "octo", with p01 and p99.
            action: the field that becomes `action`.
            proprio: the field that becomes `proprio`; None: the only one beside the action, if there is one.
            mask: member -> for each number of its action, whether it is normalised.

        Raises:
            ConfigError: as `Statistics.as_dict` raises it; or mask names a member that is not there.
        """
        masks = mask or {}
        unknown = next((name for name in masks if name not in self), None)
        if unknown is not None:
            raise ConfigError(f"mask= names the member {quoted(unknown)}: the mixture has {', '.join(self)}.")
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
        """Return the text of a `dataset_statistics.json` of several datasets, with the members' names as keys.

        Args:
            layout: "openvla", with the quantiles q01 and q99; or "octo", with p01 and p99.
            action: the field that becomes `action`.
            proprio: the field that becomes `proprio`; None: the only one beside the action, if there is one.
            mask: member -> for each number of its action, whether it is normalised.

        Raises:
            ConfigError: as `as_dict` raises it.
        """
        return json.dumps(self.as_dict(layout, action=action, proprio=proprio, mask=mask), indent=2)


class HasColumns(Protocol):
    """The part of a dataset that statistics use; the dataset may lie in one directory or in several."""

    @property
    def dataset_name(self) -> str: ...  # noqa: D102
    @property
    def fingerprint(self) -> str: ...  # noqa: D102
    @property
    def source(self) -> Source: ...  # noqa: D102
    @property
    def indices(self) -> NDArray[np.int64]: ...  # noqa: D102
    def ids(self, index: NDArray[np.int64]) -> Sequence[str]: ...  # noqa: D102
    def columns(self, fields: Sequence[str]) -> dict[str, NDArray[Any]]: ...  # noqa: D102
    def column_keys(self, field: str) -> tuple[str, ...] | None: ...  # noqa: D102
    def number_of_none(self, field: str) -> float | None: ...  # noqa: D102


def read_statistics(dataset: HasColumns, names: Sequence[str]) -> Statistics:
    """Return statistics of fields over a dataset's columns, from the cache folder where they are kept.

    Statistics of a field that a user's function makes are computed each time.

    Args:
        dataset: a dataset of windows; its column `episode` has another number for each episode.
        names: the names of the fields.

    Raises:
        ConfigError: `columns` raises it; a field is not numbers, a value is not finite, or there are no windows.
        ShardError, CorruptRecordError: as reading raises them.
    """
    if isinstance(names, str):
        raise ConfigError(f"statistics: fields={quoted(names)} must be a list of the names of fields.")
    episode = dataset.columns(["episode"])["episode"]
    if not len(episode):
        raise ConfigError(f"{dataset.dataset_name}: there are no windows, and so no statistics.")
    keys = {name: dataset.column_keys(name) for name in names}
    files = {
        name: kept_path("statistics", (2, dataset.fingerprint, dataset.source.stamps, own), ".json")
        for name, own in keys.items()
        if own is not None
    }
    found = {name: own for name, file in files.items() if (own := _decode(load_kept(file))) is not None}
    for name, values in dataset.columns([name for name in keys if name not in found]).items():
        _check_numbers(dataset, name, values)
        found[name] = compute_statistics(values)
        if name in files:
            store_kept(files[name], json.dumps(found[name].as_dict()).encode(), "Statistics")
    in_order = {name: found[name] for name in keys}
    return Statistics(dataset.dataset_name, in_order, len(episode), len(np.unique(episode)))


def compute_statistics(values: NDArray[Any]) -> FieldStatistics:
    """Return the statistics of n values, [n, ...] of numbers, n >= 1, all finite; computed in float64."""
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
    """Return statistics from their kept form; None where there are none, or they are damaged."""
    if content is None:
        return None
    try:
        found = json.loads(content)
        return FieldStatistics(**{one.name: np.array(found[one.name], np.float64) for one in fields(FieldStatistics)})
    except (ValueError, TypeError, KeyError):
        return None


def _check_numbers(dataset: HasColumns, name: str, values: NDArray[Any]) -> None:
    """Raise ConfigError where the values of a field have no statistics: texts, None, NaN and infinities."""
    if not is_numeric(values.dtype) or values.dtype.kind == "c":
        raise ConfigError(
            f"{dataset.dataset_name}: statistics are of numbers, and the field {quoted(name)} is texts or bytes."
        )
    column, rows = f"parser.columns([{quoted(name)}])[{quoted(name)}]", values.reshape(len(values), -1)
    flat = "" if values.ndim <= 2 else f".reshape({len(values)}, -1)"
    none = dataset.number_of_none(name)
    num_none = 0 if none is None else np.count_nonzero((rows == none).all(axis=1))
    if num_none:
        number = "-np.inf" if none == -np.inf else repr(none)
        raise ConfigError(
            f"{dataset.dataset_name}: {quoted(name)} is an optional feature, and {num_none:,} of {len(values):,} "
            f"values are None, for which TFDS reads {number}. Leave these steps out: "
            f"parser.subset({column}{flat}{'.max(axis=1)' if values.ndim > 1 else ''} > {number})."
        )
    is_finite = np.isfinite(rows).all(axis=1)
    if not is_finite.all():
        row = int(np.flatnonzero(~is_finite)[0])
        (id_,) = dataset.ids(dataset.indices[row : row + 1])
        raise ConfigError(
            f"{dataset.dataset_name}: {np.count_nonzero(~is_finite):,} of {len(values):,} values of {quoted(name)} are "
            f"not finite, the first one at {id_}. Leave these steps out: "
            f"parser.subset(np.isfinite({column}){flat}{'.all(axis=1)' if values.ndim > 1 else ''})."
        )
