"""`python -m benchmarks`: measures this package against its peers, on this machine."""
