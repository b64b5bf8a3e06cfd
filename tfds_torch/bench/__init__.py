"""`python -m tfds_torch.bench`: measures this package against its peers, on this machine."""
