"""The front door: what `tfds_torch` offers by name, and that DESIGN's signatures are kept."""

import ast
import dataclasses
import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import tfds_torch
from tfds_torch import check, errors, export

FRONTS = (tfds_torch, check, export, tfds_torch.demo)
CLASSES = sorted(set(tfds_torch.__all__) - {"__version__", "demo", "errors"})


@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.__name__)
def test_the_names_of_a_front_are_sorted_and_there(front: ModuleType) -> None:
    assert front.__all__ == sorted(set(front.__all__))
    for name in front.__all__:
        namespace: dict[str, Any] = {}
        exec(f"from {front.__name__} import {name}", namespace)  # Its ImportError has the name.
        assert namespace[name] is getattr(front, name)
    with pytest.raises(AttributeError, match=f"^module '{front.__name__}' has no attribute 'no_such_name'$"):
        front.no_such_name  # noqa: B018


def test_a_star_import_gives_the_names_of_all() -> None:
    namespace: dict[str, Any] = {}
    exec("from tfds_torch import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(tfds_torch.__all__)


def test_dir_lists_every_name() -> None:
    assert dir(tfds_torch) == sorted(dir(tfds_torch))
    assert set(tfds_torch.__all__) <= set(dir(tfds_torch))


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'tfds_torch' has no attribute 'ImageDatset'$"):
        tfds_torch.ImageDatset  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'ImageDatset' from 'tfds_torch'"):
        exec("from tfds_torch import ImageDatset")
    assert not hasattr(tfds_torch, "__wrapped__")


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(tfds_torch.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    imported = {
        alias.name: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported.keys() == {*CLASSES, "demo", "errors"}
    for name in CLASSES:
        room, _, attribute = imported[name].rpartition(".")
        assert getattr(__import__(room, fromlist=[attribute]), attribute) is getattr(tfds_torch, name)


def test_the_version_is_that_of_a_release() -> None:
    parts = tfds_torch.__version__.split(".")
    assert len(parts) == 3
    assert all(part.isdigit() for part in parts)


# Documentation


def public_objects() -> Iterator[tuple[str, Any]]:
    """Yields every class, function, method and property that can be reached from the front door, once."""
    for name, value in ((name, getattr(front, name)) for front in FRONTS for name in front.__all__):
        if isinstance(value, ModuleType):
            yield name, value
            for inner, error in vars(value).items():
                if isinstance(error, type):
                    yield f"{name}.{inner}", error
        elif isinstance(value, type):
            yield name, value
            yield from members(name, value)
        elif isinstance(value, FunctionType):
            yield name, value


def members(name: str, cls: type) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties that the package itself defines for a class."""
    for base in cls.__mro__:
        if not base.__module__.startswith("tfds_torch."):
            continue
        for attribute, value in vars(base).items():
            value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if not attribute.startswith("_") and (isinstance(value, property) or inspect.isfunction(value)):
                yield f"{name}.{attribute}", value


PUBLIC = dict(public_objects())


def flaw_of_docstring(name: str) -> str | None:
    documented = vars(PUBLIC[name]).get("__doc__") if isinstance(PUBLIC[name], type) else PUBLIC[name].__doc__
    if not documented:
        return "there is none"
    if documented.startswith(f"{name.rpartition('.')[2]}("):  # What a dataclass writes where nobody did.
        return f"it is generated: {documented}"
    first_line = documented.strip().splitlines()[0]
    return None if first_line.rstrip().endswith((".", ":")) else f"its first line is not a sentence: {first_line!r}"


def test_everything_public_is_documented() -> None:
    flaws = [f"{name}: {flaw}" for name in PUBLIC if (flaw := flaw_of_docstring(name))]
    assert not flaws, "\n".join(flaws)


def entries_of(docstring: str) -> dict[str, str]:
    """Returns name -> description of the sections Args and Attributes."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:    .*\n|\n)*)", f"{docstring}\n", re.MULTILINE)
    return dict(re.findall(r"^    \*{0,2}(\w+): ((?:.*\n(?:        .*\n)*))", "".join(sections), re.MULTILINE))


def lacks_of(value: Any) -> Iterator[str]:
    """Yields what the docstring of a class or function should say: its parameters, units, errors, shape and dtype."""
    docstring, signature = inspect.getdoc(value) or "", inspect.signature(value)
    entries = entries_of(docstring)
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    for name in (name for name, parameter in signature.parameters.items() if parameter.kind in kinds):
        if name not in entries and f"`{name}`" not in docstring and name not in ("self", "cls"):
            yield f"the parameter {name}"
        if name.endswith("_s") and "second" not in docstring:
            yield f"the unit of {name}"
        if "bytes" in name and not re.search(r"\b[Bb]ytes|\b[KMG]i?B", entries.get(name, "")):
            yield f"the unit of {name}"
    if isinstance(value, FunctionType):
        raised = re.findall(r"^\s+raise (\w+Error)\b", inspect.getsource(value), re.MULTILINE)
        yield from (f"the error {name}" for name in raised if name not in docstring and name != "NotImplementedError")
        if re.search(r"NDArray|Tensor", str(signature.return_annotation)) and "[" not in docstring:
            yield "the shape of the result"


DESCRIBED = {
    name: value
    for name, value in PUBLIC.items()
    if isinstance(value, FunctionType)
    or (isinstance(value, type) and not issubclass(value, (Exception, dict, tfds_torch.Remainder)))
}


def test_everything_public_has_its_parameters_units_shapes_and_errors_in_its_docstring() -> None:
    lacks = {id(value): (name, list(lacks_of(value))) for name, value in DESCRIBED.items()}  # Once where inherited.
    assert [f"{name}: {', '.join(lack)}" for name, lack in lacks.values() if lack] == []


@pytest.mark.parametrize(
    "name", ["ImageDataset", "MultiLoader", "ParserMixture", "ParserTfds", "Transform", "create_loader"]
)
def test_the_example_of_a_docstring_runs(name: str) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(tfds_torch, name), name)
    assert 3 <= len(example.examples) <= 8
    told: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=told.append)
    assert told == []


