"""Label names that TFDS's builders read from their downloads only.

Until then such a label has the names "0", "1" and so on. The names of the best known are kept here; the others
(deep_weeds, gref, nsynth, omniglot, open_images_challenge2019_detection, stanford_dogs, coco's panoptic configs) keep
their numbers.
"""

import json
from importlib import resources
from typing import Any


def name_labels(dataset: str, features: Any) -> None:
    """Gives the labels of a dataset their names, where these are known and not set.

    Args:
        dataset: its name, without config and version.
        features: its TFDS features; changed in place.
    """
    known = json.loads(resources.files("tfds_torch.demo").joinpath("data", "label_names.json").read_bytes())
    for path, key in known["features"].items():
        name, *keys = path.split("/")
        feature = _find(features, keys) if name == dataset else None
        names = known["names"][key]
        if feature is not None and list(feature.names) == [str(number) for number in range(len(names))]:
            feature.names = names


def _find(features: Any, keys: list[str]) -> Any:
    for key in keys:
        if key not in features:
            return None
        features = features[key]
    return features
