"""Whether two samples are of one distribution."""

import numpy as np

FAR = 2.23
"""Of samples of one distribution, one in 10,000 is further apart."""


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns the Kolmogorov-Smirnov statistic of two samples, in units of its standard deviation."""
    values = np.concatenate([ours, theirs])
    shares = [np.searchsorted(np.sort(sample), values, side="right") / len(sample) for sample in (ours, theirs)]
    return float(np.abs(shares[0] - shares[1]).max() * np.sqrt(len(ours) * len(theirs) / len(values)))
