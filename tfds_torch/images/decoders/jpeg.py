"""The decoder of JPEG: the user's choice, or the best one of this machine. All of them return the same pixels."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version

from PIL import features

from tfds_torch.errors import ConfigError
from tfds_torch.images.decoders import pillow, simplejpeg, turbojpeg
from tfds_torch.images.decoders.decoder import Decoder

CHOICES = ("auto", "turbojpeg", "simplejpeg", "pillow")
"""`auto` is the first of the others that this machine has."""

_DECODERS: Mapping[str, Sequence[Decoder]] = {
    "turbojpeg": (turbojpeg, pillow),
    "simplejpeg": (simplejpeg, pillow),
    "pillow": (pillow,),
}
"""What the first one refuses, the second one decodes."""

_logger = logging.getLogger(__name__)


@cache
def decoders_of(choice: str) -> Sequence[Decoder]:
    """Return the decoders of JPEG, in the order in which they are asked."""
    return _DECODERS[resolve(choice)]


def resolve(choice: str) -> str:
    """Return the decoder that a choice means on this machine."""
    if choice != "auto":
        return choice
    if turbojpeg.find().library is not None:
        return "turbojpeg"
    return "pillow" if simplejpeg.decode_jpeg is None else "simplejpeg"


@cache
def describe(choice: str) -> str:
    """Return the decoder that a choice means on this machine, with its version: equal where the code is."""
    name, library = resolve(choice), turbojpeg.find().library
    if name == "turbojpeg" and library is not None:
        return f"turbojpeg (libjpeg-turbo {library.version})"
    if name == "simplejpeg":
        return f"simplejpeg {version('simplejpeg')}"
    return f"pillow (libjpeg-turbo {features.version_feature('libjpeg_turbo') or 'unknown'})"


def check(choice: str) -> None:
    """Raise ConfigError where this machine does not have the chosen decoder."""
    found = turbojpeg.find() if choice == "turbojpeg" else None
    if found is not None and found.library is None:
        problems = "; ".join(found.problems + found.too_old)
        raise ConfigError(
            f"jpeg_decoder='turbojpeg': there is no libturbojpeg of version 3 or later on this machine"
            f"{f' ({problems})' if problems else ''}. pip install 'tfds-torch[fast-jpeg]' brings one, as do conda and "
            f"Homebrew (jpeg-turbo); jpeg_decoder='auto' does without."
        )
    if choice == "simplejpeg" and simplejpeg.decode_jpeg is None:
        raise ConfigError("jpeg_decoder='simplejpeg': simplejpeg is not installed. Install it, or choose 'auto'.")


@cache
def warn_of_problems() -> None:
    """Log a warning, once a process, where a libturbojpeg of version 3 was found and none can be used."""
    found = turbojpeg.find()
    if found.library is None and found.problems:
        _logger.warning(
            "%s. JPEG is decoded by %s instead, which takes longer. pip install 'tfds-torch[fast-jpeg]' brings a "
            "library that can be used; ReadOptions(jpeg_decoder='simplejpeg') does not look for one.",
            "; ".join(found.problems),
            resolve("auto"),
        )
