"""Processes and their health, on the standard library only."""
