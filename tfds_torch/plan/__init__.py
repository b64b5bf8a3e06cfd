"""Which examples, in what order, in how many batches. Pure: numpy and the standard library only."""