def test_the_search_for_public_objects_finds_them() -> None:
    assert {"ParserTfds.batches", "ImageDataset.set_epoch", "World.from_environ", "errors.ShardError"} <= PUBLIC.keys()
    assert "EpochPlan.default_remainder" in PUBLIC  # A static method.
    assert "ImageDataset.__iter__" not in PUBLIC
    assert not any(name.startswith("Remainder.cap") for name in PUBLIC)  # str's own methods.


# Signatures of DESIGN, section 6

EMPTY = inspect.Parameter.empty


def defaults(function: Any, kinds: set[Any]) -> dict[str, Any]:
    """Returns the parameters of some kinds, in order, with their defaults; without `self`."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind in kinds and p.name != "self"}


POSITIONAL, KEYWORD_ONLY = {inspect.Parameter.POSITIONAL_OR_KEYWORD}, {inspect.Parameter.KEYWORD_ONLY}


def test_the_first_parameters_of_parser_tfds_keep_timms_order() -> None:
    assert list(defaults(tfds_torch.ParserTfds, POSITIONAL).items()) == [
        ("root", EMPTY),
        ("name", None),
        ("split", "train"),
        ("shuffle", None),
        ("is_training", False),
        ("batch_size", None),
        ("repeats", 0),
    ]


def test_parser_web_dataset_has_the_designed_parameters() -> None:
    positional = defaults(tfds_torch.ParserWebDataset, POSITIONAL)
    assert list(positional) == [*("urls", "fields", "class_names", "shuffle", "is_training", "batch_size", "repeats")]
    assert positional["fields"] == {"image": "jpg;jpeg;png", "label": "cls"}
    of_beton = defaults(tfds_torch.ParserBeton, KEYWORD_ONLY)
    keyword_only = defaults(tfds_torch.ParserWebDataset, KEYWORD_ONLY)
    assert (keyword_only.pop("decoders"), keyword_only.pop("missing")) == (None, "error")
    assert keyword_only == {name: of_beton[name] for name in keyword_only}
    assert set(of_beton) - set(keyword_only) == {"image_key", "target_key", "handlers"}


def test_parser_map_style_has_the_designed_parameters() -> None:
    assert list(defaults(tfds_torch.ParserMapStyle, POSITIONAL)) == [
        *("dataset", "names", "class_names", "shuffle", "is_training", "batch_size", "repeats"),
    ]
    keyword_only, of_beton = (
        defaults(parser, KEYWORD_ONLY) for parser in (tfds_torch.ParserMapStyle, tfds_torch.ParserBeton)
    )
    assert keyword_only == {"version": None} | {
        name: of_beton[name] for name in of_beton if name not in ("handlers", "remote")
    }


def test_parser_mixture_has_the_designed_parameters() -> None:
    assert list(defaults(tfds_torch.ParserMixture, POSITIONAL).items()) == [
        ("members", EMPTY),
        ("weights", None),
        ("shuffle", None),
        ("is_training", False),
        ("batch_size", None),
        ("repeats", 0),
    ]
    assert defaults(tfds_torch.ParserMixture, KEYWORD_ONLY) == {
        "seed": 42,
        "remainder": None,
        "preprocess": None,
        "temperature": 1.0,
        "epoch_size": None,
        "stop": "first_exhausted",
        "read": tfds_torch.ReadOptions(),
        "transform": None,
    }
    assert list(defaults(tfds_torch.ParserMixture.counts, POSITIONAL)) == ["n"]
    for name in ("members", "member_names", "member_sizes", "weights", "epoch_size", "fingerprint", "class_names"):
        assert isinstance(inspect.getattr_static(tfds_torch.ParserMixture, name), property)


def test_the_rest_of_parser_tfds_is_keyword_only() -> None:
    expected = {
        "seed": 42,
        "remainder": None,
        "image_key": "image",
        "target_key": "label",
        "image_mode": "RGB",
        "download": False,
    }
    keyword_only = defaults(tfds_torch.ParserTfds, KEYWORD_ONLY)
    assert {name: keyword_only.get(name, "absent") for name in expected} == expected
    assert set(keyword_only) - set(expected) <= {
        *("cache", "read", "preprocess", "class_map", "epoch_size", "decode", "decoders", "windows", "fields"),
        *("transform", "remote"),
    }
    assert keyword_only["read"] in (None, tfds_torch.ReadOptions())
    kinds = {p.kind for p in inspect.signature(tfds_torch.ParserTfds).parameters.values()}
    assert kinds == POSITIONAL | KEYWORD_ONLY  # An unknown keyword is an error.


def test_parsers_plan_and_yield_batches_as_designed() -> None:
    for parser in (tfds_torch.ParserTfds, tfds_torch.Parser):
        assert list(defaults(parser.plan, POSITIONAL)) == ["world"]
        assert defaults(parser.plan, KEYWORD_ONLY) == {"first_example": 0}
        arguments = defaults(parser.batches, POSITIONAL)
        assert list(arguments) == ["world", "epoch", "start_batch"]
        assert (arguments["epoch"], arguments["start_batch"]) == (0, 0)
        options = defaults(parser.batches, KEYWORD_ONLY)
        assert set(options) == {"fields", "in_pieces", "context", "first_example"}
        assert (options["fields"], options["in_pieces"], options["first_example"]) == (("image", "label"), False, 0)


@pytest.mark.parametrize("name", ["num_examples", "class_names", "class_to_idx", "element_spec", "fingerprint"])
def test_parser_tfds_has_the_designed_properties(name: str) -> None:
    assert isinstance(inspect.getattr_static(tfds_torch.ParserTfds, name), property)


def test_image_dataset_has_the_designed_parameters() -> None:
    options = {"batched": None, "pad": None, "seed_transforms": True, "as_dict": False, "fuse": "auto"}
    assert defaults(tfds_torch.ImageDataset, KEYWORD_ONLY) == options
    assert list(defaults(tfds_torch.ImageDataset, POSITIONAL).items()) == [
        ("parser", EMPTY),
        ("transform", None),
        ("target_transform", None),
        ("fields", ("image", "label")),
        ("world", None),
    ]
    assert list(defaults(tfds_torch.ImageDataset.set_epoch, POSITIONAL)) == ["epoch"]
    assert defaults(tfds_torch.ImageDataset.filenames, POSITIONAL) == {"basename": False, "absolute": False}


def test_create_loader_has_the_designed_parameters() -> None:
    arguments = defaults(tfds_torch.create_loader, POSITIONAL)
    assert list(arguments) == [
        *("dataset", "num_workers", "device", "mean", "std", "dtype", "prefetch_batches", "timeout_s"),
    ]
    assert (arguments["num_workers"], arguments["device"], arguments["prefetch_batches"]) == (0, None, 2)
    for method in ("set_epoch", "state_dict", "load_state_dict", "stats", "close", "__len__", "__enter__"):
        assert callable(getattr(tfds_torch.Loader, method))


def test_a_feeder_has_the_designed_methods() -> None:
    assert list(defaults(tfds_torch.Feeder.add_source, POSITIONAL).items()) == [
        ("name", EMPTY),
        ("fetch", EMPTY),
        ("names", EMPTY),
        ("batch_size", EMPTY),
        ("num_threads", 2),
        ("max_buffered_chunks", 800),
        ("batch_axes", 0),
        ("rebatch", True),
        ("init", None),
        ("shutdown", None),
        ("timeout_s", 600.0),
        ("at_end", "stop"),
        ("last", "keep"),
    ]
    assert defaults(tfds_torch.Feeder, POSITIONAL) == defaults(tfds_torch.Feeder.start, POSITIONAL) == {}
    assert list(defaults(tfds_torch.Feeder.batches, POSITIONAL)) == ["name"]
    assert list(defaults(tfds_torch.Feeder.set_batch_size, POSITIONAL)) == ["name", "n"]
    assert defaults(tfds_torch.Feeder.mix, POSITIONAL) == {"weights": EMPTY, "seed": EMPTY, "stop": "first"}
    assert defaults(tfds_torch.Feeder.metrics, POSITIONAL) == {}
    assert list(defaults(tfds_torch.Feeder.add_logger, POSITIONAL)) == ["logger"]
    assert defaults(tfds_torch.Feeder.stop, POSITIONAL) == {"name": None}


def test_multi_loader_has_the_designed_parameters() -> None:
    assert defaults(tfds_torch.MultiLoader, POSITIONAL) == {"source": EMPTY, "num_workers": 4}
    assert defaults(tfds_torch.MultiLoader, KEYWORD_ONLY) == {
        "in_order": True,
        "timeout_s": 300,
        "world": None,
        "persistent_workers": False,
        "concurrent": False,
        "start_method": None,
        "socket_dir": None,
        "transport": "auto",
        "prefetch_batches": 2,
        "verbose": False,
        "fields": None,
    }
    for method in ("set_epoch", "state_dict", "load_state_dict", "stats", "kill", "close", "__len__", "__enter__"):
        assert callable(getattr(tfds_torch.MultiLoader, method))


def test_preprocesses_have_the_designed_parameters() -> None:
    assert list(defaults(tfds_torch.TrainPreprocess, POSITIONAL))[:6] == [
        *("size", "scale", "ratio", "hflip", "interpolation", "crop_padding"),
    ]
    assert list(defaults(tfds_torch.EvalPreprocess, POSITIONAL))[:4] == [
        *("size", "crop_pct", "interpolation", "crop_mode"),
    ]


def test_a_world_is_rank_replicas_worker_workers() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(tfds_torch.World)}
    assert list(fields.items()) == [("rank", 0), ("num_replicas", 1), ("worker", 0), ("num_workers", 1)]


def test_a_batch_has_the_designed_fields() -> None:
    names = [field.name for field in dataclasses.fields(tfds_torch.Batch)]
    assert names == ["image", "label", "valid", "index", "id", "features", "epoch", "batch"]


def test_the_remainders_are_the_designed_ones() -> None:
    assert [member.value for member in tfds_torch.Remainder] == ["wrap", "drop", "pad", "keep"]


def test_the_error_tree_is_the_designed_one() -> None:
    tree = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    assert set(tree) == {
        "TfdsTorchError",
        "ConfigError",
        "DatasetNotFoundError",
        "ExampleNotFoundError",
        "ShardError",
        "CorruptRecordError",
        "StateMismatchError",
        "WorkerError",
        "StallError",
        "ExportError",
    }
    for error in tree.values():
        assert issubclass(error, errors.TfdsTorchError)
        assert str(error("all the facts")) == "all the facts"  # torch rebuilds a worker's error from its message.
