"""ArrayRecord files, read by number."""
