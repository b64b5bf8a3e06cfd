"""What a Loader is made of: its processes, its position, its options and what it tells."""
