"""TFDS datasets on disk. Besides demo/ and the reference reader of check, only this package imports TFDS."""
