"""Recipes: what to read and how, as a TOML file like those in `configs/` says it; see `recipe_file`."""

import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.transforms import Transform
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.parsers.cache import DecodedCache
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.one_split import is_one_split, is_tars, open_one_split
from tfds_torch.parsers.options import DecodeOptions, EpochOptions
from tfds_torch.parsers.own import ParserMapStyle
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.plan.weights import SIZES
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.remote.options import RemoteOptions

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def import_function(argument: str, name: str) -> Callable[..., Any]:
    """Return the function that a text names.

    Args:
        argument: name of the argument whose value the text is, for messages.
        name: `module:function`.

    Raises:
        ConfigError: the text has another form, the module cannot be imported, or has no such function.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"{argument}={quoted(name)} must be 'module:function', such as 'my_data:make_dataset'.")
    module, _, function_name = name.partition(":")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # The code of the module may raise anything.
        raise ConfigError(
            f"{argument}={name!r}: the module {module!r} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    function = getattr(found, function_name, None)
    if not callable(function):
        raise ConfigError(f"{argument}={name!r}: the module {module!r} has no function {function_name!r}.")
    return function  # type: ignore[no-any-return]


def open_own_dataset(source: str, **arguments: Any) -> ParserMapStyle:
    """Return the parser of a dataset that a function returns.

    Args:
        source: `module:function`; the function is called without arguments, here and now.
        arguments: of ParserMapStyle.

    Raises:
        ConfigError: there is no such function, it raises, or its result is not a dataset with a length and items by
            number.
    """
    if isinstance(arguments["target_key"], tuple):
        raise ConfigError(
            f"target_key={arguments['target_key']}: the target of your own dataset is one field. Name one."
        )
    function = import_function("source", source)
    try:
        dataset = function()
    except Exception as error:  # The code of the function may raise anything.
        raise ConfigError(f"source={source!r} raised {type(error).__name__}: {error}.") from error
    try:
        return ParserMapStyle(dataset, **arguments)
    except ConfigError as error:
        raise ConfigError(f"source={source!r}: {error}") from None


_OF_EPOCHS = ("shuffle", "is_training", "batch_size", "repeats", "seed", "remainder", "epoch_size")
_OF_WINDOWS = ("windows", "fields", "cameras")

_Number = Annotated[int, Meta(ge=1, le=2**62)]


class TransformConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A function over whole examples, `module:function`, which is imported; the other keys are those of Transform."""

    function: str
    reads: tuple[str, ...] | None = None
    gives: tuple[str, ...] | None = None
    threads: bool = False
    version: str | None = None

    def make(self) -> Transform:
        """Return the transform; raise ConfigError where its function cannot be imported."""
        function = import_function("transform: function", self.function)
        return Transform(function, self.reads, self.gives, self.threads, self.version)


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A later part of a mixture: from which example on it has other weights (`sizes`, or those of members by name)."""

    start: _Number
    weights: str | dict[str, float]


class Dataset(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dataset is read.

    Attributes:
        name: `name`, `name/config`, `name:version` or `name/config:version`; or the path of a `.beton` file or of tars.
        split: a TFDS split expression; None: `train`.
        image_key: feature that holds the image; None, in the file false: there is none.
        target_key: feature that holds the target; several are a list of strings in the file; None is false in the file.
        class_map: new labels for the target: in the file a table of labels by class name, or the path of a `.txt` or
            `.pkl` file, seen from the folder of the recipe and without `..`.
        source: the user's own dataset in the place of a name, `module:function`: the function is imported, called
            without arguments, and returns a dataset for ParserMapStyle.
        fields: of windows: the user's own names -> the features that they stand for, as in ParserTfds.
        transform: functions over whole examples, in turn, a table `[[transform]]` for each.
        missing: of tars: how to treat samples that lack a member, as in ParserWebDataset; None: `error`.
    """

    name: str = ""
    split: str | None = None
    image_key: str | None = "image"
    target_key: str | tuple[str, ...] | None = "label"
    class_map: str | dict[str, Any] | None = None
    source: str | None = None
    fields: dict[str, str] | None = None
    transform: tuple[TransformConfig, ...] | None = None
    missing: str | None = None


