"""Which splits a fake has where none are asked for: those of the real dataset."""

from pathlib import Path
from typing import Any

import pytest
from zygote import forked_instead_of_fresh, tensorflow_zygote

from demo.fake_reading import list_real_splits
from tfds_torch import ParserTfds
from tfds_torch.demo import prepare_fake
from tfds_torch.demo.builder import _read_code

REAL = {
    "celeb_a": ("train", "validation", "test"),
    "d4rl_mujoco_ant": ("train",),
    "food101": ("train", "validation"),
    "glue/ax": ("test",),
    "glue/mnli": ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"),
    "imagenet2012": ("train", "validation", "test"),  # Its builder looks for its downloads.
    "imdb_reviews": ("train", "test", "unsupervised"),
    "kitti": ("train", "validation", "test"),  # Likewise.
    "librispeech": ("train",),  # Named by the folders of its download: what every dataset is taken to have.
    "voc/2012": ("test", "train", "validation"),
    "winogrande": ("train_xs", "train_s", "train_m", "train_l", "train_xl", "test", "validation"),
}


def test_they_are_those_of_tfds_s_own_builder(tmp_path: Path) -> None:
    found = tensorflow_zygote().call(list_real_splits, str(tmp_path), list(REAL))
    assert {name: set(splits) for name, splits in found.items()} == {name: set(names) for name, names in REAL.items()}
    assert found["imagenet2012"] == REAL["imagenet2012"], "in another order than the builder's"
    assert list(tmp_path.iterdir()) == []


def test_a_newcomer_s_second_line_opens_the_validation_split(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with forked_instead_of_fresh(tensorflow_zygote):
        root = prepare_fake("imagenet2012", num_examples=3, root=tmp_path, progress=False)
    assert "not found" not in "".join(capfd.readouterr())
    for split in ("train", "validation", "test"):
        parser = ParserTfds(root, "imagenet2012", split, batch_size=2)
        assert (len(parser.class_names or ()), parser.num_examples) == (1000, 3)
    with forked_instead_of_fresh(tensorflow_zygote):
        assert prepare_fake("imagenet2012", num_examples=3, root=tmp_path, progress=False) == root


class _Coded:
    """As builders of TFDS are written."""

    def _split_generators(self, dl_manager: Any) -> Any:
        paths = dl_manager.download({"images": "a.zip", "notes": "b.zip"})
        tfds: Any = None
        if paths:
            return [
                tfds.core.SplitGenerator(name=tfds.Split.VALIDATION, gen_kwargs={"path": paths["images"]}),
                tfds.core.SplitGenerator(name="extra", gen_kwargs={"path": paths["notes"]}),
            ]
        return {"dev": self._generate_examples(paths), tfds.Split.TEST: self._generate_examples(paths), "x": 3}

    def _generate_examples(self, path: Any) -> Any:
        return path


def test_names_in_a_builder_s_code_are_those_of_its_splits() -> None:
    assert list(_read_code(_Coded())) == ["validation", "extra", "dev", "test"]
