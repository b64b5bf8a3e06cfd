"""TFRecord files: their framing, an index of their records, and reading by number."""
