"""FFCV's `.beton` files, version 2, written and read without FFCV."""
