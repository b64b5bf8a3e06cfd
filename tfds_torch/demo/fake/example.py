"""ExampleMaker: a dataset's features, each with its way to be filled. For the process that builds."""

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from tfds_torch.demo.fake import words
from tfds_torch.demo.fake.draft import Draft, Fill, Place, deal_class
from tfds_torch.demo.fake.scene import draw_scene
from tfds_torch.demo.fake.values import NUM_UNNAMED_CLASSES, fill_audio, fill_class, fill_tensor, fill_text
from tfds_torch.demo.fake.visuals import ImageShape, choose_encoding, draw_size, fill_box, fill_image, is_mask

_SEQUENCE_LENGTH = (2, 6)
_NUM_FRAMES = (4, 9)
_NUM_OBJECTS = (2, 6)
_NUM_LOOKS = 1000
_THUMBNAIL = 64
_LANGUAGES = ("de", "en", "fr", "ja")


class ExampleMaker:
    """Makes up examples of one dataset.

    Args:
        dataset: `name/config:version`, for names and messages.
        features: the dataset's TFDS features.
        supervised_keys: TFDS's; the target among them, if it is a class, decides what an example looks like.
        seed: which content is made up.

    Raises:
        ConfigError: a feature for which nothing can be made up.
    """

    def __init__(self, dataset: str, features: Any, supervised_keys: Any, seed: int) -> None:
        self._features = features
        self._seed = seed
        self._top = Place(dataset)
        leaves = list(_walk(features, self._top))
        source, target = supervised_keys[:2] if isinstance(supervised_keys, tuple) else (None, None)
        self._label = _find_label(leaves, target)
        self._shape, self._file_suffix = _find_image(leaves, source)
        self._has_boxes = _has_boxes(features, self._top)
        self._fill = _choose_fill(features, self._top)

    def make(self, split: str, index: int) -> Any:
        """Returns example `index` of a split, as TFDS's `encode_example` takes it."""
        rng = np.random.default_rng([self._seed, zlib.crc32(split.encode()), index])
        label = int(rng.integers(0, _NUM_LOOKS))
        if self._label is not None:
            label = deal_class(self._seed, split, *self._label, index)
        height, width = draw_size(self._shape, rng)
        num_shapes = int(rng.integers(*_NUM_OBJECTS)) if self._has_boxes else int(rng.integers(1, 3))
        if min(height, width) < _THUMBNAIL and not self._has_boxes:
            num_shapes = 1
        scene = draw_scene(rng, label, height, width, num_shapes)
        return self._fill(Draft(self._seed, split, index, label, rng, scene, self._file_suffix))

    def try_out(self) -> None:
        """Encodes an example as TFDS will.

        Raises:
            ConfigError: a feature does not take what is made up for it.
        """
        example = self.make("train", 0)
        is_dictionary = isinstance(self._features, tfds.features.FeaturesDict)
        parts = [(self._top.below(key), self._features[key], example[key]) for key in example] if is_dictionary else []
        for place, feature, value in parts or [(self._top, self._features, example)]:
            try:
                feature.encode_example(value)
            except Exception as error:
                reason = " ".join(str(error).split())[:300]
                raise place.refuse(feature, f"{type(error).__name__}: {reason}") from error


def _choose_fill(feature: Any, place: Place) -> Fill:
    kinds: list[tuple[Any, Callable[[Any, Place], Fill]]] = [
        # Derived classes before those they derive from.
        (tfds.features.TranslationVariableLanguages, _fill_translations),
        (tfds.features.FeaturesDict, _fill_dictionary),
        (tfds.features.Sequence, _fill_sequence),
        (tfds.features.Image, fill_image),
        (tfds.features.BBoxFeature, fill_box),
        (tfds.features.ClassLabel, fill_class),
        (tfds.features.Audio, fill_audio),
        (tfds.features.Text, fill_text),
        (tfds.features.Tensor, fill_tensor),
    ]
    for kind, choose in kinds:
        if isinstance(feature, kind):
            return choose(feature, place)
    raise place.refuse(feature, "this type of feature is unknown")


def _fill_dictionary(feature: Any, place: Place) -> Fill:
    inner = {key: _choose_fill(value, place.below(key)) for key, value in sorted(feature.items())}
    return lambda draft: {key: fill(draft) for key, fill in inner.items()}


def _fill_sequence(feature: Any, place: Place) -> Fill:
    """Also for `Video` and `Dataset`, which are sequences."""
    fill_one = _choose_fill(feature.feature, place.repeated())
    has_boxes = _has_boxes(feature.feature, place)
    lengths = _NUM_FRAMES if isinstance(feature, tfds.features.Video) else _SEQUENCE_LENGTH
    declared = feature._length  # TFDS has no public name for it.

    def fill(draft: Draft) -> list[Any]:
        length = declared
        if length is None:
            length = len(draft.scene.shapes) if has_boxes else int(draft.rng.integers(*lengths))
        return [fill_one(draft) for _ in range(length)]

    return fill


def _fill_translations(feature: Any, place: Place) -> Fill:
    del place
    languages = feature.languages or _LANGUAGES

    def fill(draft: Draft) -> dict[str, str]:
        first = int(draft.rng.integers(0, len(languages)))
        return {language: words.write([], draft.label, draft.rng) for language in (*languages[first:], languages[0])}

    return fill


def _walk(feature: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """Yields every feature that is not a container, with its place."""
    if isinstance(feature, tfds.features.FeaturesDict):
        for key, inner in sorted(feature.items()):
            yield from _walk(inner, place.below(key))
    elif isinstance(feature, tfds.features.Sequence):
        yield from _walk(feature.feature, place.repeated())
    else:
        yield place, feature


def _has_boxes(feature: Any, place: Place) -> bool:
    return any(isinstance(leaf, tfds.features.BBoxFeature) for _, leaf in _walk(feature, place))


def _find_label(leaves: list[tuple[Place, Any]], target: Any) -> tuple[str, int] | None:
    """Returns path and number of classes of the label that decides what an example looks like."""
    classes = [(place, leaf) for place, leaf in leaves if isinstance(leaf, tfds.features.ClassLabel)]
    if not classes:
        return None
    place, feature = min(
        classes, key=lambda item: (item[0].path != target, item[0].path != "label", item[0].is_repeated)
    )
    return place.path, feature.num_classes or NUM_UNNAMED_CLASSES


def _find_image(leaves: list[tuple[Place, Any]], source: Any) -> tuple[ImageShape, str]:
    """Returns shape [H, W, C] of the image that the others follow, and the suffix of its file's name."""
    images = [
        (place, leaf)
        for place, leaf in leaves
        if isinstance(leaf, tfds.features.Image) and len(leaf.shape) == 3 and not is_mask(leaf, place)
    ]
    if not images:
        has_sound = any(isinstance(leaf, tfds.features.Audio) for _, leaf in leaves)
        return (None, None, 3), ".wav" if has_sound else ".txt"
    _, feature = min(
        images,
        key=lambda item: (
            item[0].path != source,
            item[0].path != "image",
            item[0].is_repeated,
            item[1].shape[-1] != 3,
        ),
    )
    return feature.shape, ".jpg" if choose_encoding(feature) == "jpeg" else ".png"
