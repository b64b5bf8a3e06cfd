"""The content of the embedded datasets. Imports TFDS: for the process that builds."""

from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.demo import handwriting, photographs
from tfds_torch.demo.episode_features import make_episodes
from tfds_torch.demo.spec import Content, DemoSpec, Example


def make_digits(spec: DemoSpec) -> Content:
    """Returns the handwritten digits, stratified into train and test."""
    images, labels = handwriting.read_digits()
    test_rows = handwriting.draw_test_rows(labels, spec.seed).tolist()
    rows = {"train": sorted(set(range(len(labels))) - set(test_rows)), "test": test_rows}

    def make_examples(split: str) -> Iterator[tuple[int, Example]]:
        for row in rows[split]:
            yield row, {"image": handwriting.encode_png(images[row]), "label": int(labels[row])}

    info = {
        "description": "1,797 handwritten digits, 8x8 gray levels, stratified by label into train and test. "
        "Values 0..16 of the source are scaled to 0..255. Licence: CC BY 4.0.",
        "citation": 'E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits" (test set), '
        "UCI Machine Learning Repository.",
        "homepage": "https://archive.ics.uci.edu/dataset/80",
        "features": _features((8, 8, 1), "png", handwriting.LABELS),
        "supervised_keys": ("image", "label"),
    }
    return Content(info, make_examples)


def make_photos(spec: DemoSpec) -> Content:
    """Returns photographs of ImageNet-like size."""

    def make_examples(split: str) -> Iterator[tuple[int, Example]]:
        for index in range(spec.split_sizes[split]):
            label, jpeg = photographs.make_photograph(index, spec.seed)
            yield index, {"image": jpeg, "label": label, "file_name": f"{label}_{index:06d}.jpg"}

    info = {
        "description": "JPEG photographs of ImageNet-like size, cut, scaled, flipped, toned and grained from two: "
        "'china' by danielbuechele and 'flower' by vultilion, both CC BY 2.0.",
        "homepage": "https://scikit-learn.org/stable/datasets/loading_other_datasets.html",
        "features": _features((None, None, 3), "jpeg", photographs.LABELS, file_name=tfds.features.Text()),
        "supervised_keys": ("image", "label"),
    }
    return Content(info, make_examples)


EMBEDDED = {"digits": make_digits, "photos": make_photos, "episodes": make_episodes}


def _features(shape: tuple[int | None, ...], encoding: str, labels: tuple[str, ...], **others: Any) -> Any:
    image = tfds.features.Image(shape=shape, encoding_format=encoding)
    return tfds.features.FeaturesDict({"image": image, "label": tfds.features.ClassLabel(names=list(labels)), **others})
