"""The members of a mixture: their names, and the options that they must leave to the mixture."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.mixture_source import MEMBER
from tfds_torch.parsers.options import DecodeOptions, EpochOptions
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted

Members = Mapping[str, Dataset]

_OF_EPOCHS = {
    "batch_size": None,
    "is_training": False,
    "preprocess": None,
    "remainder": None,
    "repeats": 0,
    "seed": 42,
    "shuffle": False,
}
"""Option of an epoch -> the value with which a member leaves it to the mixture."""

_OF_MIXTURE = ("mode", "num_threads", "prefetch_batches", "jpeg_decoder")
"""The read options of a mixture; all others are those of each member."""

OF_BLOCKS = ("block_records", "shuffle_buffer", "block_groups")
"""The members' read options that a mixture takes over where its examples are shuffled as one dataset."""

_MOST_NAMED = 5


def check_members(members: object) -> dict[str, DatasetParser]:
    """Return name -> parser of the members of a mixture, checked one by one.

    Raises:
        ConfigError: there is no member; a name is not a text, is empty, has a "/", or comes twice; a member is not a
            parser that reads by index, or is empty.
    """
    pairs = list(members.items()) if isinstance(members, Mapping) else members
    if isinstance(pairs, str) or not isinstance(pairs, Sequence) or not pairs:
        raise ConfigError(
            f"ParserMixture: members={quoted(members)} must be a mapping from name to parser, for example "
            f"{{'bridge': parser_a, 'droid': parser_b}}, with at least one."
        )
    found: dict[str, DatasetParser] = {}
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ConfigError(
                f"ParserMixture: {quoted(pair)} must be a pair (name, parser): give members their names, such as "
                f"{{'a': parser_a, 'b': parser_b}}."
            )
        name, parser = pair
        if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
            raise ConfigError(
                f"ParserMixture: the name {quoted(name)} of a member must be a text of printable characters without "
                f"'/', and not empty: ids are <member>/<id>."
            )
        if name in found:
            raise ConfigError(f"ParserMixture: two members are called {quoted(name)}: give each a name of its own.")
        found[name] = _check_parser(name, parser)
    return found


def _check_parser(name: str, parser: object) -> DatasetParser:
    if not isinstance(parser, DatasetParser):
        raise ConfigError(
            f"ParserMixture: the member {quoted(name)} is {quoted(parser)}, and must be a ParserTfds, a ParserBeton, a "
            f"ParserWebDataset or a ParserMapStyle."
        )
    if hasattr(parser, "member_names"):
        raise ConfigError(
            f"ParserMixture: the member {quoted(name)} is a mixture itself: give its members to this one, with weights "
            f"of their own."
        )
    if parser.has_weights:
        raise ConfigError(
            f"ParserMixture: the member {quoted(name)} has weights of its own, of classes or examples: leave them out, "
            f"or give the mixture subsets of it."
        )
    if parser.read.mode not in ("auto", "index") or parser.source.obstacle is not None:
        why = parser.source.obstacle or f"it has ReadOptions(mode={parser.read.mode!r})"
        remedy = "Copy it to this machine" if parser.source.obstacle else "Use mode 'index' or 'auto'"
        raise ConfigError(
            f"ParserMixture: the member {quoted(name)} ({parser.dataset_name}) is read as a stream: {why}. A mixture "
            f"needs every example by its number, for exact proportions and exact resume. {remedy}."
        )
    if not parser.num_examples:
        raise ConfigError(
            f"ParserMixture: the member {quoted(name)} ({parser.dataset_name}, split {quoted(parser.split)}) holds no "
            f"examples: leave it out."
        )
    return parser


def check_agreement(members: Mapping[str, DatasetParser], epoch: EpochOptions, decoding: DecodeOptions) -> None:
    """Raise ConfigError where a member's options of an epoch differ from the mixture's, which alone count."""
    of_mixture: dict[str, Any] = {name: getattr(epoch, name) for name in _OF_EPOCHS if name != "preprocess"}
    of_mixture |= {"shuffle": epoch.is_shuffled, "preprocess": decoding.preprocess}
    for member, parser in members.items():
        if parser.epoch_size != parser.num_examples:
            _refuse(member, f"epoch_size={parser.epoch_size}", "ends its epochs itself")
        for name, default in _OF_EPOCHS.items():
            value = getattr(parser, name)
            if name == "repeats" and value <= 1:
                value = default
            if value not in (default, of_mixture[name]):
                _refuse(member, f"{name}={quoted(value)}", f"{name}={quoted(of_mixture[name])}")
        for name in _OF_MIXTURE[1:]:
            value, default = getattr(parser.read, name), getattr(ReadOptions(), name)
            ours = getattr(decoding.read, name)
            if value not in (default, ours):
                _refuse(member, f"ReadOptions({name}={value})", f"ReadOptions({name}={ours})")


