"""A dataset with a feature of every kind, and what becomes of it. Runs in fresh processes."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from tfds_torch.demo.builder import make_fake_builder
from tfds_torch.demo.fake import make_fake
from tfds_torch.demo.spec import DemoSpec
from tfds_torch.errors import ConfigError

NUM = 12
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")


class EveryFeature(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    VERSION = tfds.core.Version("1.2.3")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            features=list_features(),
            supervised_keys=("rgb", "kind"),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
        raise NotImplementedError

    def _generate_examples(self) -> Iterator[Any]:
        raise NotImplementedError


def list_features() -> tfds.features.FeaturesDict:
    f = tfds.features
    scalars: dict[str, Any] = {name: np.dtype(name).type for name in (*INTEGERS, *FLOATS)}
    boxes = {kind: f.BBoxFeature(bbox_format=kind) for kind in ("YXYX", "XYXY", "XYWH", "REL_XYXY", "REL_YXYX")}
    return f.FeaturesDict(
        {
            **scalars,
            **{f"box_{kind}": feature for kind, feature in boxes.items()},
            "a_class": f.ClassLabel(num_classes=3),
            "audio": f.Audio(sample_rate=8000),
            "audio_file": f.Audio(file_format="wav", lazy_decode=True),
            "audio_stereo": f.Audio(shape=(None, 2), dtype=np.float32, sample_rate=8000),
            "bit": np.bool_,
            "bounded": f.Tensor(shape=(5,), dtype=np.float32, minimum=-3, maximum=-2),
            "bounded_ints": f.Tensor(shape=(50,), dtype=np.int32, minimum=6, maximum=7),
            "cube": f.Tensor(shape=(2, 3, 4), dtype=np.float64),
            "depth": f.Image(shape=(None, None, 1), dtype=np.float32, encoding_format="png"),
            "filename": f.Text(),
            "gray": f.Image(shape=(20, 30, 1), encoding_format="jpeg"),
            "height": np.int32,
            "image_id": np.int64,
            "kind": f.ClassLabel(names=["red", "green", "blue", "black"]),
            "labels_map": f.LabeledImage(labels=["void", "cat", "dog"], shape=(None, None, 1), encoding_format="png"),
            "nested": {"inner": {"count": np.int16, "note": f.Text()}},
            "objects": f.Sequence({"bbox": f.BBoxFeature(), "id": np.int64, "label": f.ClassLabel(num_classes=9)}),
            "one_free": f.Tensor(shape=(None, 3), dtype=np.int32),
            "optional": f.Text(optional=True),
            "optional_number": f.Scalar(dtype=np.int32, optional=True),
            "pair": f.Sequence(np.float32, length=2),
            "rgb": f.Image(shape=(None, None, 3)),
            "rgba": f.Image(shape=(8, 9, 4), encoding_format="png"),
            "segmentation_mask": f.Image(shape=(None, None, 1), dtype=np.uint16, encoding_format="png"),
            "steps": f.Dataset({"action": f.ClassLabel(num_classes=2), "frame": f.Image(shape=(6, 7, 3))}),
            "string_id": f.Text(),
            "strings": f.Tensor(shape=(None,), dtype=np.str_),
            "translation": f.Translation(languages=["de", "en"]),
            "translations": f.TranslationVariableLanguages(languages=["de", "en", "fr"]),
            "unnamed": f.ClassLabel(),
            "video": f.Video(shape=(None, 10, 12, 3)),
            "wide": f.Image(shape=(None, 40, 3), encoding_format="jpeg"),
            "width": np.int64,
            "words": f.Sequence(f.Sequence(f.Text())),
            "x_rays": f.Image(shape=(5, 6, 3), dtype=np.uint16, encoding_format="png"),
            "zipped": f.Tensor(shape=(None, None), dtype=np.int32, encoding="zlib"),
        }
    )


def build_every_feature(root: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the examples in the order of the files, and facts of the dataset."""
    spec = DemoSpec.fake("every_feature", NUM, 3, ("train",), 1)
    real = EveryFeature(data_dir=f"{root}/none")
    builder = make_fake_builder(real, spec, data_dir=root)
    config = tfds.download.DownloadConfig(num_shards=3, try_download_gcs=False)
    builder.download_and_prepare(download_config=config, file_format="tfrecord")
    files = tfds.builder_from_directory(builder.data_dir)
    # `audio_file` is kept as it is: decoding it takes a package of its own.
    dataset = files.as_dataset(split="train", decoders={"audio_file": tfds.decode.SkipDecoding()})
    facts = {
        "folder": Path(builder.data_dir),
        "disable_shuffling": files.info.disable_shuffling,
        "names": files.info.features["unnamed"].names,
        "supervised_keys": files.info.supervised_keys,
    }
    return [_to_plain(example) for example in tfds.as_numpy(dataset)], facts


def ask_for_unfakeable() -> dict[str, str]:
    """Returns key -> message, for features for which nothing can be made up."""
    f = tfds.features

    class Odd(f.FeatureConnector):  # type: ignore[name-defined]
        def get_tensor_info(self) -> Any:
            return f.TensorInfo(shape=(), dtype=np.int64)

        from_json_content = to_json_content = encode_example = None

    class Picky(f.Tensor):  # type: ignore[name-defined]
        def encode_example(self, example_data: Any) -> Any:
            raise RuntimeError(f"never\n  {example_data.dtype}")

    features: dict[str, Any] = {
        "odd": Odd(),
        "deep": {"inner": f.Sequence({"odd": Odd()})},
        "picky": Picky(shape=(), dtype=np.int16),
        "two_free": f.Tensor(shape=(None, None), dtype=np.int32),
        "spectrum": f.Image(shape=(4, 4, 13)),
        "song": f.Audio(file_format="flac", lazy_decode=True, dtype=np.int32),
    }
    messages = {}
    for key, feature in features.items():
        try:
            info = SimpleNamespace(features=f.FeaturesDict({"fine": np.int64, key: feature}), supervised_keys=None)
            make_fake(DemoSpec.fake("odd/one:1.0.0", 3), SimpleNamespace(name="odd", info=info))
            messages[key] = "nothing was raised"
        except ConfigError as error:
            messages[key] = str(error)
    return messages


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_plain(inner) for key, inner in value.items()}
    if hasattr(value, "to_list"):
        return value.to_list()
    return value if isinstance(value, np.ndarray | np.generic | bytes) else [_to_plain(inner) for inner in value]
