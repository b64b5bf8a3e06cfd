"""Which features of a TFDS dataset are boxes, and which have a row for each of them: those of the same sequence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfds_torch.errors import ConfigError
from tfds_torch.images.boxes import BoxRows, FieldPart
from tfds_torch.parsers.box_rows import in_order
from tfds_torch.parsers.tfds.feature_tree import Dictionary, Feature, Leaf, Repeated, features_by_key
from tfds_torch.runtime.printable import quoted


@dataclass(frozen=True)
class _Place:
    """A feature without others in it, and its place in a field that is asked for.

    Attributes:
        part: the field, or the part of its values.
        path: its keys from the top level down, joined by "/".
        leaf: the feature.
        sequence: the path of the outermost sequence around it; None: an example has one value.
        depth: how many sequences are around it.
    """

    part: FieldPart
    path: str
    leaf: Leaf
    sequence: str | None
    depth: int

    def has_name(self, name: str) -> bool:
        """Return whether a name means this feature, one that holds it, or the field: `label` is another's name."""
        return name == self.part.field or f"{self.path}/".startswith(f"{name}/")

    @property
    def can_move(self) -> bool:
        """Whether boxes there are those of an example, [number of boxes, 4] or [4]."""
        return self.depth <= 1


def find_boxes(
    features: Feature, paths: Mapping[str, Sequence[str]], named: Mapping[str, tuple[str, ...] | None] | None
) -> tuple[tuple[BoxRows, ...], list[str]]:
    """Return the boxes that move with the image, and the fields with boxes that do not.

    Args:
        features: those of the dataset.
        paths: field -> keys of its feature from the top level down.
        named: paths of boxes -> paths of other features that have a row for each box, None for those of its sequence;
            None: the declared boxes.

    Raises:
        ConfigError: named boxes lie in a sequence of sequences.
    """
    places = [place for field, path in paths.items() for place in _places(features, field, path)]
    groups: dict[str, tuple[list[FieldPart], list[FieldPart]]] = {}  # By sequence, or by the path of a single box.
    for place in places:
        is_box = place.leaf.kind == "box" if named is None else place.path in named
        if is_box and not place.can_move and named is not None:
            raise ConfigError(
                f"boxes={tuple(named)} names {quoted(place.path)}, which lies in a sequence of sequences: the boxes of "
                f"an example are numbers [number of boxes, 4]."
            )
        if is_box and place.can_move:
            boxes, rows = groups.setdefault(place.sequence or place.path, ([], []))
            boxes.append(place.part)
            others = () if named is None else named[place.path] or ()
            rows += [one.part for one in places if any(one.has_name(name) for name in others)]
    for place in places:
        if place.sequence in groups:
            groups[place.sequence][1].append(place.part)
    moved = {part for boxes, _ in groups.values() for part in boxes}
    declared = [place for place in places if place.leaf.kind in ("box", "other box")]
    unmoved = dict.fromkeys(place.part.field for place in declared if named is None and place.part not in moved)
    # Boxes in a sequence of nothing else: what lies beside it may have a row for each of them.
    bare = {place.path for place in places if place.path == place.sequence and (named or {}).get(place.path) is None}
    beside = [place.part.field for place in places if place.sequence is not None and place.sequence not in groups]
    moving = [
        in_order(boxes, rows, unsaid=list(dict.fromkeys(beside)) if sequence in bare else ())
        for sequence, (boxes, rows) in sorted(groups.items())
    ]
    return tuple(moving), list(unmoved)


def _places(features: Feature, field: str, path: Sequence[str]) -> Iterator[_Place]:
    """Yield the places within a field, or the field itself."""
    feature, sequence, depth = features, None, 0
    for number, key in enumerate(path):
        while isinstance(feature, Repeated):
            sequence = "/".join(path[:number]) if sequence is None else sequence
            feature, depth = feature.feature, depth + 1
        feature = features_by_key(feature)[key]
    yield from _within(feature, field, tuple(path), (), sequence, depth)


def _within(
    feature: Feature, field: str, path: tuple[str, ...], keys: tuple[str, ...], sequence: str | None, depth: int
) -> Iterator[_Place]:
    while isinstance(feature, Repeated):
        if feature.is_dataset and not depth:
            return  # A list of steps.
        sequence = "/".join(path) if sequence is None else sequence
        feature, depth = feature.feature, depth + 1
    if isinstance(feature, Dictionary):
        for key, inner in feature.features.items():
            yield from _within(inner, field, (*path, key), (*keys, key), sequence, depth)
    elif isinstance(feature, Leaf):
        yield _Place(FieldPart(field, keys), "/".join(path), feature, sequence, depth)
