"""Names of members of tar files: their keys, and whether a tar file has room for them."""

from collections.abc import Sequence
from urllib.parse import quote

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.export.sample_order import SampleOrder
from tfds_torch.export.sample_source import SampleSource
from tfds_torch.export.samples import ParserSamples
from tfds_torch.export.tar_members import Member
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.webdataset.writer import LONGEST_NAME

KEYS = ("number", "id")
_LONGEST_EXTENSIONS = {"image": "webp", "value": "json"}
"""Of kinds of which a value says the extension."""


def number_key(place: int) -> str:
    """Returns the key of members that are called by their place in the export."""
    return f"{place:09d}"


def quote_id(sample_id: str) -> str:
    """Returns the key of members that are called by an id; bytes of it that are not UTF-8 are escaped as well."""
    # Members are told apart by what stands before the first dot.
    return quote(sample_id, safe="", errors="surrogateescape").replace(".", "%2E")


def check_key(key: object, order: SampleOrder) -> None:
    """Raises ConfigError for what members cannot be called by."""
    if not isinstance(key, str) or key not in KEYS:
        raise ConfigError(f"key={quoted(key)} (--key) must be 'number' or 'id'.")
    if key == "id" and order.has_repeats:
        raise ConfigError("key='id' (--key id): indices has an example twice, and keys must differ. Use key='number'.")


def longest_key(key: str, order: SampleOrder, samples: SampleSource) -> str:
    """Returns the longest key of members, as far as the first, the middle and the last id tell.

    Args:
        key: what members are called by, one of KEYS.
        order: of the samples, >= 1 of them.
        samples: that are exported.

    Raises:
        ConfigError: the samples have no ids.
    """
    last = len(order) - 1
    if key == "number":
        return number_key(last)
    if not isinstance(samples, ParserSamples):
        raise ConfigError(f"key='id' (--key id): samples of {samples.name} have no id. Use key='number'.")
    few = np.array([order.number_at(place) for place in (0, last // 2, last)])
    return max(map(quote_id, samples.parser.ids(few)), key=len)


def check_room(members: Sequence[Member], key: str) -> None:
    """Checks that a tar file has room for the names of members.

    Args:
        members: of each sample.
        key: the longest one that is known.

    Raises:
        ConfigError: it has not; all of these members are named.
    """
    room = max(0, LONGEST_NAME - len(f"{key}."))
    refused = [
        f"{quoted(member.key)}: its member would be {quoted(name)}, {len(name):,} characters after the key"
        for member in members
        if len(name := f"{member.name}.{_LONGEST_EXTENSIONS.get(member.kind, member.kind)}".lstrip(".")) > room
    ]
    if refused:
        raise ConfigError(
            f"Nothing was written: a tar file has room for names of {LONGEST_NAME} characters, which leaves {room} "
            f"after the key {quoted(key)}.\n  " + "\n  ".join(refused) + "\nGive such a field a shorter name with "
            "names={name: new} (--rename NAME=NEW), or leave it out with fields={name: None} (--field NAME=skip); of "
            "long keys, use key='number' (--key number)."
        )