def _refuse(member: str, theirs: str, ours: str) -> None:
    raise ConfigError(
        f"ParserMixture: the member {quoted(member)} has {theirs}, and the mixture {ours}: what belongs to an epoch, "
        f"and the threads, are the mixture's own. Leave it out of the member, or give both the same."
    )


def check_read_options(read: ReadOptions) -> None:
    """Raise ConfigError where a mixture has read options that belong to its members, or a stream mode."""
    if read.mode not in ("auto", "index"):
        raise ConfigError(
            f"ParserMixture: ReadOptions(mode={read.mode!r}) streams whole shards, and a mixture needs every example "
            f"by its number. Use mode 'index' or 'auto'."
        )
    for field in fields(ReadOptions):
        value = getattr(read, field.name)
        if field.name not in _OF_MIXTURE and value != field.default:
            raise ConfigError(
                f"ParserMixture: ReadOptions({field.name}={value!r}) belongs to a member: give it to the parsers of "
                f"the members. Those of a mixture are {', '.join(_OF_MIXTURE)}."
            )


def with_common_blocks(read: ReadOptions, members: Members) -> ReadOptions:
    """Return the read options of a shuffled concatenation, in blocks where its members have them.

    Raises:
        ConfigError: the members' blocks differ.
    """
    blocks_of = {name: parser.read.blocks for name, parser in members.items()}
    asked = {name: (None if one is None else one.block_records, one) for name, one in blocks_of.items()}
    (first, (block_records, blocks)), *others = asked.items()
    for name, one in others:
        if one != (block_records, blocks):
            raise ConfigError(
                f"ParserMixture: without weights, members are shuffled as one dataset: {quoted(first)} has "
                f"block_records={block_records}, and {quoted(name)} {one[0]}, or another shuffle_buffer or "
                f"block_groups. Give all the same, or weights."
            )
    if block_records is None:
        return read
    own = next(iter(members.values())).read
    return replace(read, **{name: getattr(own, name) for name in OF_BLOCKS})


def read_member_columns(members: Members, names: Sequence[str], index: Int64Array) -> dict[str, NDArray[Any]]:
    """Return fields of windows by their numbers in a mixture, int64 [n], in the order asked.

    Args:
        members: name -> parser.
        names: fields that all members have; `member` is the number of each window's member.
        index: int64 [n], numbers of windows, counted over the members, one behind the other.

    Raises:
        ConfigError: as a member raises it; or a field has another shape or dtype in another member.
        ShardError, CorruptRecordError: as reading raises them.
    """
    sizes = np.array([len(parser.source) for parser in members.values()], np.int64)
    stops = np.cumsum(sizes)
    member: Int64Array = np.searchsorted(stops, index, side="right").astype(np.int64)
    own = [name for name in names if name != MEMBER]
    parts = [
        parser.columns_at(own, index[member == number] - (stops[number] - sizes[number]))
        for number, parser in enumerate(members.values())
    ]
    columns: dict[str, NDArray[Any]] = {MEMBER: member}
    for name in own:
        found = [part[name] for part in parts]
        _check_agree(members, name, found)
        columns[name] = np.empty((len(index), *found[0].shape[1:]), found[0].dtype)
        for number, values in enumerate(found):
            columns[name][member == number] = values
    return {name: columns[name] for name in names}


def _check_agree(members: Members, name: str, found: Sequence[NDArray[Any]]) -> None:
    forms = [f"{values.dtype} {list(values.shape[1:])}" for values in found]
    for member, form in zip(members, forms, strict=True):
        if form != forms[0]:
            raise ConfigError(
                f"columns: the field {quoted(name)} is {forms[0]} in the member {quoted(next(iter(members)))}, and "
                f"{form} in {quoted(member)}: they cannot be one array. Ask each member, as in "
                f"mixture.members[{quoted(member)}].columns([{quoted(name)}])."
            )
