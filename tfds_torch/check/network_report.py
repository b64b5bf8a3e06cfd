"""What was asked of object stores, in words and as a table."""

from tfds_torch.check.figures import plural, show_bytes
from tfds_torch.check.findings import Findings
from tfds_torch.storage.network import NetworkStats

Rows = tuple[list[str], list[list[str]]]


def describe_network(findings: Findings) -> str:
    """Returns what was asked of object stores, in a line; nothing where all files are of this machine."""
    network, parser = findings.network, findings.parser
    if network is None or parser is None:
        return ""
    split_bytes = len(parser.source) * parser.mean_example_bytes
    share = f" ({network.bytes_fetched / split_bytes:.2f} of the split)" if split_bytes else ""
    again = f", {network.retries} of them sent again" if network.retries else ""
    return (
        f"Network: {plural(network.requests, 'request')}{again}; {show_bytes(network.bytes_fetched)} fetched{share}, "
        f"{show_bytes(network.bytes_delivered)} read; readers waited {network.waited_s:.1f} s, all together"
    )


def network_rows(findings: Findings) -> Rows | None:
    """Returns the table of what came while the first rank read each epoch, and at other times; None: nothing is known.

    The shards without an index come before the first epoch.
    """
    if findings.network is None or not findings.readings or not findings.readings[0].networks:
        return None
    first, rows = findings.readings[0], []
    for epoch, (times, number, network) in enumerate(zip(first.times, first.num_examples, first.networks, strict=True)):
        rate = f"{network.bytes_fetched / 1e6 / times.whole_s:.1f}"
        speed = f"{number / times.whole_s:,.0f}"
        fetched = show_bytes(network.bytes_fetched)
        rows.append([str(epoch), f"{times.whole_s:.2f}", speed, fetched, rate, f"{network.waited_s:.2f}"])
    other = findings.network - sum(first.networks, NetworkStats())
    rows.append(["other", "", "", show_bytes(max(0, other.bytes_fetched)), "", f"{max(0.0, other.waited_s):.2f}"])
    return ["epoch", "seconds", "examples/s", "fetched", "MB/s", "waited s"], rows
