"""MixtureConfig: the members of a mixture and their weights, from a recipe's tables [[mixture]] and [[schedule]]."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.config_values import check_keys, checked, shown, take_tables
from tfds_torch.parsers.one_split import is_one_split
from tfds_torch.parsers.own_dataset import name_by_source
from tfds_torch.parsers.windows_config import (
    TRANSFORM_OF_MEMBER,
    WINDOWS_OF_MEMBER,
    TransformConfig,
    make_transforms,
    make_windows,
)
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.printable import quoted

MIXTURE, SCHEDULE = "[[mixture]]", "[[schedule]]"

_READ = "[mixture.read]"


@dataclass(frozen=True)
class MemberConfig:
    """One dataset of a mixture, an entry [[mixture]] of the file.

    Attributes:
        name: the dataset, as in Config; or the path of a `.beton` file or of tars.
        member: its name in the mixture; None: that of the dataset or file, without config, version, numbers.
        weight: its weight, >= 0; None: no member has one.
        root: TFDS data directory; None: that of the other members.
        split, image_key, target_key, class_map, read, source, fields: as in Config.
        windows, transform: as in Config; None: those of the whole recipe.
    """

    name: str
    member: str | None = None
    weight: float | None = None
    root: str | None = None
    split: str | None = None
    image_key: str | None = "image"
    target_key: str | tuple[str, ...] | None = "label"
    class_map: str | dict[str, int] | None = None
    read: ReadOptions = ReadOptions()
    source: str | None = None
    windows: Windows | None = None
    fields: Mapping[str, str] | None = None
    transform: tuple[TransformConfig, ...] | None = None

    @property
    def member_name(self) -> str:
        """Its name in the mixture."""
        if self.member is not None:
            return self.member
        if not is_one_split(self.name):
            return self.name.partition(":")[0].partition("/")[0]
        file = self.name.rpartition("/")[2]  # Of several tars the part before their numbers.
        return file.partition("{")[0].partition(".")[0].rstrip("-_") or file


@dataclass(frozen=True)
class MixtureConfig:
    """The members of a mixture, and how they are mixed.

    Attributes:
        members: the datasets.
        weights: `sizes`; None: those of the members, or no weights.
        schedule: (first example, member -> weight, or `sizes`) of the later parts, from the entries [[schedule]].
        temperature, stop: as in ParserMixture.
    """

    members: tuple[MemberConfig, ...]
    weights: str | None = None
    schedule: tuple[tuple[int, Mapping[str, float] | str], ...] = ()
    temperature: float = 1.0
    stop: str = "first_exhausted"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ParserMixture that say how its members are mixed; none without weights."""
        first: str | dict[str, float] | None = self.weights
        if first is None and self.members[0].weight is not None:
            first = {one.member_name: one.weight for one in self.members if one.weight is not None}
        if first is None:
            return {}
        weights = [(0, first), *self.schedule] if self.schedule else first
        return {"weights": weights, "temperature": self.temperature, "stop": self.stop}


@dataclass(frozen=True)
class _Part:
    """An entry [[schedule]]."""

    start: int
    weights: dict[str, float] | str


TOP_KEYS = frozenset(get_type_hints(MixtureConfig)) - {"members", "schedule"}
"""The keys of a mixture that stand at the top of the file."""

_TABLES_OF_MEMBERS = {"read", "windows", "transform"}
MEMBER_KEYS = frozenset(get_type_hints(MemberConfig)) - _TABLES_OF_MEMBERS


def make_mixture(
    source: str,
    top: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    schedule: Sequence[Mapping[str, Any]],
    find_class_map: Callable[[object, str], Any],
) -> MixtureConfig:
    """Returns the mixture that a file describes.

    Args:
        source: the file, for messages.
        top: those of TOP_KEYS that the file has.
        entries: its tables [[mixture]], at least one, whose keys are known.
        schedule: its tables [[schedule]].
        find_class_map: makes a class map of its value in the file.

    Raises:
        ConfigError: a value of the wrong type or out of bounds; two members with one name; weights that not all members
            have, or that two places give; a schedule without weights.
    """
    members = tuple(_make_member(source, entry, find_class_map) for entry in entries)
    found = MixtureConfig(
        members,
        **checked(source, "", top, MixtureConfig),
        schedule=tuple(_make_part(source, one) for one in schedule),
    )
    (most_common, number), *_ = Counter(one.member_name for one in members).most_common()
    if number > 1:
        raise ConfigError(
            f"{source}: {number} entries {MIXTURE} are called {quoted(most_common)}: give each a name of its own, by a "
            f"line such as member = 'other'."
        )
    weighted = [one for one in members if one.weight is not None]
    if found.weights is not None and weighted:
        raise ConfigError(
            f"{source}: weights = {shown(found.weights)} and weight = {weighted[0].weight} of "
            f"{quoted(weighted[0].member_name)} both give weights: leave one out."
        )
    if weighted and len(weighted) < len(members):
        lacking = next(one for one in members if one.weight is None)
        raise ConfigError(
            f"{source}: {MIXTURE} {quoted(lacking.member_name)} has no weight, and others have one: give each a weight "
            f"(0 leaves it out), or none."
        )
    if not found.arguments:
        given = [name for name in ("temperature", "stop") if name in top] + [SCHEDULE] * bool(schedule)
        if given:
            raise ConfigError(
                f"{source}: {given[0]} has no effect without weights: give each {MIXTURE} a weight, or weights = "
                f"'sizes', or leave it out."
            )
    return found


def _make_member(source: str, entry: Mapping[str, Any], find_class_map: Callable[[object, str], Any]) -> MemberConfig:
    given = {key: value for key, value in entry.items() if key not in _TABLES_OF_MEMBERS}
    values = checked(source, MIXTURE, given, MemberConfig)
    if not name_by_source(f"{source}: {MIXTURE}", values) and "name" not in values:
        raise ConfigError(
            f"{source}: {MIXTURE} does not say which dataset it is: it needs a line name = 'cifar10', or source = "
            f"'module:function'."
        )
    if "class_map" in values:
        values["class_map"] = find_class_map(values["class_map"], f"{source}: {MIXTURE} class_map")
    options = checked(source, _READ, entry.get("read", {}), ReadOptions)
    try:
        read = ReadOptions(**options)
    except ConfigError as error:
        raise ConfigError(f"{source}: {_READ} {error}") from None
    if "windows" in entry:
        values["windows"] = make_windows(source, WINDOWS_OF_MEMBER, entry["windows"])
    if transforms := take_tables(source, dict(entry), "transform", "mixture.transform"):
        values["transform"] = make_transforms(source, TRANSFORM_OF_MEMBER, transforms)
    return MemberConfig(**values, read=read)


def _make_part(source: str, entry: Mapping[str, Any]) -> tuple[int, Mapping[str, float] | str]:
    check_keys(source, SCHEDULE, entry, {SCHEDULE: {"start", "weights"}})
    for name in ("start", "weights"):
        if name not in entry:
            raise ConfigError(
                f"{source}: {SCHEDULE} needs {name}: for example start = 2_000_000 and weights = {{a = 0.5, b = 0.5}}."
            )
    part = _Part(**checked(source, SCHEDULE, entry, _Part))
    return part.start, part.weights
