"""The argument `transform` of a parser of windows: which fields its functions give, and what can be wrong with it."""

from collections.abc import Mapping, Sequence

import numpy as np

from tfds_torch.engines.direct import read_examples
from tfds_torch.engines.fields import Content
from tfds_torch.engines.window_transform import TransformedField, WindowTransform
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import METADATA_FIELDS
from tfds_torch.parsers.tfds.window_fields import OWN_FIELDS, WindowFields
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FieldSpec, Source


def make_transformed_fields(
    transform: object, fields: WindowFields | None, dataset: str
) -> dict[str, TransformedField]:
    """Returns name -> the fields that transforms give.

    Args:
        transform: the argument: a WindowTransform, or a list of them; None: there are none.
        fields: those of the windows; None: examples are whole records.
        dataset: name of the dataset, for messages.

    Raises:
        ConfigError: it is something else; a field that does not exist, or has two transforms.
    """
    if transform is None:
        return {}
    if fields is None:
        raise ConfigError(
            f"{dataset}: transform={quoted(transform)} is for windows: give windows=Windows('steps', ...), too. Images "
            f"of whole records go through the transform of ImageDataset, or a preprocess."
        )
    every = transform if isinstance(transform, Sequence) else [transform]
    found: dict[str, TransformedField] = {}
    for one in every:
        if not isinstance(one, WindowTransform):
            raise ConfigError(
                f"{dataset}: transform={quoted(one)} must be a WindowTransform, which says what a function reads, for "
                f"example WindowTransform(function, reads=['action'])."
            )
        inputs = {name: fields.field(name, None) for name in one.reads}
        for name in one.gives or ():
            if name in found or name in OWN_FIELDS or name in METADATA_FIELDS or name == "image":
                why = "is given by two transforms" if name in found else "is not a name that a transform can give"
                raise ConfigError(f"{dataset}: transform: the field {quoted(name)} {why}.")
            found[name] = TransformedField(name, one, inputs, dataset)
    return found


def given_specs(fields: Mapping[str, TransformedField], source: Source) -> dict[str, FieldSpec | None]:
    """Returns the fields that transforms give, as they are of the first window.

    Returns:
        Name -> shape and dtype; None: it is not numbers of one size, or there is no window.
    """
    if not len(source) or not fields:
        return dict.fromkeys(fields)
    ((_, decoded),) = read_examples(source, Content(fields, has_label=False), np.zeros(1, np.int64), 1, 1)
    return {
        name: FieldSpec(values.shape[1:], values.dtype) if isinstance(values, np.ndarray) else None
        for name, values in decoded.items()
    }


def check_are_stored(names: Sequence[str], given: Mapping[str, TransformedField], fields: WindowFields) -> None:
    """Raises ConfigError where a field is given by a transform, and the dataset has none of that name."""
    for name in names:
        if name in given and name not in fields.all_fields:
            raise ConfigError(
                f"{fields.dataset}: columns are what is stored, and {quoted(name)} is given by transform=. Ask for "
                f"{', '.join(given[name].inputs)}, and apply the function to their steps."
            )
