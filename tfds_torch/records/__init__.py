"""Encoded examples on disk. No tensorflow."""
