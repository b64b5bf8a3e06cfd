"""Datasets of the user's own, which have a length and give any item by its number."""
