"""Which examples, in what order, in how many batches. It is pure: it uses numpy and the standard library only."""
