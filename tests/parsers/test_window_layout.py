"""Where windows find the features of a dataset."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from parsers.robot_episodes import bridge_features, droid_features
from tfds_torch.parsers.tfds.connectors import plain_features
from tfds_torch.parsers.tfds.feature_tree import Dictionary, Feature, Repeated
from tfds_torch.parsers.tfds.window_layout import find_sequence, make_window_features


def turned_round(feature: Feature) -> Feature:
    """The same features, which dictionaries hold in the opposite order."""
    if isinstance(feature, Repeated):
        return replace(feature, feature=turned_round(feature.feature))
    if isinstance(feature, Dictionary):
        return replace(
            feature, features={key: turned_round(inner) for key, inner in reversed(list(feature.features.items()))}
        )
    return feature


@pytest.mark.parametrize("make_features", [bridge_features, droid_features])
def test_the_layout_does_not_depend_on_the_order_in_which_features_were_read(make_features: Callable[[], Any]) -> None:
    features = plain_features(make_features())
    layouts = [
        make_window_features(one, find_sequence(one, "steps", "made"), {"steps/action": {(0, 1): ""}}, "made")
        for one in (features, turned_round(features))
    ]
    assert layouts[0] == layouts[1]
    assert list(layouts[0].layout.numbers) == list(layouts[1].layout.numbers)
    assert list(layouts[0].stored_as) == list(layouts[1].stored_as)
