"""Encoded examples on disk, by number. No tensorflow, no torch."""
