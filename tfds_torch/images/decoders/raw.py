"""Images that are stored as pixels: nothing is left to decode, but channels may have to be converted."""

import numpy as np
from PIL import Image

from tfds_torch.images.decoders.decoder import ImageDecodeError, Pixels

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def convert(pixels: Pixels, mode: str, out: Pixels | None) -> Pixels:
    """Return pixels, uint8 [h, w, C], in a mode, as Pillow converts them; without `out` perhaps the same memory."""
    stored = _MODES.get(pixels.shape[-1])
    if stored is None:
        raise ImageDecodeError(f"It is stored as pixels of {pixels.shape[-1]} channels, and 1, 3 or 4 can be read.")
    if stored != mode:
        converted = np.array(Image.fromarray(pixels[..., 0] if stored == "L" else pixels).convert(mode))
        pixels = converted if converted.ndim == 3 else converted[..., None]
    if out is None:
        return pixels
    out[...] = pixels
    return out
