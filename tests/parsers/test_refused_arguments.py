"""Arguments that cannot work: one table for all parsers together, one for each of them, and what must be said."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_fixtures import write_pictures
from refused import said_of
from storage.webdataset.made_tars import write_samples, write_tar
from tfds_fixtures import Datasets, as_remote, write_numbered

from parsers.look_alikes import Frame, HubDataset
from parsers.sources import FILES, SOURCES
from parsers.tar_samples import CLASSES, FIELDS, NUM_CLASSES, sample_of
from tfds_torch import (
    DecodedCache,
    EvalPreprocess,
    ParserBeton,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    ReadOptions,
    TrainPreprocess,
)
from tfds_torch.errors import ConfigError, ShardError

Rows = list[tuple[dict[str, Any], str]]
TRAINING: dict[str, Any] = {"is_training": True, "batch_size": 4}
CROP = EvalPreprocess(size=8)
CROPPED: dict[str, Any] = {"batch_size": 4, "preprocess": CROP}
BYTES: dict[str, Any] = {"decode": {"image": False}}


def wrong_rows(rows: Rows, make: Callable[..., Any], error: type[Exception] = ConfigError) -> list[str]:
    """Return what was said of the rows whose message lacks what it must hold."""
    found = [(arguments, words, said_of(error, make, **arguments)) for arguments, words in rows]
    return [f"{arguments}: {said!r} lacks {words!r}" for arguments, words, said in found if words not in said]


# What all parsers share

OF_ALL: Rows = [
    *(({"batch_size": value}, f"batch_size={value!r} must be an integer") for value in (0, -4, 2**31, 2.0, "8", True)),
    ({"batch_size": 2**31}, "batch_size=2147483648 must be an integer in 1..2147483647"),
    *(({"repeats": value, **TRAINING}, f"repeats={value!r} must be an integer") for value in (-1, 1.5)),
    ({"repeats": 2}, "repeats=2"),
    *(({"seed": value}, f"seed={value!r} must be an integer >= 0") for value in (-1, None, 1.0)),
    *(({"epoch_size": value, **TRAINING}, f"epoch_size={value!r} must be an integer") for value in (0, 2.5)),
    ({"shuffle": 3}, "shuffle=3 must be True, False or None"),
    ({"is_training": "yes"}, "is_training='yes' must be True or False"),
    ({"is_training": True}, "Training needs batch_size"),
    ({"remainder": "warp"}, "remainder"),
    ({"remainder": "wrap"}, "remainder='wrap'"),
    ({"remainder": "drop", "is_training": True, "batch_size": 500}, "remainder='drop' leaves no batch"),
    ({"image_mode": "CMYK"}, "Unknown image_mode 'CMYK': choose 'RGB', 'L', 'RGBA' or None (as stored)."),
    *(
        ({"decode": value}, f"decode={value!r} must map fields to whether they are decoded, such as {{'image': False}}")
        for value in ({"image": 0}, ["image"], {1: False}, "image", False)
    ),
    ({"decode": {"imag": False}}, "image"),
    ({"read": 3}, "read=3 must be ReadOptions"),
    ({"preprocess": CROP}, "A preprocess needs batch_size: images are written into the memory of their batch."),
    ({**CROPPED, "image_mode": None}, "A preprocess needs image_mode 'RGB', 'L' or 'RGBA': with None, images may"),
    *(
        ({"preprocess": value, "batch_size": 4}, "must be a TrainPreprocess or an EvalPreprocess, for example Train")
        for value in (224, TrainPreprocess, (CROP, CROP))
    ),
    (
        {**CROPPED, "preprocess": EvalPreprocess(size=8, fill=(1, 2))},
        "The fill (1, 2) of the preprocess has 2 grey levels, and image_mode 'RGB' has 3 channels: give one level",
    ),
    (
        {**CROPPED, "preprocess": EvalPreprocess(size=8, fill=(1, 2, 3)), "image_mode": "L"},
        "The fill (1, 2, 3) of the preprocess has 3 grey levels, and image_mode 'L' has 1 channels",
    ),
    ({**CROPPED, "preprocess": EvalPreprocess(size=8, also=("label",))}, "names 'label', which is not an image but"),
    ({**CROPPED, "preprocess": EvalPreprocess(size=8, also=("musk",))}, "'musk'"),
    ({**CROPPED, **BYTES}, "leave 'image' out of decode."),
    ({"class_map": 3}, "class_map=3 must be a mapping from class to label, the path of a .txt or .pkl file, or None"),
    ({"class_map": {}}, "The class map is empty: it needs a label for every class."),
    ({"class_map": {0: -1}}, "The class map maps 0 to -1: labels are integers >= 0."),
]
NAMES = ["records", "beton", "tars", "own dataset", "concatenation"]


@pytest.mark.parametrize("name", NAMES)
def test_what_no_parser_takes_is_refused_by_each(name: str, tmp_path: Path) -> None:
    make = SOURCES[name](tmp_path, FILES).make
    assert not wrong_rows(OF_ALL, make)
    assert not wrong_rows([({"batchsize": 4}, "batchsize"), ({"is_train": True}, "is_training")], make, TypeError)
    for arguments in ({}, TRAINING, CROPPED, {"shuffle": True}, {"image_mode": None}, {"repeats": 2, **TRAINING}):
        make(**arguments)


def test_all_parsers_have_the_arguments_of_this_table() -> None:
    asked = {argument for arguments, _ in OF_ALL for argument in arguments}
    for kind in (ParserTfds, ParserBeton, ParserWebDataset, ParserMapStyle):
        assert asked <= set(inspect.signature(kind).parameters)


# ParserTfds

OF_TFDS: Rows = [
    ({"target_key": "flag,lable"}, "shapes:1.0.0: There is no target feature 'lable'. The dataset's features are: "),
    ({"target_key": ["label", "nested/conut"]}, "Did you mean 'nested/count'?"),
    *(
        ({"target_key": ["flag", key]}, f"the target field '{key}' is not a scalar number but {kind}(")
        for key, kind in {"caption": "Text", "sizes": "Sequence", "vector": "Tensor", "mask": "Image"}.items()
    ),
    ({"target_key": ["objects/label"]}, "the target field 'objects/label' is not a scalar number but ClassLabel("),
    *(
        ({"target_key": key}, f"target_key={key!r}: several target keys must be different names of features, none of")
        for key in ("flag,", ",", "flag, flag", [], ["flag", ""], ["flag", 3])
    ),
    ({"target_key": 3}, "target_key=3 must be a feature's key, a sequence of keys, or None."),
    ({"target_key": b"flag"}, "target_key=b'flag' must be a feature's key"),
    ({"target_key": {"flag", "small"}}, " must be a feature's key, a sequence of keys, or None."),
    ({"target_key": ""}, "There is no target feature ''."),
    ({"target_key": None, "class_map": {0: 1}}, "class_map gives the target new labels, but there is none: target_"),
    *(
        ({"target_key": key, "class_map": {0: 1}}, f"the target '{key}' is ")
        for key in ("weight", "nested", "objects", "objects/bbox", "mask", "frames")
    ),
    ({"class_map": {"circle": 0}}, "the class map has no label for 4 of the 5 classes: 'square', 'triangle', 'star',"),
    ({"target_key": "objects/label", "class_map": {0: 0}}, "the class map has no label for 4 of the 5 classes"),
    ({"target_key": ["flag", "small"], "class_map": {"flag": 0}}, "no label for 1 of the 2 classes: 'small'."),
    ({"name": "sentences", "class_map": {0: 1}}, "There is no target feature 'label'. The dataset's features are: "),
    ({"class_map": {5: 0, -1: 1, "x": 2, "0": 3}}, "read parser.subset(parser.targets() < n)."),
    ({"class_map": "nowhere.txt"}, "The class map 'nowhere.txt' does not exist in "),
    ({**CROPPED, "image_key": None}, "The field 'image' was asked for, but the parser has image_key=None."),
    ({**CROPPED, "image_key": "caption"}, "the feature 'caption' is not a single uint8 image but Text"),
    (
        {**CROPPED, "preprocess": EvalPreprocess(size=8, also=("mask", "caption"))},
        "also=('mask', 'caption') names 'caption', which is not an image but Text",
    ),
    ({**CROPPED, "preprocess": EvalPreprocess(size=8, also=("frames",))}, "also=('frames',) names 'frames', which is"),
    ({"decode": {"imag": False}}, "Did you mean 'image'"),
    *(
        ({"decode": {key: False}}, f"shapes:1.0.0: decode names '{key}', which is ")
        for key in ("weight", "frames", "label")
    ),
    ({"cache": DecodedCache(), **BYTES}, "cache= keeps decoded images, and decode gives 'image' as bytes"),
    (
        {**CROPPED, "preprocess": EvalPreprocess(8, also=("mask",)), "decode": {"mask": False}},
        "decode gives 'mask' as bytes, and EvalPreprocess",
    ),
    ({"name": "tiny", "class_map": {"circle": 0}, "decode": {"label": False}}, "and decode gives 'label' as bytes"),
    (
        {"image_key": "mask", "decode": {"image": False, "mask": True}},
        "'image' and 'mask' are one stored field, which comes either as bytes or",
    ),
    ({"cache": True}, "cache=True must be a DecodedCache, for example DecodedCache(), or None"),
    ({"cache": "folder"}, "cache='folder' must be a DecodedCache"),
    ({"cache": DecodedCache(), "read": ReadOptions(mode="files")}, "shapes:1.0.0: a decoded cache is read by index"),
    *(
        ({"cache": DecodedCache(), "image_mode": mode}, f"and image_mode={mode!r} needs those of the files")
        for mode in ("RGBA", None)
    ),
    ({"cache": DecodedCache(), "image_key": None}, "The field 'image' was asked for, but the parser has image_key="),
    ({"cache": DecodedCache(), "image_key": "label"}, "the feature 'label' is not a single uint8 image"),
]


def test_what_parser_tfds_cannot_do_is_said(datasets: Datasets) -> None:
    assert not wrong_rows(OF_TFDS, lambda **more: ParserTfds(datasets.root, **{"name": "shapes", **more}))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "shapes",
            "Use target_key='label' or target_key='objects/label' (of a sequence, all labels of an example), or",
        ),
        (
            "sentences",
            "It has no labels with classes: use target_key=None, and fields=('image', ...) with the features",
        ),
    ],
)
def test_a_target_that_is_missing_brings_the_ones_that_are_there(datasets: Datasets, name: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ParserTfds(datasets.root, name, target_key="lable").check_fields(("label",))
    assert "There is no target feature 'lable'. The dataset's features are: " in str(caught.value)
    assert advice in str(caught.value)


# ParserBeton, ParserWebDataset, ParserMapStyle


def test_what_parser_beton_cannot_do_is_said(tmp_path: Path) -> None:
    make = SOURCES["beton"](tmp_path, FILES).make
    rows: Rows = [
        ({"image_key": "imge"}, "has no field 'imge' (image_key): its fields are image, label. Did you mean 'image'"),
        ({"target_key": "labl"}, "has no field 'labl' (target_key)"),
        ({"image_key": "label"}, "the image field 'label' is BetonInt(), not an image. Use image_key= with one of"),
        ({"class_map": {0: 1}, "target_key": None}, "there is no field 'label' of integers"),
    ]
    assert not wrong_rows(rows, make)
    asked: Rows = [
        ({"fields": ["label"]}, "there is no field 'label': target_key=None"),
        ({"fields": ["mask"]}, "has no field 'mask': its fields are image, label"),
    ]
    assert not wrong_rows(asked, make(target_key=None).check_fields)
    with pytest.raises(ShardError, match="is missing"):
        ParserBeton(tmp_path / "none.beton")


def reverse(stored: bytes) -> bytes:
    return stored[::-1]


OF_TARS: Rows = [
    ({"fields": {"image": "jgp"}}, "no sample has a member .jgp"),
    ({"fields": {"image": "pgn"}}, "Did you mean 'png'?"),
    ({"fields": {"image": "cls"}}, "the field 'image' is 'cls', which is not an image"),
    ({"fields": {"x": "png;cls"}}, "mixes kinds of values: .png is 'image', .cls is 'label'"),
    ({"fields": {}}, "fields={} must map names to extensions"),
    ({"fields": "jpg"}, "fields='jpg' must map names to extensions"),
    ({"fields": ["image", ["cls"]]}, "must map names to extensions, "),
    ({"fields": ["image", "pgn"]}, "no sample has a member .pgn"),
    ({"fields": {"image": 3}}, "fields['image']=3 must be an extension"),
    ({"fields": {"id": "txt"}}, "fields names 'id', which every batch has already"),
    *(({"class_names": value}, "must be a sequence of different texts") for value in ("cat", ["a", "a"], [])),
    ({**CROPPED, "fields": {"label": "cls"}}, "no field 'image'"),
    ({"class_map": {0: 1}, "fields": {"image": "png"}}, "there is no field 'label' of integers"),
    ({"decoders": {".msgpack": reverse}}, "no sample has a member .msgpack: the extensions in the tars are"),
    ({"decoders": {".jsn": reverse}}, "Did you mean 'json'?"),
    ({"decoders": {".json": "reverse"}}, "decoders['.json']='reverse' must be a function of bytes"),
    *(({"decoders": value}, "must map extensions to functions of bytes") for value in ([reverse], {1: reverse})),
    ({"fields": {"value": "bin;txt"}, "decoders": {"bin": reverse}}, "mixes kinds of values"),
    ({"missing": "none!"}, "missing='none!'"),
]


def test_what_parser_web_dataset_cannot_do_is_said(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "a.tar", map(sample_of, range(6)))
    assert not wrong_rows(OF_TARS, partial(ParserWebDataset, str(path)))
    with pytest.raises(
        ConfigError, match=r"no field 'tx': fields= names image, label, .*\. The extensions in the tars"
    ):
        ParserWebDataset(str(path), FIELDS).check_fields(["tx"])
    empty = write_tar(tmp_path / "empty.tar", [])
    rows: Rows = [({"preprocess": CROP}, "A preprocess needs batch_size"), ({**TRAINING}, "empty.tar, split 'all'")]
    assert not wrong_rows(rows, partial(ParserWebDataset, empty))


OF_OWN: Rows = [
    ({"dataset": [(1, 2)], "names": ("x",)}, "names=['x'] are 1 names, and an item has 2 values"),
    ({"dataset": [1], "names": ("x", "y")}, "are 2 names, and an item is one value"),
    ({"dataset": [{"x": 1}], "names": ("x",)}, "is for items that are tuples, and these are dictionaries"),
    ({"dataset": [{1: 1}]}, "an item has the key 1, and keys must be texts"),
    *(({"dataset": [1], "names": value}, "must be a sequence of different texts") for value in ("x", ["x", "x"])),
    *(({"dataset": [1], "version": value}, f"version={value!r} must be a text") for value in (3, "")),
    ({"dataset": {1: [1]}}, "an item for each number from 0 to 0, and this one has the key 1"),
    ({"dataset": {0: 1, "a": 2}}, "an item for each number from 0 to 1, and this one has the key 0"),
    ({"dataset": Frame({"a": [1], 5: [2]})}, "and this one has the name 5"),
    ({"dataset": 3}, "3 has no items by number"),
    ({"dataset": "my/folder"}, "'my/folder' is a path, and a dataset is wanted: datasets.load_from_disk(path)"),
    ({"dataset": Path("my")}, "Path('my') is a path"),
    ({"dataset": iter([1])}, "has no items by number"),
    ({"dataset": {"a": HubDataset({"x": [1]}), "b": HubDataset({"x": [1]})}}, "dictionary of datasets: give one of"),
    ({"dataset": [1], "class_names": []}, "must be a sequence of different texts"),
]


def test_what_parser_map_style_cannot_do_is_said() -> None:
    assert not wrong_rows(OF_OWN, lambda **more: ParserMapStyle(**more).check_fields(["x"]))


# Another order of the same examples


def test_what_cannot_be_chosen_or_weighed_is_said(tmp_path: Path) -> None:
    write_numbered(tmp_path, {"train": (7, 0, 5)})

    def make(**more: Any) -> Any:
        return ParserTfds(tmp_path, "numbered", **more)

    streamed = {**TRAINING, "read": ReadOptions(mode="examples")}
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: make(batch_size=2).balanced(), "Evaluation needs each example exactly once, "),
        (lambda: make(**TRAINING).balanced(by="image"), "by='image' must be 'label'"),
        (lambda: make(**TRAINING).balanced(np.ones(2)), "must be 'label'"),
        (lambda: make(**TRAINING, shuffle=False).weighted(np.ones(12)), "shuffle=False beside weights of examples"),
        (lambda: make(**TRAINING).balanced(temperature=0), "temperature=0 must be a number > 0"),
        (lambda: make(**TRAINING).balanced().weighted(np.ones(12)), "has weights already"),
        (lambda: make(**TRAINING).weighted([1, 2]), "2 were given, and there are 12 examples"),
        (lambda: ParserMixture({"a": make(**TRAINING).balanced()}, **TRAINING), "the member 'a' has weights of its"),
        (lambda: make(target_key=None).targets(), "target_key=None"),
        (lambda: as_remote(make()).subset([1]), "a subset needs every example by its number, and "),
        (lambda: make(read=ReadOptions(mode="examples")).subset([1]), "mode='examples'. Use mode 'index' or 'auto'"),
        (lambda: make(epoch_size=3, **streamed).batches(), "epoch_size=3 needs every example by its number"),
        (lambda: make().subset([99]), "subset: there is no example 99"),
        (
            lambda: make(**TRAINING, read=ReadOptions(block_records=4, block_groups=2)).balanced(),
            "has block_groups=2 beside weights, which choose what is in a global",
        ),
    ]
    found = [(words, said_of(ConfigError, call)) for call, words in calls]
    assert not [pair for pair in found if pair[0] not in pair[1]]


# ParserMixture

EVEN = {"a": 1, "b": 1}
ODD = [*CLASSES[:3], "zebra", CLASSES[4]]


@pytest.fixture
def tar(tmp_path: Path) -> Callable[..., Any]:
    """`tar(**arguments)`: a parser of ten samples."""
    path = write_samples(tmp_path / "tar.tar", map(sample_of, range(10)))
    return partial(ParserWebDataset, str(path))


def test_what_is_no_member_is_named(tar: Callable[..., Any], tmp_path: Path) -> None:
    write_numbered(tmp_path, {"train": (4, 5)})
    numbered = partial(ParserTfds, tmp_path, "numbered")
    empty = ParserWebDataset(str(write_tar(tmp_path / "empty.tar", [])))
    printable = "of a member must be a text of printable characters without '/'"
    members: list[tuple[Any, str]] = [
        *((value, f"members={value!r} must be a mapping from name to parser") for value in ({}, None, "ab")),
        ([("a", 3)], "the member 'a' is 3, and must be a ParserTfds, a ParserBeton, a ParserWebDataset"),
        ([3], "3 must be a pair (name, parser)"),
        *(({name: 3}, f"the name {name!r} {printable}") for name in ("", "a/b", 3)),
        ([("a", tar()), ("a", tar())], "two members are called 'a': give each a name of its own"),
        ({"a": tar(), "b": empty}, "the member 'b' (empty.tar, split 'all') holds no examples: leave it out"),
        ({"b": ParserMixture({"a": tar()}, batch_size=2)}, "the member 'b' is a mixture itself: give its members to"),
        *(
            (
                {"a": tar(), "b": numbered(read=ReadOptions(mode=mode))},
                f"the member 'b' (numbered:1.0.0) is read as a stream: it has ReadOptions(mode={mode!r})",
            )
            for mode in ("files", "examples")
        ),
        ({"far": as_remote(numbered())}, "the member 'far' (numbered:1.0.0) is read as a stream: "),
        (
            {"a": tar(fields=["npy"]), "b": numbered(image_key=None, target_key=None)},
            "the members 'a', 'b' have no field in common",
        ),
        ({"a": tar(**TRAINING)}, "the member 'a' has is_training=True, and the mixture is_training=False"),
        ({"a": tar(shuffle=True)}, "the member 'a' has shuffle=True, and the mixture shuffle=False"),
        (
            {"a": tar(class_names=CLASSES), "b": tar(class_names=ODD)},
            "'a' has 5 classes and 'b' 5, and label 3 is 'class 3' in 'a' and 'zebra' in 'b'",
        ),
        (
            {"a": tar(class_names=CLASSES), "b": tar(class_names=[*CLASSES, "more"])},
            "label 5 is None in 'a' and 'more'",
        ),
    ]
    assert not wrong_rows([({"members": one}, words) for one, words in members], partial(ParserMixture, batch_size=4))


OF_MEMBERS: Rows = [
    ({"batch_size": 8}, "has batch_size=8, and the mixture batch_size=4"),
    ({"seed": 7}, "has seed=7, and the mixture seed=42"),
    ({"remainder": "drop"}, "has remainder='drop', and the mixture remainder=None"),
    ({"repeats": 3, **TRAINING}, "has repeats=3, and the mixture repeats=0"),
    (CROPPED, "has preprocess=EvalPreprocess(size=8"),
    ({"read": ReadOptions(num_threads=3)}, "has ReadOptions(num_threads=3), and the mixture ReadOptions(num_th"),
    ({"read": ReadOptions(prefetch_batches=3)}, "has ReadOptions(prefetch_batches=3), and the mixture"),
    ({"read": ReadOptions(jpeg_decoder="pillow")}, "has ReadOptions(jpeg_decoder=pillow), and the mixture"),
    ({"read": ReadOptions(block_records=4, block_groups=2)}, "has block_groups=2 beside weights"),
    ({"epoch_size": 7, **TRAINING}, "has epoch_size=7"),
]
OF_MIXTURES: Rows = [
    *(
        ({"weights": {"a": value, "b": 2}}, f"{value!r} of 'a' must be a finite number >= 0")
        for value in (-1, float("nan"))
    ),
    ({"weights": {"a": 0, "b": 0}}, "all of them are 0"),
    ({"weights": {"a": 1e-9, "b": 1}}, "the share of 'a' is 1e-09, less than half of 1/65,536"),
    ({"weights": {"a": 1}}, "there is none for 'b'"),
    ({"weights": {**EVEN, "c": 1}}, "'c' is not a member"),
    ({"weights": [(0, EVEN), (0, EVEN)]}, "the schedule is out of order"),
    ({"weights": [(3, EVEN)]}, "the schedule begins at example 3"),
    ({"weights": "even"}, "weights='even' must be a mapping"),
    ({"weights": EVEN, "is_training": False}, "in evaluation would leave examples out, or count them twice."),
    ({"weights": {"a": 1, "b": 0}, "stop": "all_exhausted"}, "the pass of 'b' never ends, because its weight is 0"),
    *(
        ({"temperature": value}, f"temperature={value!r} has no effect without weights")
        for value in (True, np.array([1, 2]), 2.0)
    ),
    ({"stop": "all_exhausted"}, "stop='all_exhausted' has no effect without weights"),
    *(({"weights": EVEN, "epoch_size": value}, "must be an integer in 1..") for value in (0, 2.5)),
    ({"weights": EVEN, "epoch_size": 9, "stop": "all_exhausted"}, "both say where an epoch ends"),
    ({"weights": EVEN, "stop": "soon"}, "stop='soon' must be 'first_exhausted' or 'all_exhausted'"),
    ({"weights": EVEN, "temperature": 0}, "temperature=0 must be a number > 0"),
    ({"weights": EVEN, "seed": -1}, "seed=-1 must be an integer >= 0"),
    ({"weights": EVEN, "batch_size": None}, "Training needs batch_size"),
    ({"weights": EVEN, "remainder": "drop", "epoch_size": 3}, "remainder='drop' leaves no batch"),
]
OF_THEIR_READING: Rows = [
    ({"read": ReadOptions(mode="files")}, "ReadOptions(mode='files') streams whole shards"),
    *(
        ({"read": ReadOptions(**option)}, f"ReadOptions({name}={value!r}) belongs to a member")
        for option in ({"on_error": "replace"}, {"block_records": 4}, {"verify_checksums": False})
        for name, value in option.items()
    ),
]


def test_what_a_mixture_cannot_do_is_said(tar: Callable[..., Any]) -> None:
    members = {"a": tar(), "b": tar()}
    assert not wrong_rows(OF_MIXTURES, lambda **more: ParserMixture(members, **{**TRAINING, **more}))
    assert not wrong_rows(OF_MEMBERS, lambda **more: ParserMixture({"a": tar(), "b": tar(**more)}, EVEN, **TRAINING))
    assert not wrong_rows(OF_THEIR_READING, partial(ParserMixture, members))
    assert not wrong_rows(OF_THEIR_READING, ParserMixture(members, batch_size=2).with_read)
    blocks = {"a": tar(), "b": tar(read=ReadOptions(block_records=4))}
    assert "'a' has block_records=None, and 'b' 4" in said_of(ConfigError, ParserMixture, blocks, **TRAINING)
    for weights in (EVEN, None):
        counts = ParserMixture(members, weights, **TRAINING).counts
        assert "counts: n=1.5 must be an integer" in said_of(ConfigError, counts, 1.5)


def test_members_whose_fields_differ_are_named(tar: Callable[..., Any], tmp_path: Path) -> None:
    fields = {"image": "png", "label": "cls", "mask": "seg.png"}
    for channels in (1, 3):
        write_pictures(tmp_path, FILES[:1], FILES[:1], name=f"masked{channels}", mask_channels=channels)
    three, one = (ParserTfds(tmp_path, f"masked{channels}") for channels in (3, 1))
    pairs: list[tuple[Any, Any, str, str]] = [
        (tar(), tar(fields=["image", "npy"]), "label", "The field 'label' is not one of all members: 'b' lacks it"),
        (
            tar(fields={"image": "png", "x": "txt"}),
            tar(fields={"image": "png", "x": "cls"}),
            "x",
            "The field 'x' is a text in the member 'a', and int64 [] in 'b'",
        ),
        (
            tar(),
            tar(image_mode="L"),
            "image",
            "image_mode='RGB') in the member 'a', and an image (image_mode='L') in 'b'",
        ),
        (three, one, "mask", "'mask' is an image (uint8, 3 channels) in the member 'a', and "),
        (
            tar(**BYTES),
            tar(),
            "image",
            "'image' is bytes, undecoded in the member 'a', and an image (image_mode='RGB')",
        ),
    ]
    for first, second, name, words in pairs:
        parser = ParserMixture({"a": first, "b": second}, batch_size=2)
        assert words in said_of(ConfigError, parser.check_fields, [name])
    other = {"a": tar(fields=fields), "b": tar(fields=fields, image_mode="L")}
    ParserMixture(other, batch_size=2).check_fields(["mask"])  # It does not depend on image_mode.
    assert "image_mode='RGB'" in said_of(ConfigError, ParserMixture(other, batch_size=2).with_preprocess, CROP)
    assert len(CLASSES) == NUM_CLASSES
