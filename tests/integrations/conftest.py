"""The datasets and the environment are those of `tests/torch_data`."""

from torch_data.conftest import data_root, in_reader, no_ranks

__all__ = ["data_root", "in_reader", "no_ranks"]
