"""Folders of image files, one example each."""
