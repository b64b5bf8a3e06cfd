"""Made-up content with the features of a dataset of TFDS: each example is a function of (seed, split, index) alone.

Imports TFDS: for the process that builds.
"""

import io
import json
import math
import re
import wave
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tensorflow_datasets import features as connectors

from tfds_torch.demo.spec import Content, DemoSpec, Example
from tfds_torch.errors import ConfigError

_WORDS = ["the", "old", "river", "house", "sees", "under", "café", "façade", "Zürich", "jalapeño", "morning", "light"]
_ID_WORDS = {"id", "ids", "uid", "uuid", "identifier"}
_MASK_WORDS = {"mask", "masks", "segmentation", "label", "labels", "annotation", "annotations"}
_NUM_UNNAMED_CLASSES = 10  # Of a label whose names TFDS's builder reads from its download.
_SAMPLE_RATE_HZ = 16_000


def make_fake(spec: DemoSpec, real: Any) -> Content:
    """Return made-up content with the features of TFDS's own builder, whose label names are filled in.

    Raises:
        ConfigError: a feature for which nothing can be made up.
    """
    _name_labels(real.name, real.info.features)
    maker = ExampleMaker(spec.full_name, real.info.features, real.info.supervised_keys, spec.seed)
    maker.try_out()

    def make_examples(split: str) -> Iterator[tuple[int, Example]]:
        for index in range(spec.num_examples):
            yield index, maker.make(split, index)

    info = {
        "description": f"MADE-UP CONTENT. This dataset has the features and label names of {spec.full_name}, and not "
        f"one of its examples: tfds_torch.demo made up {spec.num_examples} examples for each split (seed {spec.seed}).",
        "features": real.info.features,
        "supervised_keys": real.info.supervised_keys,
        "disable_shuffling": real.info.disable_shuffling,
    }
    return Content(info, make_examples)


class ExampleMaker:
    """Makes up examples of one dataset.

    Args:
        dataset: `name/config:version`, for names and messages.
        features: the dataset's TFDS features.
        supervised_keys: TFDS's; the image among them has the size that `height` and `width` say.
        seed: which content is made up.
    """

    def __init__(self, dataset: str, features: Any, supervised_keys: Any, seed: int) -> None:
        self._dataset, self._features, self._seed = dataset, features, seed
        leaves = list(_walk(features))
        for _, leaf in leaves:
            if isinstance(leaf, connectors.ClassLabel) and leaf.num_classes is None:
                leaf.names = [f"class_{number}" for number in range(_NUM_UNNAMED_CLASSES)]
        images = [
            (path, leaf)
            for path, leaf in leaves
            if isinstance(leaf, connectors.Image) and len(leaf.shape) == 3 and not _is_mask(leaf, path)
        ]
        keys = ("image", *(supervised_keys if isinstance(supervised_keys, tuple) else ()))
        _, image = min(images, key=lambda one: one[0] not in keys, default=("", None))
        self._shape = (None, None) if image is None else image.shape
        self._suffix = "" if image is None else f".{_encoding(image)}".replace("jpeg", "jpg")

    def make(self, split: str, index: int) -> Any:
        """Return example `index` of a split, as TFDS's `encode_example` takes it.

        Raises:
            ConfigError: a feature for which nothing can be made up.
        """
        rng = np.random.default_rng([self._seed, zlib.crc32(split.encode()), index])
        sides = [int(rng.integers(300, 400)), int(rng.integers(460, 521))]
        height, width = sides if rng.random() < 0.7 else sides[::-1]
        size = self._shape[0] or height, self._shape[1] or width
        return _Draft(self._dataset, index, rng, *size, self._suffix).fill(self._features)

    def try_out(self) -> None:
        """Encode an example as TFDS will.

        Raises:
            ConfigError: nothing can be made up for a feature, or it does not take that.
        """
        example = self.make("train", 0)
        is_dictionary = isinstance(self._features, connectors.FeaturesDict)
        parts = [(key, self._features[key], example[key]) for key in example] if is_dictionary else []
        for path, feature, value in parts or [("", self._features, example)]:
            try:
                feature.encode_example(value)
            except Exception as error:
                reason = " ".join(str(error).split())[:300]
                raise _refuse(self._dataset, path, feature, f"{type(error).__name__}: {reason}") from error


