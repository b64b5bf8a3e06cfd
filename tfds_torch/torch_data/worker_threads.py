"""How many threads torch uses in a worker that is not torch's own."""

import torch


def use_one_thread() -> None:
    """Lets torch compute in the calling thread alone, as in the workers of its DataLoader."""
    torch.set_num_threads(1)
