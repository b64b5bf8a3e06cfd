"""The user's own datasets, which have a length and return any item by its number."""
