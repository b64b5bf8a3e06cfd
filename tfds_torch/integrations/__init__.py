"""Adapters for other libraries' training loops, switched on by hand: importing this room changes nothing."""
