"""Identities: plain JSON values that say what something is, and the digests of them."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

Identity = Mapping[str, Any]
"""Plain JSON values, by name."""


def digest_of(*values: Any) -> str:
    """Return 32 hexadecimal digits over plain JSON values, whatever the order of mappings.

    Raises:
        TypeError: a value is not one of JSON's.
    """
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))  # ASCII, also of names that are not UTF-8.
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
