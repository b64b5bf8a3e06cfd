"""Hints for keywords that a function lacks, and that timm, torch, WebDataset or a neighbour here has."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Callable[..., Any])

_LIKENESS = 0.8  # Of a misspelt name: "batchsize", "is_train". Names that are less alike mean something else.

TIMM_LOADER = (
    "timm's create_loader(dataset, input_size, batch_size, is_training) makes the pixels, too: here size, batch size "
    "and training belong to the parser: create_loader(ImageDataset(ParserTfds(root, name, is_training=True, "
    "batch_size=64, preprocess=TrainPreprocess(size=224))), num_workers)."
)

_RENAMED = {
    "input_key": "image_key",
    "input_img_mode": "image_mode",
    "img_mode": "image_mode",
    "img_size": "size",
    "input_size": "size",
    "crop_size": "size",
    "batch": "batch_size",
    **dict.fromkeys(("flip", "flip_prob", "horizontal_flip"), "hflip"),
    "vertical_flip": "vflip",
    "img_dtype": "dtype",
    "workers": "num_workers",
    "prefetch_factor": "prefetch_batches",
    "timeout": "timeout_s",
    "mp_context": "multiprocessing_context",
    "data_dir": "root",
}
"""Another library's name -> ours, where the function has that."""

_RANKS = "Ranks and workers are found by themselves; world=World(rank, num_replicas) of ImageDataset sets the rank."
_TRANSFORM = "ImageDataset(parser, transform=...) takes any transform of single images, such as timm's."
_ON_DEVICE = "With create_loader(..., device='cuda') batches are copied ahead from pinned memory."
_ORDER = "An order of your own needs create_loader(IndexedImageDataset(parser), sampler=..., batch_size=...)."
_NO_SEED = "seed= of create_loader and of the parser is where random numbers come from."

_ANSWERS = {
    "pin_memory": _ON_DEVICE,
    "pin_memory_device": _ON_DEVICE,
    "use_prefetcher": _ON_DEVICE,
    "fp16": "dtype=torch.float16 of create_loader is the type of normalised images.",
    "generator": _NO_SEED,
    "worker_seeding": _NO_SEED,
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "drop_last": "remainder='drop' of the parser leaves out the short last batch.",
    "distributed": _RANKS,
    "nodesplitter": _RANKS,
    "workersplitter": _RANKS,
    "use_multi_epochs_loader": "Workers live from epoch to epoch by themselves (persistent_workers=True).",
    "search_split": "split= of ParserTfds is a split expression, such as 'train[:10%]'.",
    "reader": "What reads is a parser: ImageDataset(ParserTfds(root, name, split)).",
    "load_bytes": "decode={'image': False} of the parser leaves images the bytes of their files.",
    "additional_features": "ImageDataset(parser, fields=('image', 'label', ...)) names the features of an example.",
    "shuffle_size": "read=ReadOptions(shuffle_buffer=...) of the parser; by number, all examples are shuffled.",
    "prefetch_size": "read=ReadOptions(prefetch_batches=...) of the parser.",
    "max_threadpool_size": "read=ReadOptions(num_threads=...) of the parser.",
    "shardshuffle": "shuffle= of the parser shuffles all samples, by their numbers.",
    "detshuffle": "The order is that of seed= of the parser, always.",
    "resampled": "An epoch has each sample once; repeats= of the parser makes it several passes.",
    "repeat": "repeats= of the parser is the number of passes of an epoch.",
    "handler": "read=ReadOptions(on_error=...) of the parser says what becomes of damaged samples.",
    "cache_dir": "remote=RemoteOptions(cache_dir=..., max_bytes=...) of the parser is the cache of files far away.",
    "cache_size": "remote=RemoteOptions(cache_dir=..., max_bytes=...) of the parser is the cache of files far away.",
    "num_samples": "epoch_size= of the parser makes epochs of another size; how many examples there are is counted.",
    "input_key": "image_key= of the parser is the feature that holds the image.",
    "input_img_mode": "image_mode= of the parser says how images come.",
    **dict.fromkeys(
        (
            "no_aug",
            "color_jitter",
            "color_jitter_prob",
            "grayscale_prob",
            "gaussian_blur_prob",
            "auto_augment",
            "re_prob",
            "re_mode",
            "re_count",
            "re_split",
            "num_aug_splits",
            "tf_preprocessing",
        ),
        _TRANSFORM,
    ),
}
"""Name of another library -> the replacement here."""

