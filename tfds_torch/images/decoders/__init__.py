"""Decoders of single images, one file each; `images/decoding.py` has their table."""
