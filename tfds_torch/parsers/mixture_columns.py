"""Columns of a mixture: those of its members, one behind the other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.mixture_members import Members
from tfds_torch.parsers.mixture_source import MEMBER
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted


def read_member_columns(members: Members, names: Sequence[str], index: Int64Array) -> dict[str, NDArray[Any]]:
    """Returns fields of windows by their numbers in a mixture, int64 [n], in the order asked.

    Args:
        members: name -> parser.
        names: fields that all of them have; `member` is the number of each window's member.
        index: counted over the members, one behind the other.

    Raises:
        ConfigError: as a member raises it; or a field has another shape or dtype in another member.
        ShardError, CorruptRecordError: as reading raises them.
    """
    sizes = np.array([len(parser.source) for parser in members.values()], np.int64)
    stops = np.cumsum(sizes)
    member: Int64Array = np.searchsorted(stops, index, side="right").astype(np.int64)
    own = [name for name in names if name != MEMBER]
    parts = [
        parser.columns_at(own, index[member == number] - (stops[number] - sizes[number]))
        for number, parser in enumerate(members.values())
    ]
    columns: dict[str, NDArray[Any]] = {MEMBER: member}
    for name in own:
        found = [part[name] for part in parts]
        _check_agree(members, name, found)
        columns[name] = np.empty((len(index), *found[0].shape[1:]), found[0].dtype)
        for number, values in enumerate(found):
            columns[name][member == number] = values
    return {name: columns[name] for name in names}


def _check_agree(members: Members, name: str, found: Sequence[NDArray[Any]]) -> None:
    forms = [f"{values.dtype} {list(values.shape[1:])}" for values in found]
    for member, form in zip(members, forms, strict=True):
        if form != forms[0]:
            raise ConfigError(
                f"columns: the field {quoted(name)} is {forms[0]} in the member {quoted(next(iter(members)))}, and "
                f"{form} in {quoted(member)}: they cannot be one array. Ask each member, as in "
                f"mixture.members[{quoted(member)}].columns([{quoted(name)}])."
            )
