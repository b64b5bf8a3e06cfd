"""Batches without torch: MultiLoader, with worker processes; Feeder, with threads for named sources."""
