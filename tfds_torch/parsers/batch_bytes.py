"""How much memory the images of a parser's batches take."""

from tfds_torch.images.preprocess import height_and_width
from tfds_torch.parsers.parser import Parser
from tfds_torch.storage.source import FieldSpec

_MOST_CHANNELS = 4


def image_bytes_of_batch(parser: Parser) -> int | None:
    """Returns how many bytes the images of a whole batch take at most; None: it is only known when they are read."""
    size = _image_size(parser)
    return None if size is None or parser.batch_size is None else parser.batch_size * size[0] * size[1] * _MOST_CHANNELS


def _image_size(parser: Parser) -> tuple[int, int] | None:
    """Returns height and width of the images of whole batches; None: they are only known when they are read."""
    if parser.preprocess is not None:
        return height_and_width(parser.preprocess.size)
    spec = parser.element_spec.fields.get("image")
    height, width, _ = spec.shape if isinstance(spec, FieldSpec) and len(spec.shape) == 3 else (None, None, None)
    return None if height is None or width is None else (height, width)
