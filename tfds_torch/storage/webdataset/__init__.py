"""WebDataset's tar files: samples as members that share a key."""
