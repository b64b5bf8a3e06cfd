"""Stored fields with the names of a batch's own columns: readable as `stored/<name>` with every parser."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from storage.beton.made_files import PAGE
from storage.webdataset.made_tars import write_samples
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import encode, write_shard

from tfds_torch import (
    ImageDataset,
    IndexedImageDataset,
    ParserBeton,
    ParserTfds,
    ParserWebDataset,
)
from tfds_torch.errors import ConfigError
from tfds_torch.storage.beton.fields import BetonBytes, BetonFloat, BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

NUM_EXAMPLES = 6
ALL = list(range(NUM_EXAMPLES))
COLUMNS = ("index", "valid", "epoch", "batch", "features")


def own_value(name: str, number: int) -> int:
    return 100 * (1 + COLUMNS.index(name)) - number


def pixels(number: int) -> Any:
    return np.full((8, 8, 3), number, np.uint8)


def write_beton(folder: Path) -> Any:
    fields = {"image": BetonImage("raw"), "photo": BetonImage("raw"), "label": BetonInt(), "fine": BetonInt()}
    fields |= {"id": BetonBytes(), **{name: BetonInt() for name in COLUMNS}}
    with BetonWriter(folder / "own.beton", fields, NUM_EXAMPLES, page_size=PAGE) as writer:
        for number in ALL:
            columns = [own_value(name, number) for name in COLUMNS]
            own_id = f"own {number}".encode()
            writer.add((pixels(number), pixels(90 + number), number, 50 + number, own_id, *columns))
    return ParserBeton(folder / "own.beton", batch_size=4, image_key="photo", target_key="fine")


def write_tfds(folder: Path) -> Any:
    directory = folder / "own" / "1.0.0"
    directory.mkdir(parents=True)
    records = []
    for number in ALL:
        example = tf_example_pb2.Example()
        for name, image in (("image", pixels(number)), ("photo", pixels(90 + number))):
            example.features.feature[name].bytes_list.value.append(encode(image, "PNG").getvalue())
        example.features.feature["id"].bytes_list.value.append(f"own {number}".encode())
        numbers = {"label": number, "fine": 50 + number} | {name: own_value(name, number) for name in COLUMNS}
        for name, value in numbers.items():
            example.features.feature[name].int64_list.value.append(value)
        records.append(example.SerializeToString())
    write_shard(directory / "own-train.tfrecord-00000-of-00001", records)
    features = {name: tfds.features.Image(shape=(None, None, 3), encoding_format="png") for name in ("image", "photo")}
    features |= {name: tfds.features.Scalar(np.int64) for name in ("label", "fine", *COLUMNS)}
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory),
        features=tfds.features.FeaturesDict(features | {"id": tfds.features.Text()}),
        split_infos=[tfds.core.SplitInfo(name="train", shard_lengths=[NUM_EXAMPLES], num_bytes=NUM_EXAMPLES * 500)],
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        check_data=False,
    )
    return ParserTfds(folder, "own", batch_size=4, image_key="photo", target_key="fine")


MAKERS = {"beton": write_beton, "tfds": write_tfds}


@pytest.fixture(params=MAKERS)
def parser(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MAKERS[request.param](tmp_path)


def plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def test_stored_fields_with_names_of_metadata_are_read_and_replace_nothing(parser: Any) -> None:
    fields = ("index", "id", "valid", "stored/index", "stored/id", "stored/valid")
    rows = list(ImageDataset(parser, fields=fields))
    assert len(rows) == NUM_EXAMPLES
    for number, (index, id, valid, own_index, own_id, own_valid) in enumerate(rows):
        assert (index, bool(valid), id) == (number, True, parser.ids(np.array([number]))[0])
        assert (int(own_index), int(own_valid)) == (own_value("index", number), own_value("valid", number))
        assert plain(own_id) == f"own {number}"


def test_stored_image_and_label_are_read_beside_those_that_the_keys_name(parser: Any) -> None:
    fields = ("image", "label", "stored/image", "stored/label", "stored/photo")
    for number, example in enumerate(parser.examples_by_index(ALL, fields)):
        assert (example.image == pixels(90 + number)).all()
        assert (example.features["stored/photo"] == pixels(90 + number)).all()
        assert (example.features["stored/image"] == pixels(number)).all()
        assert (example.label, int(example.features["stored/label"])) == (50 + number, number)


def test_names_that_only_a_batch_has_are_the_stored_fields(parser: Any) -> None:
    """`epoch`, `batch` and `features` are attributes of a Batch, and not fields that can be asked for."""
    (first, _) = parser.batches(epoch=3, fields=("epoch", "batch", "features", "stored/epoch"))
    assert (first.epoch, first.batch) == (3, 0)
    for name in ("epoch", "batch", "features"):
        assert first.features[name].tolist() == [own_value(name, number) for number in range(4)]
    assert first.features["stored/epoch"].tolist() == first.features["epoch"].tolist()


@pytest.mark.parametrize("reader", [ImageDataset, IndexedImageDataset])
def test_a_name_that_hides_a_stored_field_is_warned_of_once(reader: Any, parser: Any) -> None:
    said = (
        f"{parser.dataset_name} stores fields of its own with the names 'index'. Under these names come the values "
        f"that every example has; ask for 'stored/index' to get the stored ones."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(said)}$") as caught:
        dataset = reader(parser, fields=("index", "label"))
    assert [one.filename for one in caught] == [__file__]
    copy = pickle.loads(pickle.dumps(dataset))
    assert [int(copy[number][0]) for number in ALL] == list(ALL) if reader is IndexedImageDataset else list(copy)


def test_what_is_not_stored_is_an_error(parser: Any) -> None:
    for name in ("stored/nothing", "stored/", "stored"):
        with pytest.raises(ConfigError, match=name):
            parser.check_fields([name])


def test_a_field_that_is_stored_under_such_a_name_comes_first(tmp_path: Path) -> None:
    with BetonWriter(tmp_path / "a.beton", {"index": BetonInt(), "stored/index": BetonFloat()}, 1) as writer:
        writer.add((5, 0.5))
    (example,) = ParserBeton(tmp_path / "a.beton", image_key=None).examples_by_index([0], ["stored/index"])
    assert example.features == {"stored/index": 0.5}


def test_samples_of_tars_have_the_names_that_are_given_to_them(tmp_path: Path) -> None:
    samples = [{"__key__": f"{n:02d}", "index.cls": 100 - n, "cls": n} for n in ALL]
    path = write_samples(tmp_path / "a.tar", samples)
    with pytest.raises(ConfigError, match=r"fields names 'index', which every batch has already. Use another name"):
        ParserWebDataset(path, {"index": "index.cls", "label": "cls"})
    parser = ParserWebDataset(path, {"number": "index.cls", "label": "cls"}, batch_size=4)
    rows = list(ImageDataset(parser, fields=("index", "number", "stored/number", "stored/label")))
    assert [tuple(map(int, row)) for row in rows] == [(n, 100 - n, 100 - n, n) for n in ALL]
