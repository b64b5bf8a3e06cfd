"""Batches without torch: Feeder, threads that fill the queues of named sources."""