@dataclass
class _Draft:
    """One example while it is made.

    Attributes:
        rng: seeded for this example alone.
        height: of its images, where their own is free. Likewise width.
        suffix: of its file's name, `.jpg`.
        visits: path of a feature -> how many values it has been given.
    """

    dataset: str
    index: int
    rng: np.random.Generator
    height: int
    width: int
    suffix: str
    visits: Counter[str] = field(default_factory=Counter)

    def fill(self, feature: Any, path: str = "", is_repeated: bool = False) -> Any:
        """Return a value of a feature, as its `encode_example` takes it; `is_repeated` within a sequence."""
        if isinstance(feature, connectors.TranslationVariableLanguages):
            languages = list(feature.languages or ("de", "en", "fr"))
            return {language: self._text() for language in languages[self._draw(0, len(languages)) :]}
        if isinstance(feature, connectors.FeaturesDict):
            return {key: self.fill(one, f"{path}/{key}".lstrip("/"), is_repeated) for key, one in feature.items()}
        if isinstance(feature, connectors.Sequence):  # `Video` and `Dataset`, too. TFDS has no public name for lengths.
            length = self._draw(2, 7) if feature._length is None else feature._length
            return [self.fill(feature.feature, path, True) for _ in range(length)]
        kinds: dict[Any, Callable[[Any, str, bool], Any]] = {  # Derived classes before those they derive from.
            connectors.Image: self._image,
            connectors.BBoxFeature: self._box,
            connectors.ClassLabel: lambda feature, *_: self._draw(0, max(1, feature.num_classes)),
            connectors.Audio: self._audio,
            connectors.Tensor: self._tensor,
        }
        fill = next((fill for kind, fill in kinds.items() if isinstance(feature, kind)), None)
        if fill is None:
            raise _refuse(self.dataset, path, feature, "this type of feature is unknown")
        return fill(feature, path, is_repeated)

    def _image(self, feature: Any, path: str, is_repeated: bool) -> Any:
        """Return a file, or an array where Pillow writes none: of soft colours with a camera's noise, or of classes."""
        shape, dtype = feature.shape, np.dtype(feature.np_dtype)
        if len(shape) != 3 or shape[-1] not in (None, 1, 2, 3, 4):
            raise _refuse(self.dataset, path, feature, f"its shape is {shape}")
        height, width, channels = shape[0] or self.height, shape[1] or self.width, shape[2] or 3
        if _is_mask(feature, path) and dtype.kind in "iu":
            num_classes = getattr(feature, "num_classes", None)
            least, stop = (0, min(num_classes, np.iinfo(dtype).max + 1)) if num_classes else (1, 4)
            classes = self.rng.integers(least, stop, (8, 8)).astype(dtype)
            pixels = classes[np.arange(height)[:, None] * 8 // height, np.arange(width) * 8 // width][..., None]
            return _write_image(pixels, "png") if dtype == np.uint8 else pixels  # JPEG would blur one into another.
        colours = self.rng.integers(0, 256, (4, 4, channels), np.uint8)
        soft = Image.fromarray(colours[..., 0] if channels == 1 else colours).resize((width, height))
        noise = self.rng.integers(-7, 8, (height, width, 1), np.int8)
        pixels = np.clip(np.asarray(soft).reshape(height, width, channels) + noise.astype(np.int16), 0, 255)
        if dtype == np.uint8:
            return _write_image(pixels.astype(np.uint8), _encoding(feature))
        return pixels.astype(dtype) * dtype.type(10 / 255 if dtype.kind == "f" else 257)  # All of 16 bits.

    def _box(self, feature: Any, path: str, is_repeated: bool) -> Any:
        name = getattr(feature.bbox_format, "value", feature.bbox_format) or "REL_YXYX"
        (ymin, xmin), (height, width) = self.rng.uniform(0, 0.6, 2).tolist(), self.rng.uniform(0.1, 0.4, 2).tolist()
        if not name.startswith("REL_"):
            ymin, height, xmin, width = ymin * self.height, height * self.height, xmin * self.width, width * self.width
        values = {
            "YXYX": (ymin, xmin, ymin + height, xmin + width),
            "XYXY": (xmin, ymin, xmin + width, ymin + height),
            "XYWH": (xmin, ymin, width, height),
        }
        return connectors.BBox(*values[name.removeprefix("REL_")])  # Stored in this order, whatever the names.

    def _audio(self, feature: Any, path: str, is_repeated: bool) -> Any:
        """Return a second of noise."""
        dtype, rate_hz = np.dtype(feature.np_dtype), feature.sample_rate or _SAMPLE_RATE_HZ
        if feature._lazy_decode and feature._file_format not in (None, "wav"):
            reason = f"it is kept as a file of the format {feature._file_format!r}"
            raise _refuse(self.dataset, path, feature, reason)
        sound = self.rng.uniform(-0.5, 0.5, (feature.shape[0] or rate_hz, *feature.shape[1:]))
        if feature._lazy_decode:
            return _write_wav(sound, rate_hz)
        return (sound * (1 if dtype.kind == "f" else min(32767, np.iinfo(dtype).max))).astype(dtype)

    def _tensor(self, feature: Any, path: str, is_repeated: bool) -> Any:
        """Return numbers or texts; the value of `Text` and `Scalar`, too."""
        dtype, info = np.dtype(feature.np_dtype), feature.get_tensor_info()
        shape = tuple(self._draw(2, 9) if size is None else size for size in feature.shape)
        if isinstance(feature, connectors.Text) and shape:
            raise _refuse(self.dataset, path, feature, "a deprecated encoder makes integers of it")
        if dtype.kind in "OUS":
            texts = np.empty(math.prod(shape), object)
            texts[:] = [self._string(path, is_repeated) for _ in texts]
            return texts.reshape(shape) if shape else texts[0]
        last = (_split(path) or [""])[-1]
        if shape == () and dtype.kind in "iu" and info.minimum is None and info.maximum is None:
            if last in _ID_WORDS:
                number = self.index * 1000 + self._visit(path) if is_repeated else self.index
                return dtype.type(number % (int(np.iinfo(dtype).max) + 1))
            if last in ("height", "width"):
                return dtype.type(min(getattr(self, last), np.iinfo(dtype).max))
        if dtype.kind == "b":
            return self.rng.random(shape) < 0.5
        least, most = _bounds(info, dtype)
        if dtype.kind in "iu":
            return self.rng.integers(int(least), int(most), shape, dtype, endpoint=True)
        return np.asarray(self.rng.uniform(least, most, shape)).astype(dtype)

    def _string(self, path: str, is_repeated: bool) -> str:
        words, name = _split(path), re.split("[/:]", self.dataset)[0]
        number = f"{self.index:06d}_{self._visit(path)}" if is_repeated else f"{self.index:06d}"
        if re.search("filename|filepath|fname", "".join(words)):
            return f"{name}_{number}{self.suffix}"
        return f"{name}_{number}" if words[-1:] and words[-1] in _ID_WORDS else self._text()

    def _text(self) -> str:
        """Return some words. Not all are ASCII: a reader that forgets that text is UTF-8 should notice."""
        return " ".join(self.rng.choice(_WORDS, self._draw(3, 40)))

    def _visit(self, path: str) -> int:
        self.visits[path] += 1
        return self.visits[path] - 1

    def _draw(self, least: int, stop: int) -> int:
        return int(self.rng.integers(least, stop))


def _walk(feature: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every feature that is not a container, with the keys that lead to it, joined by "/"."""
    if isinstance(feature, connectors.FeaturesDict):
        for key, inner in feature.items():
            yield from _walk(inner, f"{path}/{key}".lstrip("/"))
    elif isinstance(feature, connectors.Sequence):
        yield from _walk(feature.feature, path)
    else:
        yield path, feature


def _split(path: str) -> list[str]:
    """Return the words of a feature's keys: `image/fileName` -> image, file, name."""
    return [word.lower() for word in re.findall(r"[A-Z]*[a-z0-9]+|[A-Z]+", path)]


def _is_mask(feature: Any, path: str) -> bool:
    """Return whether an image has a class for each pixel: by its type, or by its one channel and its name."""
    is_named = feature.shape[-1] == 1 and not _MASK_WORDS.isdisjoint(_split(path))
    return isinstance(feature, connectors.LabeledImage) or is_named


def _encoding(feature: Any) -> str:
    """Return png or jpeg: the declared one, else as TFDS encodes arrays (PNG), but JPEG for pictures of any size."""
    height, width, channels = feature.shape
    return feature.encoding_format or ("jpeg" if channels == 3 and None in (height, width) else "png")


def _write_image(pixels: NDArray[Any], encoding: str) -> io.BytesIO:
    file = io.BytesIO()
    options: dict[str, int] = {"quality": 92} if encoding == "jpeg" else {"compress_level": 1}
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, encoding, **options)
    return io.BytesIO(file.getvalue())


def _write_wav(sound: NDArray[np.float64], rate_hz: int) -> io.BytesIO:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1 if sound.ndim == 1 else sound.shape[1], 2, rate_hz, 0, "NONE", ""))
        writer.writeframes((sound * 32767).astype("<i2").tobytes())
    return io.BytesIO(file.getvalue())


