"""Datasets in other formats: `export_dataset` and `python -m tfds_torch.export`."""
