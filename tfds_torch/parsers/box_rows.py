"""Find the fields that move with the images: boxes, and fields that have a row for each box."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.images.boxes import BoxRows, FieldPart
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.protocol import METADATA_FIELDS
from tfds_torch.runtime.printable import quoted


def named_boxes(preprocess: Preprocess, fields: Sequence[str], target_key: object) -> tuple[BoxRows, ...]:
    """Return the boxes that a preprocess names, as far as they are asked for.

    A name is a field, or a field and the keys within its values, joined by "/". Where it comes without the fields that
    have a row for each box, these are all of its sequence, the names and keys that begin alike.

    Args:
        preprocess: names the boxes.
        fields: the fields that are asked for.
        target_key: the stored field behind `label`.
    """
    groups = []
    for name, rows in (preprocess.box_fields or {}).items():
        boxes = _find_parts(name, fields, target_key)
        if not boxes:
            continue
        sequence = name.rpartition("/")[0]
        if rows is not None:
            groups.append(in_order(boxes, [part for row in rows for part in _find_parts(row, fields, target_key)]))
        elif sequence:
            others = [FieldPart(field) for field in fields if field.startswith(f"{sequence}/")]
            if "label" in fields and str(target_key).startswith(f"{sequence}/"):
                others.append(FieldPart("label"))
            groups.append(in_order(boxes, others, has_siblings=any(part.keys for part in boxes)))
        else:
            known = {"image", *METADATA_FIELDS, *preprocess.moved_fields}
            groups.append(in_order(boxes, [], unsaid=[field for field in fields if field not in known]))
    return tuple(groups)


def in_order(
    boxes: Sequence[FieldPart], rows: Sequence[FieldPart], *, has_siblings: bool = False, unsaid: Sequence[str] = ()
) -> BoxRows:
    """Return boxes and rows, sorted so that equal values compare equal; a part that is in both counts as boxes."""
    return BoxRows(
        tuple(sorted(set(boxes))), tuple(sorted(set(rows) - set(boxes))), has_siblings, tuple(sorted(unsaid))
    )


def check_box_fields(
    preprocess: Preprocess,
    specs: Mapping[str, Any],
    find: Callable[[str], tuple[object, bool]],
    dataset_name: str,
) -> None:
    """Raise ConfigError where a field that a preprocess names for its boxes does not exist, or is an image.

    Args:
        preprocess: the preprocess, which names the boxes and the fields that have a row for each.
        specs: stored field -> its spec, a dictionary where the keys within its values are declared.
        find: returns how a field is stored, and whether it is an image; raises ConfigError where it does not exist.
        dataset_name: for messages.
    """

    def is_image(name: str) -> bool:
        is_declared = isinstance(specs.get(name.partition("/")[0]), Mapping)
        return find(name)[1] if is_declared else _is_image(name, find)

    for name, rows in (preprocess.box_fields or {}).items():
        if is_image(name):
            raise ConfigError(
                f"{dataset_name}: boxes={preprocess.boxes} names {quoted(name)}, which is an image. Masks and other "
                f"images go through the same crop with also=({quoted(name)},)."
            )
        for row in rows or ():
            is_image(row)


def _is_image(name: str, find: Callable[[str], tuple[object, bool]]) -> bool:
    """Return whether a field is an image; a field within the values of another field never is."""
    keys = name.split("/")
    for length in range(len(keys), 0, -1):
        with suppress(ConfigError):
            return find("/".join(keys[:length]))[1] and length == len(keys)
    return find(name)[1]


def _find_parts(name: str, fields: Sequence[str], target_key: object) -> list[FieldPart]:
    """Return where the fields asked for have a named field: as itself, as the target, or within another field."""
    parts = [FieldPart("label")] if name == target_key and "label" in fields else []
    if name in fields:
        return [*parts, FieldPart(name)]
    keys = name.split("/")
    for length in range(len(keys) - 1, 0, -1):
        if (whole := "/".join(keys[:length])) in fields:
            return [*parts, FieldPart(whole, tuple(keys[length:]))]
    return parts
