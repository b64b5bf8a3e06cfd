"""Episodes: records that hold a sequence of steps; an index of their steps, and windows of them by number."""