def _bounds(info: Any, dtype: "np.dtype[Any]") -> tuple[float, float]:
    """Return the least and the greatest number of a tensor: as declared, else the usual ones."""
    is_low, is_high = (bound is not None and bool(np.isfinite(bound).all()) for bound in (info.minimum, info.maximum))
    usual_most = 1 if dtype.kind == "f" else 255 if dtype == np.uint8 else 99
    least = np.max(info.minimum).item() if is_low else 0
    most = np.min(info.maximum).item() if is_high else usual_most
    return (least, max(least, most)) if is_low else (min(least, most), most)


def _refuse(dataset: str, path: str, feature: Any, reason: str) -> ConfigError:
    return ConfigError(
        f"The feature {path!r} of '{dataset}' is a {type(feature).__name__} for which no content can be made up: "
        f"{reason}. Choose another dataset, or another config of it."
    )


def _name_labels(dataset: str, features: Any) -> None:
    """Name the labels whose names TFDS's builder reads from its download only, and has as "0", "1" until then.

    The names of the best known datasets are kept here; the others (deep_weeds, gref, nsynth, omniglot,
    open_images_challenge2019_detection, stanford_dogs, coco's panoptic configs) keep their numbers.
    """
    known = json.loads(resources.files("tfds_torch.demo").joinpath("data", "label_names.json").read_bytes())
    leaves = dict(_walk(features))
    for path, key in known["features"].items():
        name, _, keys = path.partition("/")
        feature, names = leaves.get(keys) if name == dataset else None, known["names"][key]
        if feature is not None and list(feature.names) == [str(number) for number in range(len(names))]:
            feature.names = names