_OF_TFDS = ("root", "name", "split", "download", "windows")
_OF_PARSERS = (
    *("is_training", "batch_size", "shuffle", "repeats", "remainder", "class_map", "image_key", "target_key"),
    *("image_mode", "epoch_size", "read", "preprocess", "decode", "decoders", "remote", "cache", "seed"),
)
_OF_PREPROCESS = (
    *("size", "scale", "ratio", "hflip", "vflip", "interpolation", "crop_pct", "crop_mode", "crop_padding"),
    *("resize", "place"),
)
_OF_LOADERS = (
    *("num_workers", "mean", "std", "dtype", "device", "prefetch_batches", "timeout_s", "collate_fn"),
    *("persistent_workers", "worker_init_fn", "multiprocessing_context", "log_every", "check_ranks", "channels_last"),
)
_OF_DATASETS = ("fields", "transform", "target_transform", "pad", "batched", "world")


def explain_keywords(target: _T) -> _T:
    """Decorate a function, or a class for its `__init__`: a keyword that it lacks is a TypeError with a hint.

    Signature, name, type and pickling stay; a subclass with its own keywords is checked by its own.
    """
    function: Any = vars(target)["__init__"] if isinstance(target, type) else target
    known = frozenset(inspect.signature(function).parameters)
    name = target.__name__

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= known:
            raise TypeError(describe_unknown(name, known, [key for key in kwargs if key not in known]))
        return function(*args, **kwargs)

    if not isinstance(target, type):
        return call  # type: ignore[return-value] # It is called in the same way.
    target.__init__ = call  # type: ignore[misc]
    return target


def describe_unknown(name: str, known: frozenset[str], unknown: list[str]) -> str:
    """Return the message for keywords that a function, which has others, lacks."""
    words = ", ".join(map(repr, unknown))
    said = f"{name}() got {'an ' * (len(unknown) == 1)}unexpected keyword argument{'s' * (len(unknown) > 1)} {words}."
    return " ".join([said, *dict.fromkeys(filter(None, (_hint(name, known, word) for word in unknown)))])


def _hint(name: str, known: frozenset[str], word: str) -> str | None:
    """Return the meaning of a keyword, as a sentence; None: it is not clear."""
    renamed = _RENAMED.get(word, word)
    if renamed in known:
        return f"Its name here is {renamed!r}."
    if name == "create_loader" and word in ("input_size", "is_training"):
        return TIMM_LOADER
    if word in _ANSWERS:
        return _ANSWERS[word]
    near = get_close_matches(word, sorted(known), 1, _LIKENESS)
    if near:
        return f"Did you mean {near[0]!r}?"
    is_parser = name.startswith("Parser")
    if renamed in _OF_TFDS:
        return None if is_parser else f"{renamed}= is an argument of ParserTfds(root, name, ...)."
    if renamed in _OF_PARSERS:
        if name == "ParserMixture":
            return f"{renamed}= is an argument of the members' parsers."
        return None if is_parser else f"{renamed}= is an argument of the parser, such as ParserTfds(root, name, ...)."
    if renamed in _OF_PREPROCESS:
        return f"{renamed}= is an argument of the parser's preprocess: TrainPreprocess or EvalPreprocess."
    if renamed in _OF_LOADERS:
        return f"{renamed}= is an argument of create_loader."
    if renamed in _OF_DATASETS:
        return f"{renamed}= is an argument of ImageDataset(parser, ...)."
    return None
