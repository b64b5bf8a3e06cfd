"""Datasets for torch's loaders: the only room that imports torch."""
