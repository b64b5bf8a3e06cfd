"""The command `python -m tfds_torch.remote`: what is cached of object stores, and the indices of their shards."""
