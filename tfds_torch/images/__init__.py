"""From encoded images to the pixels of a batch. No tensorflow, no torch."""
