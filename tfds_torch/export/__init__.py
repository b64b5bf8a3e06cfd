"""Datasets written into other formats: `export_dataset`, and `python -m tfds_torch.export`; also the cache's command."""
