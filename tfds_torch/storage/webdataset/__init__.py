"""WebDataset's tar files: an index of their samples, and reading by number."""
