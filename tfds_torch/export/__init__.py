"""Datasets in other formats: `export_dataset`, `python -m tfds_torch.export`; and the command of decoded caches."""
