"""`python -m tfds_torch.bench`: measures this machine."""
