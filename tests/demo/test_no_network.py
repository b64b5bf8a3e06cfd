"""A build asks nothing of the network."""

from pathlib import Path

import pytest
from zygote import tensorflow_zygote

from demo.network_watch import ask_a_bucket, build_watched
from tfds_torch.demo.spec import DemoSpec

SPECS = [
    DemoSpec.embedded("digits"),
    DemoSpec.embedded("photos", 3),
    # Their builders read label names from the download.
    DemoSpec.fake("cifar10", 3),
    DemoSpec.fake("coco/2017", 3),
]


@pytest.mark.slow
def test_a_build_asks_nothing_of_the_network(tmp_path: Path) -> None:
    asked = tensorflow_zygote().call(build_watched, str(tmp_path), SPECS)
    assert asked == {spec.full_name: [] for spec in SPECS}


@pytest.mark.slow
def test_a_request_of_tensorflow_would_have_been_seen(tmp_path: Path) -> None:
    """The test above can fail."""
    assert "google" in tensorflow_zygote().call(ask_a_bucket, str(tmp_path))
