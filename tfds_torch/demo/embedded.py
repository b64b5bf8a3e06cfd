"""The builders that TFDS runs. Imported only in the process that builds: it imports TFDS at its top.

`skip_registration`: TFDS keeps a global register of builder classes by name; ours must not be found there, so that
`tfds.builder("photos", data_dir=...)` always reads the files as they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core.utils import shard_utils

from tfds_torch.demo import handwriting, photographs
from tfds_torch.demo.spec import VERSION, DemoSpec

Example = dict[str, Any]


class DemoBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A TFDS builder that follows a DemoSpec, keeps it in `metadata.json`, and reports each example it made.

    Args:
        wanted: what to build.
        data_dir: TFDS's data dir.
        on_example: called once per example, in the calling thread.
    """

    VERSION = tfds.core.Version(VERSION)

    def __init__(self, wanted: DemoSpec, *, data_dir: str, on_example: Callable[[], None]) -> None:
        self._spec = wanted
        self._on_example = on_example
        super().__init__(data_dir=data_dir)

    def _make_info(self, **kwargs: Any) -> Any:
        metadata = tfds.core.MetadataDict(tfds_torch_demo=self._spec.as_dict())
        return tfds.core.DatasetInfo(builder=self, metadata=metadata, supervised_keys=("image", "label"), **kwargs)

    def _report(self, examples: Iterator[tuple[int, Example]]) -> Iterator[tuple[int, Example]]:
        for key, example in examples:
            yield key, example
            self._on_example()


class Digits(DemoBuilder, skip_registration=True):
    """The handwritten digits, stratified into train and test."""

    name = "digits"

    def _info(self) -> Any:
        return self._make_info(
            description="1,797 handwritten digits, 8x8 gray levels, stratified by label into train and test. "
            "Values 0..16 of the source are scaled to 0..255. Licence: CC BY 4.0.",
            citation='E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits" (test set), '
            "UCI Machine Learning Repository.",
            homepage="https://archive.ics.uci.edu/dataset/80",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
                    "label": tfds.features.ClassLabel(names=list(handwriting.LABELS)),
                }
            ),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, Example]]]:
        del dl_manager  # Nothing is downloaded.
        images, labels = handwriting.read_digits()
        test_rows = handwriting.draw_test_rows(labels, self._spec.seed).tolist()
        train_rows = sorted(set(range(len(labels))) - set(test_rows))
        return {
            "train": self._generate_examples(images, labels, train_rows),
            "test": self._generate_examples(images, labels, test_rows),
        }

    def _generate_examples(self, images: Any, labels: Any, rows: list[int]) -> Iterator[tuple[int, Example]]:
        examples = ((row, {"image": handwriting.encode_png(images[row]), "label": int(labels[row])}) for row in rows)
        return self._report(examples)


class Photos(DemoBuilder, skip_registration=True):
    """Photographs of ImageNet-like size."""

    name = "photos"

    def _info(self) -> Any:
        return self._make_info(
            description="JPEG photographs of ImageNet-like size, cut, scaled, flipped, toned and grained from two: "
            "'china' by danielbuechele and 'flower' by vultilion, both CC BY 2.0.",
            homepage="https://scikit-learn.org/stable/datasets/loading_other_datasets.html",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
                    "label": tfds.features.ClassLabel(names=list(photographs.LABELS)),
                    "file_name": tfds.features.Text(),
                }
            ),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, Example]]]:
        del dl_manager  # Nothing is downloaded.
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, Example]]:
        return self._report((index, self._make_example(index)) for index in range(self._spec.num_examples))

    def _make_example(self, index: int) -> Example:
        label, jpeg = photographs.make_photograph(index, self._spec.seed)
        return {"image": jpeg, "label": label, "file_name": f"{label}_{index:06d}.jpg"}


BUILDERS = {builder.name: builder for builder in (Digits, Photos)}


@dataclass(frozen=True)
class TrainShards(shard_utils.ShardConfig):
    """The asked number of shards for the split `train`, one for any other."""

    num_train_examples: int = 0

    def get_number_shards(self, total_size: int, num_examples: int, uses_precise_sharding: bool = True) -> int:
        """Returns the number of shards of a split with this many examples."""
        del total_size, uses_precise_sharding
        return int(self.num_shards) if num_examples == self.num_train_examples else 1


@dataclass
class DemoConfig(tfds.download.DownloadConfig):
    """TFDS's settings of a build; TFDS's own `num_shards` would hold for all splits alike."""

    num_train_examples: int = 0

    def get_shard_config(self) -> TrainShards:
        """Returns how TFDS is to cut the splits into shards."""
        return TrainShards(num_shards=self.num_shards, num_train_examples=self.num_train_examples)
