"""The command `python -m tfds_torch.remote index`: the indices of shards in object stores."""
