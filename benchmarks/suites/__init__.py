"""All suites, by name."""

from collections.abc import Mapping

from benchmarks.suites import cached, composed, episodes, epochs, export, mixture, order, remote, start, transforms
from benchmarks.turns import Suite

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        *epochs.SUITES,
        composed.SUITE,
        *start.SUITES,
        order.SUITE,
        cached.SUITE,
        remote.SUITE,
        episodes.SUITE,
        mixture.SUITE,
        export.SUITE,
        transforms.SUITE,
    )
}
