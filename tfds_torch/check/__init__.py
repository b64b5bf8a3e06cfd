"""`python -m tfds_torch.check` reads a dataset with real worker processes and proves what came; `shares`: functions."""
