"""Decoders of single images, one file each; images/decoding.py has the table of who decodes what."""
