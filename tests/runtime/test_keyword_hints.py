"""Keywords that do not exist: what is said, and that what is decorated stays what it was."""

import copy
import dataclasses
import inspect
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import tfds_torch
from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    IndexedImageDataset,
    MultiLoader,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    ReadOptions,
    TrainPreprocess,
    create_loader,
)
from tfds_torch.errors import ConfigError
from tfds_torch.runtime import keyword_hints

OWN = {
    *("DevicePrefetcher", "DecodedCache", "EvalPreprocess", "Feeder", "ImageDataset", "IndexedImageDataset"),
    *("MultiLoader", "ParserBeton", "ParserMapStyle", "ParserMixture", "ParserTfds", "ParserWebDataset"),
    *("ReadOptions", "RemoteOptions", "TrainPreprocess", "Transform", "Views", "Windows", "World"),
    *("create_loader", "export_dataset", "MaskedMean"),
}


@pytest.mark.parametrize(
    ("function", "keyword", "said"),
    [
        (ParserTfds, "input_key", "Its name here is 'image_key'."),
        (ParserTfds, "input_img_mode", "Its name here is 'image_mode'."),
        (ParserTfds, "num_samples", "epoch_size= of the parser makes epochs of another size; how many examples"),
        (ParserTfds, "batchsize", "Did you mean 'batch_size'?"),
        (ParserTfds, "is_train", "Did you mean 'is_training'?"),
        (ParserTfds, "num_workers", "num_workers= is an argument of create_loader."),
        (ParserTfds, "workers", "num_workers= is an argument of create_loader."),
        (ParserTfds, "input_size", "size= is an argument of the parser's preprocess: TrainPreprocess or EvalPrep"),
        (ParserTfds, "drop_last", "remainder='drop' of the parser leaves out the short last batch."),
        (ParserWebDataset, "shardshuffle", "shuffle= of the parser shuffles all samples, by their numbers."),
        (ParserWebDataset, "nodesplitter", "Ranks and workers are found by themselves;"),
        (ParserMixture, "image_key", "image_key= is an argument of the members' parsers."),
        (ImageDataset, "split", "split= is an argument of ParserTfds(root, name, ...)."),
        (
            ImageDataset,
            "is_training",
            "is_training= is an argument of the parser, such as ParserTfds(",
        ),
        (create_loader, "workers", "Its name here is 'num_workers'."),
        (create_loader, "prefetch_factor", "Its name here is 'prefetch_batches'."),
        (create_loader, "timeout", "Its name here is 'timeout_s'."),
        (create_loader, "pin_memory", "With create_loader(..., device='cuda') batches are copied ahead"),
        (create_loader, "re_prob", "ImageDataset(parser, transform=...) takes any transform of single images"),
        (create_loader, "input_size", keyword_hints.TIMM_LOADER),
        (MultiLoader, "timeout", "Its name here is 'timeout_s'."),
        (TrainPreprocess, "input_size", "Its name here is 'size'."),
        (TrainPreprocess, "mean", "mean= is an argument of create_loader."),
        (EvalPreprocess, "crop_pc", "Did you mean 'crop_pct'?"),
        (ReadOptions, "num_thread", "Did you mean 'num_threads'?"),
        (ReadOptions, "colour", ""),
    ],
)
def test_an_unknown_keyword_is_a_type_error_that_says_what_is_meant(function: Any, keyword: str, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        function(**{keyword: 1})
    start = f"{function.__name__}() got an unexpected keyword argument {keyword!r}."
    assert str(caught.value).startswith(f"{start} {said}" if said else start)
    assert bool(said) or str(caught.value) == start


def test_timms_call_of_create_loader_is_answered_by_ours() -> None:
    rows = [(np.zeros((8, 8, 3), np.uint8), 1)] * 8
    with pytest.raises(TypeError) as unknown:
        create_loader(rows, (3, 224, 224), 64, is_training=True)  # type: ignore[call-arg, arg-type]
    with pytest.raises(ConfigError) as positional:
        create_loader(rows, (3, 224, 224), 64)  # type: ignore[arg-type]
    for said in (str(unknown.value), str(positional.value)):
        assert said.endswith(keyword_hints.TIMM_LOADER)
        assert "ParserMapStyle" not in said
    with pytest.raises(ConfigError, match=r"'/data' is a path, and a parser is wanted, which opens it: ParserTfds\("):
        ImageDataset("/data")  # type: ignore[arg-type]


def test_several_are_named_each_with_its_hint() -> None:
    with pytest.raises(TypeError) as caught:
        create_loader([1], workers=1, timeout=3, colour=1)  # type: ignore[call-arg]
    assert str(caught.value) == (
        "create_loader() got unexpected keyword arguments 'workers', 'timeout', 'colour'. Its name here is "
        "'num_workers'. Its name here is 'timeout_s'."
    )


@pytest.mark.parametrize("name", sorted(OWN))
def test_signatures_stay_real_ones_and_every_public_name_that_takes_arguments_explains_them(name: str) -> None:
    target = getattr(tfds_torch, name)
    function = vars(target)["__init__"] if isinstance(target, type) else target
    assert inspect.signature(function) == inspect.signature(function.__wrapped__)
    assert inspect.Parameter.VAR_KEYWORD not in {one.kind for one in inspect.signature(target).parameters.values()}
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'colour'"):
        target(colour=1)


@dataclasses.dataclass(frozen=True)
class Own(EvalPreprocess):
    """A preprocess with a keyword of its own."""

    colour: str = "red"


class OwnParser(ParserMapStyle):
    def __init__(self, *, colour: str, **options: Any) -> None:
        super().__init__([1, 2, 3], **options)
        self.colour = colour


def test_subclasses_and_pickling_go_on() -> None:
    own = Own(size=8, colour="blue")
    assert pickle.loads(pickle.dumps(own)) == copy.deepcopy(own) == dataclasses.replace(own)
    assert pickle.loads(pickle.dumps(create_loader)) is create_loader
    parser = OwnParser(colour="blue", batch_size=2)
    assert pickle.loads(pickle.dumps(parser)).colour == "blue"
    with pytest.raises(TypeError, match="'batchsize'\\. Did you mean 'batch_size'\\?"):
        OwnParser(colour="blue", batchsize=2)


def test_warnings_still_point_at_the_callers_line() -> None:
    parser = ParserMapStyle({"index": [5, 6], "x": [1, 2]}, batch_size=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        create_loader([1, 2], device="cpu")
        ImageDataset(parser, fields=("index",), batched=True)
        IndexedImageDataset(parser, fields=("index",))
        MultiLoader(parser, 1, fields=("index",)).close()
    assert [warning.filename for warning in caught] == [__file__] * 4