class MemberKeys(Dataset, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The other keys of a dataset of a mixture that are plain values; see `MemberConfig`."""

    member: str | None = None
    weight: float | None = None
    root: str | tuple[str, ...] | None = None


class MemberConfig(MemberKeys, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dataset of a mixture, an entry [[mixture]] of the file.

    Attributes:
        member: its name in the mixture; None: that of the dataset or file, without config, version, numbers.
        weight: its weight, >= 0, which multiplies its number of examples where the recipe's weights are `sizes`; None:
            no member has one.
        root: TFDS data directory, or a list of several that hold one dataset; None: that of the other members.
        read: how its examples are read.
        windows: as in Config; None, also of `transform`: those of the whole recipe.
    """

    read: ReadOptions = ReadOptions()
    windows: Windows | None = None

    @property
    def member_name(self) -> str:
        """Its name in the mixture."""
        if self.member is not None:
            return self.member
        if not is_one_split(self.name):
            return self.name.partition(":")[0].partition("/")[0]
        first = self.name.partition(".tar::")[0]
        file = first.rpartition("/")[2]  # Of several tars the part before their numbers.
        return file.partition("{")[0].partition(".")[0].rstrip("-_") or file


class RecipeKeys(Dataset, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The other keys at the top of a file that are plain values; see `Config`."""

    is_training: bool = False
    batch_size: Annotated[int, Meta(ge=1, le=2**16)] | None = None
    shuffle: bool | None = None
    repeats: Annotated[int, Meta(ge=0, le=10_000)] = 0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 42
    remainder: str | None = None
    image_mode: str | None = "RGB"
    epoch_size: _Number | None = None
    decode: dict[str, bool] | None = None
    weights: str | None = None
    schedule: tuple[Part, ...] = ()
    temperature: float | None = None
    stop: str | None = None


class Config(RecipeKeys, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recipe: which dataset is read (see `Dataset`), and how.

    In the file, `num_workers` stands in the table `[loader]`, and a mixture has a table `[[mixture]]` for each dataset;
    a key that is left out has the default of ParserTfds.

    Attributes:
        is_training, batch_size, shuffle, repeats, seed, remainder, image_mode, epoch_size, decode: as in ParserTfds; of
            a mixture, those of all members.
        read: how examples are read: a table `[read]` with the fields of ReadOptions.
        preprocess: how images are cut and resized while they are decoded: a table `[preprocess]` with `kind = "train"`
            or `"eval"` and the fields of TrainPreprocess or EvalPreprocess; None: they come as they are stored.
        num_workers: loader processes of a rank.
        windows: the windows of episodes that are the examples, a table `[windows]`; None: examples are whole records.
        cameras: of windows: field -> its preprocess, a table like `[preprocess.image_primary]` for each.
        remote: of URLs: how objects are fetched, and where they are cached: a table `[remote]` with the fields of
            RemoteOptions, without secrets; None: RemoteOptions().
        mixture: the datasets that are mixed; None: one dataset is read. Windows and transforms are those of all members
            that have none themselves.
        weights: of a mixture: `sizes`, multiplied by the members' weights where they have some; None: the members'
            weights, or none.
        schedule: its later parts, a table `[[schedule]]` for each; one by `sizes` has the sizes alone.
        temperature, stop: as in ParserMixture; None: its defaults.
    """

    read: ReadOptions = ReadOptions()
    preprocess: Preprocess | None = None
    num_workers: int = 2
    windows: Windows | None = None
    cameras: Mapping[str, Preprocess] | None = None
    remote: RemoteOptions | None = None
    mixture: tuple[MemberConfig, ...] | None = None

    def make_parser(
        self,
        root: str | os.PathLike[str] | Sequence[str] | None = None,
        *,
        download: bool = False,
        cache: DecodedCache | None = None,
        remote: RemoteOptions | None = None,
    ) -> ParserTfds | ParserBeton | ParserWebDataset | ParserMapStyle | ParserMixture:
        """Return the parser of this recipe.

        Args:
            root: TFDS data directory, a path or a URL, or several that hold one dataset; None: TFDS's default. A path
                of a `.beton` file or of tars does not need one.
            download: whether to prepare a dataset of TFDS that is not there.
            cache: where decoded images of a dataset of TFDS are kept; None: nowhere.
            remote: of URLs: how objects are fetched, and where they are cached; None: as the recipe says.

        Raises:
            ConfigError: values that cannot work together, or not with this dataset.
            DatasetNotFoundError: the dataset is not prepared under `root`.
        """
        remote = remote or self.remote
        if self.mixture is not None:
            here: dict[str, Any] = {"download": download, "cache": cache, "remote": remote}
            return self.mix(lambda one, recipe: recipe.make_parser(one.root or root, **here))
        options = (*fields(EpochOptions), *fields(DecodeOptions))
        given = {name: getattr(self, name) for name in ("image_key", "target_key", *(one.name for one in options))}
        given["transform"] = None if self.transform is None else [one.make() for one in self.transform]
        if self.missing is not None and (self.source is not None or not is_tars(self.name)):
            raise ConfigError(
                f"missing={quoted(self.missing)} is of samples in tars that lack a member, and "
                f"{quoted(self.source or self.name)} does not name tars. Leave it out."
            )
        if self.source is not None or is_one_split(self.name):
            if found := [name for name in _OF_WINDOWS if getattr(self, name) is not None]:
                raise ConfigError(
                    f"{quoted(self.name)} has no windows: they are of datasets of TFDS whose records are episodes. "
                    f"Leave out {', '.join(found)}."
                )
            if self.source is not None:
                return open_own_dataset(self.source, **given)
            of_tars = {} if self.missing is None else {"missing": self.missing}
            return open_one_split(self.name, **given, remote=remote, **of_tars)
        if self.cameras is not None:
            of_image = {} if self.preprocess is None else {"image": self.preprocess}
            given["preprocess"] = {**self.cameras, **of_image}
        given |= {"windows": self.windows, "fields": self.fields, "remote": remote}
        split = "train" if self.split is None else self.split
        return ParserTfds(root, self.name, split, download=download, cache=cache, **given)

    def for_evaluation(self) -> "Config":
        """Return this recipe without the options that are for training only: every example once, in order."""
        return msgspec.structs.replace(
            self, is_training=False, shuffle=None, repeats=0, remainder=None, epoch_size=None
        )

    def mix(self, open_member: "Callable[[MemberConfig, Config], DatasetParser]") -> ParserMixture:
        """Return the mixture, as this recipe mixes its members; in evaluation without their weights.

        Args:
            open_member: returns the parser of a member; it gets the member and the recipe of its dataset. The options
                of an epoch are the mixture's.

        Raises:
            ConfigError, DatasetNotFoundError: as `open_member`, with the member's name; and as ParserMixture.
        """
        members: dict[str, DatasetParser] = {}
        for one in self.mixture or ():
            own = {name: getattr(one, name) for name in (*Dataset.__struct_fields__, "read")}
            own["windows"] = one.windows or self.windows
            own["transform"] = self.transform if one.transform is None else one.transform
            recipe = msgspec.structs.replace(self, mixture=None, preprocess=None, epoch_size=None, **own)
            try:
                members[one.member_name] = open_member(one, recipe)
            except (ConfigError, DatasetNotFoundError) as error:
                raise type(error)(f"Member {quoted(one.member_name)} of the mixture: {error}") from None
        given = {name: getattr(self, name) for name in ("preprocess", "read", *_OF_EPOCHS)}
        sizes = {name: parser.num_examples for name, parser in members.items()}
        return ParserMixture(members, **given, **(self.mixing(sizes) if self.is_training else {}))

    @property
    def has_weights(self) -> bool:
        """Whether its members are mixed by weights; else they are read as one dataset."""
        return self.weights is not None or any(one.weight is not None for one in self.mixture or ())

    def mixing(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Return the arguments of ParserMixture that say how its members are mixed; empty without weights.

        Args:
            sizes: member -> its number of examples.
        """
        if not self.has_weights:
            return {}
        own = {one.member_name: one.weight for one in self.mixture or () if one.weight is not None}
        first: str | dict[str, float] = self.weights or own
        if own and self.weights == SIZES:
            first = {name: weight * sizes[name] for name, weight in own.items()}
        parts = [(0, first), *((one.start, one.weights) for one in self.schedule)]
        others = {name: value for name in ("temperature", "stop") if (value := getattr(self, name)) is not None}
        return {"weights": parts if self.schedule else first, **others}
