"""The table of docs/reference.md, feature -> what a batch holds: made of a dataset with each of them, as it is read."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
import torch
from zygote import tensorflow_zygote

from tfds_torch import EvalPreprocess, ImageDataset, ParserTfds
from tfds_torch.engines.padding import Padded
from tfds_torch.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
BEGIN, END = "<!-- The table of features: made by tests/parsers/test_feature_table.py -->", "<!-- End of the table -->"
REWRITE = "TFDS_TORCH_TEST_REWRITE"
NUM, FEW = 3, (2, 1, 3)  # Examples, and how long what varies is in each.


def pixels(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.zeros(shape, dtype)


def image(number: int, channels: int = 3) -> Any:
    return pixels(3 + number, 5 + 2 * number, channels)


def box(number: int) -> Any:
    return tfds.features.BBox(0.1, 0.2, 0.3 + number / 10, 0.5)


FEATURES: Mapping[str, Any] = {
    "Image(shape=(None, None, 3))": image,
    "Image(shape=(4, 5, 3))": lambda number: pixels(4, 5, 3),
    "Image(shape=(None, None, 1), dtype=np.uint16)": lambda number: image(number, 1).astype(np.uint16),
    "Image(shape=(None, None, 1), dtype=np.float32)": lambda number: image(number, 1).astype(np.float32),
    "LabeledImage(labels=3, shape=(None, None, 1))": lambda number: image(number, 1),
    "Video(shape=(None, 4, 5, 3))": lambda number: [pixels(4, 5, 3)] * FEW[number],
    "Audio()": lambda number: pixels(FEW[number], dtype=np.int64),
    "ClassLabel(num_classes=3)": lambda number: number,
    "Scalar(dtype=np.float32)": lambda number: number,
    "Scalar(dtype=np.int32, optional=True)": lambda number: number or None,
    "Text()": lambda number: "text",
    "Text(optional=True)": lambda number: "text" if number else None,
    "BBoxFeature()": box,
    "Tensor(shape=(2, 3), dtype=np.float64)": lambda number: np.zeros((2, 3)),
    "Tensor(shape=(2, 3), dtype=np.bool_, encoding='zlib')": lambda number: np.zeros((2, 3), np.bool_),
    "Tensor(shape=(None, 3), dtype=np.int32)": lambda number: pixels(FEW[number], 3, dtype=np.int32),
    "Tensor(shape=(None, None), dtype=np.int32, encoding='bytes')": (
        lambda number: pixels(FEW[number], 4 - number, dtype=np.int32)
    ),
    "Tensor(shape=(2,), dtype=np.str_)": lambda number: ["a", "b"],
    "Tensor(shape=(None,), dtype=np.str_)": lambda number: ["a"] * FEW[number],
    "Sequence(np.float32, length=2)": lambda number: [1, 2],
    "Sequence(np.int64)": lambda number: [1] * FEW[number],
    "Sequence(ClassLabel(num_classes=3))": lambda number: [1] * FEW[number],
    "Sequence(Text())": lambda number: ["text"] * FEW[number],
    "Sequence(BBoxFeature())": lambda number: [box(number)] * FEW[number],
    "Sequence(Image(shape=(4, 5, 3)))": lambda number: [pixels(4, 5, 3)] * FEW[number],
    "Sequence(Image(shape=(None, None, 3)))": lambda number: [image(i) for i in range(FEW[number])],
    "Sequence(Sequence(np.int32))": lambda number: [list(range(i)) for i in range(FEW[number])],
    "Sequence({'bbox': BBoxFeature(), 'name': Text()})": (
        lambda number: [{"bbox": box(number), "name": "a"}] * FEW[number]
    ),
    "FeaturesDict({'count': np.int64, 'tags': Sequence(Text())})": (
        lambda number: {"count": 1, "tags": ["a"] * FEW[number]}
    ),
    "Dataset({'action': Tensor(shape=(2,), dtype=np.float32)})": (
        lambda number: [{"action": np.zeros(2, np.float32)}] * FEW[number]
    ),
    "Translation(languages=['de', 'en'])": lambda number: {"de": "zwei", "en": "two"},
    "TranslationVariableLanguages(languages=['de', 'en'])": lambda number: {
        "de": "drei",
        "en": ["three"] * FEW[number],
    },
}
"""A declaration as the page shows it -> what example `number` has."""
PARTS = {"Sequence({'bbox': BBoxFeature(), 'name': Text()})": ["bbox", "name"]}
"""Declaration -> parts of it that have rows, too."""


def declare(text: str) -> Any:
    """Returns the connector that a declaration makes."""
    return eval(text, {"np": np, **vars(tfds.features)})


def write(root: str) -> None:
    class Features(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            declared = {f"f{number}": declare(text) for number, text in enumerate(FEATURES)}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(declared))

        def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
            for i in range(NUM):
                yield i, {f"f{number}": make(i) for number, make in enumerate(FEATURES.values())}

    tfds.disable_progress_bar()
    Features(data_dir=root).download_and_prepare()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("features")
    tensorflow_zygote().call(write, str(root))
    return root


def describe(values: Sequence[Any]) -> str:
    """Returns what values of several examples are; a letter is a side that differs."""
    first = values[0]
    if isinstance(first, dict):
        return "{" + ", ".join(f"{key}: {describe([one[key] for one in values])}" for key in first) + "}"
    if isinstance(first, list):
        return f"list of {describe([inner for one in values for inner in one])}"
    if not isinstance(first, np.ndarray | torch.Tensor):
        (kind,) = {type(one).__name__ for one in values}
        return kind
    dtypes = {str(one.dtype).replace("torch.", "tensor ") for one in values}
    (dtype,) = {type(text).__name__ for one in values for text in one.flat} if dtypes == {"object"} else dtypes
    letters = iter("nmkl")
    sides = zip(*(one.shape for one in values), strict=True)
    return f"{dtype} [{', '.join(str(some[0]) if len({*some}) == 1 else next(letters) for some in sides)}]"


def describe_batch(values: Any) -> str:
    """Returns what a field is of a batch of NUM examples."""
    if isinstance(values, np.ndarray | torch.Tensor):
        return describe([values]).replace(f"[{NUM}", "[B", 1)
    return f"list of B: {describe(list(values))}"


def describe_padded(parser: ParserTfds, name: str) -> str:
    """Returns what a field is that is padded; nothing where it cannot be."""
    try:
        ((padded,),) = ImageDataset(parser, fields=(name,), batched=True, pad={name: 0})
    except ConfigError:
        return ""
    assert isinstance(padded, Padded)
    assert describe_batch(padded.lengths) == "tensor int64 [B]"
    assert padded.values.shape[1] == max(FEW)
    return describe_batch(padded.values).replace(f"[B, {max(FEW)}", "[B, longest", 1)


def make_rows(root: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yields the rows of the table: feature, in Batch, in ImageDataset's batches, padded there."""
    options: dict[str, Any] = {"image_key": "f0", "target_key": f"f{list(FEATURES).index('ClassLabel(num_classes=3)')}"}
    parser = ParserTfds(root, "features", batch_size=NUM, preprocess=EvalPreprocess(size=224), **options)
    texts = {"image": "`image`, with `EvalPreprocess(size=224)`", "label": "`label`, a scalar integer"}
    names = ("image", "label", "valid", "index", "id")
    (batch,), (items,) = parser.batches(fields=names), ImageDataset(parser, fields=names)
    for name, item in zip(names, items, strict=True):
        yield texts.get(name, f"`{name}`"), describe_batch(getattr(batch, name)), describe_batch(item), ""
    parser = ParserTfds(root, "features", batch_size=NUM, image_key=None, target_key=None)
    fields = {}
    for number, text in enumerate(FEATURES):
        fields[f"f{number}"] = f"`{text}`"
        fields |= {f"f{number}/{part}": f"its part `{part}`" for part in PARTS.get(text, ())}
    (batch,), (items,) = parser.batches(fields=[*fields]), ImageDataset(parser, fields=[*fields], batched=True)
    for name, item in zip(fields, items, strict=True):
        padded = describe_padded(parser, name) if isinstance(item, list) else ""
        yield fields[name], describe_batch(batch.features[name]), describe_batch(item), padded


def test_the_table_of_features_is_what_batches_hold(root: Path) -> None:
    head = ("feature", "in `Batch`, numpy", "in batches of `ImageDataset`, torch", "there with `pad`: `values`")
    rows = [[text, *(f"`{one}`" if one else "" for one in cells)] for text, *cells in make_rows(root)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    found, end, after = rest.partition(END)
    assert end, f"{PAGE.name} has lost the comments between which the table of features stands"
    if os.environ.get(REWRITE):
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")
        return
    how = f"{REWRITE}=1 python -m pytest tests/parsers/test_feature_table.py"
    assert found.strip() == table, f"Batches hold something else than {PAGE.name} says. `{how}` writes the table anew."


def test_every_connector_of_tfds_has_a_row() -> None:
    base = tfds.features.FeatureConnector
    kinds = {name for name, one in vars(tfds.features).items() if isinstance(one, type) and issubclass(one, base)}
    assert {name for name in kinds if not any(f"{name}(" in text for text in FEATURES)} == {base.__name__}
