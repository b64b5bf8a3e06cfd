"""Decoded images of a dataset, kept in a file that is built once for all ranks."""
