"""CRC32C of bytes, or of an array of bytes, which is not copied."""

import google_crc32c
import numpy as np
from numpy.typing import NDArray


def _of_a_copy(content: bytes | NDArray[np.uint8]) -> int:
    value: int = google_crc32c.value(bytes(content))
    return value


# The compiled function accepts NumPy's arrays as well; the one in Python needs bytes.
crc32c = google_crc32c.value if google_crc32c.implementation == "c" else _of_a_copy
"""Returns the CRC32C of bytes, or of an array, uint8 [n], that is contiguous."""
