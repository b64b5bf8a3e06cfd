"""A dataset with the interface of Hugging Face's `datasets.Dataset`, which need not be installed."""

import copy
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image as PilImage


class Image:
    """The feature of an image column."""

    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class HubLabel:
    """The feature of a label column."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


HubImage = Image


class HubDataset:
    """Columns in memory; `log` has the columns of every read, and `num_decoded` counts images."""

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any] | None = None) -> None:
        self._columns, self.features = columns, features or dict.fromkeys(columns, object())
        self._format: str | None = None
        self.log: list[tuple[str, ...]] = []
        self._counts = [0]

    @property
    def num_decoded(self) -> int:
        return self._counts[0]

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    @property
    def format(self) -> dict[str, Any]:
        return {"type": self._format, "columns": self.column_names}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def select_columns(self, names: list[str]) -> "HubDataset":
        found = copy.copy(self)
        found._columns = {name: self._columns[name] for name in names}
        found.features = {name: self.features[name] for name in names}
        return found

    def cast_column(self, name: str, feature: Any) -> "HubDataset":
        found = copy.copy(self)
        found.features = {**self.features, name: feature}
        return found

    def with_format(self, kind: str) -> "HubDataset":
        found = copy.copy(self)
        found._format = kind
        return found

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.log.append(tuple(self._columns))
        return {name: self._decoded(name, column[number]) for name, column in self._columns.items()}

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [self[number] for number in numbers]

    def _decoded(self, name: str, value: Any) -> Any:
        feature = self.features[name]
        if not isinstance(feature, Image) or not feature.decode:
            return value
        self._counts[0] += 1
        image = PilImage.open(io.BytesIO(value["bytes"]))
        return image if self._format is None else np.asarray(image)


class Series:
    """A Series of pandas, whose labels are not the positions of its values."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = np.array(values, object if isinstance(values[0], str) else None)
        self.index = [f"label {number}" for number in range(len(values))]
        self.iloc: Any = self._values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, label: Any) -> Any:
        return self._values[self.index.index(label)]

    def to_numpy(self) -> Any:
        return self._values


class Frame:
    """A DataFrame of pandas."""

    def __init__(self, columns: Mapping[Any, Sequence[Any]]) -> None:
        self._columns = {name: Series(values) for name, values in columns.items()}
        self.columns = list(columns)
        self.iloc, self.index = None, next(iter(self._columns.values())).index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, name: Any) -> Series:
        return self._columns[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.columns)

    def to_numpy(self) -> Any:
        raise AssertionError("its columns have several types")
