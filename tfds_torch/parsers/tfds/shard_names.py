"""Names of shards, from the templates that dataset_info.json gives; the same as TFDS's own, in bounded time and memory.

TFDS hands a template to `str.format`, which takes format specs (`{SHARD_INDEX:>999999999}` makes names of a GB) and
attributes of what it fills in, and it makes a path object of every name.
"""

import os
import re
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import is_local

_LONGEST_TEMPLATE = 1000  # Characters.
_LONGEST_NAME = 255  # Bytes of a file's name, on the file systems of all systems.
_split_braces = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([{}])").finditer
_PLACEHOLDERS = ("DATASET", "SPLIT", "FILEFORMAT", "SHARD_INDEX", "NUM_SHARDS", "SHARD_X_OF_Y")
_BY_SHARD = {"SHARD_INDEX", "SHARD_X_OF_Y"}
_LEAST_DIGITS = 5


class BadTemplateError(Exception):
    """A template that makes no names of shards; the message is a sentence."""


def shard_names(template: str, values: dict[str, str], num_shards: int) -> list[str]:
    """Returns the names of a split's shards, in their order, relative to the dataset's directory."""
    parts = _parse(template or tfds.core.naming.DEFAULT_FILENAME_TEMPLATE, values)
    if num_shards > 1 and not any(is_placeholder and text in _BY_SHARD for is_placeholder, text in parts):
        raise _bad(template, f"gives all of its {num_shards} shards the same name")
    digits = max(len(str(num_shards)), _LEAST_DIGITS)
    of_all = f"{num_shards:0{digits}d}"
    # Only the number of the shard differs: one format string without anything of the template's own in it.
    pattern = "".join(
        text.replace("%", "%%")
        if not is_placeholder
        else {
            "SHARD_INDEX": "%(n)s",
            "NUM_SHARDS": of_all,
            "SHARD_X_OF_Y": f"%(n)s-of-{of_all}",
        }.get(text, values.get(text, "").replace("%", "%%"))
        for is_placeholder, text in parts
    )
    longest = max((len(part.encode(errors="replace")) for part in (pattern % {"n": of_all}).split("/")), default=0)
    if longest > _LONGEST_NAME:
        raise _bad(template, f"makes names of {longest} bytes, and {_LONGEST_NAME} is the most of a file's name")
    return [pattern % {"n": f"{number:0{digits}d}"} for number in range(num_shards)]


def _parse(template: str, values: dict[str, str]) -> list[tuple[bool, str]]:
    """Returns a template's texts and placeholders: whether it is a placeholder, and the text or its name."""
    if len(template) > _LONGEST_TEMPLATE:
        raise _bad(template, f"has {len(template):,} characters, and {_LONGEST_TEMPLATE:,} is the most")
    if "\0" in template:
        raise _bad(template, "holds a null character")
    parts: list[tuple[bool, str]] = []
    end = 0
    for found in _split_braces(template):
        parts.append((False, template[end : found.start()]))
        end, name = found.end(), found[1]
        if found[2]:
            raise _bad(template, "has a brace that is not closed, or not opened")
        if name is None:
            parts.append((False, found[0][0]))
            continue
        if name not in _PLACEHOLDERS or (name not in values and name in _PLACEHOLDERS[:3]):
            raise _bad(template, f"has the placeholder {{{quoted(name)[1:-1]}}}, which TFDS does not write")
        parts.append((True, name))
    return [*parts, (False, template[end:])]


def _bad(template: str, what: str) -> BadTemplateError:
    known = ", ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
    return BadTemplateError(f"The filepathTemplate {quoted(template)} {what}. The placeholders are {known}.")


class NamedSplit(tfds.core.SplitInfo):  # type: ignore[misc]
    """TFDS's `SplitInfo`, with the paths of its shards made by `shard_names`. Can be pickled."""

    @property
    def filepaths(self) -> list[str]:
        """All paths of shards, in their order: all numbers have as many digits, so that TFDS's sorting is this order.

        Raises:
            BadTemplateError: the template is not one of TFDS's, or a file lies outside of the dataset's directory.
        """
        cached: list[str] | None = self.__dict__.get("_filepaths")
        if cached is None:
            cached = self._make_paths()
            object.__setattr__(self, "_filepaths", cached)  # The dataclass is frozen.
        return cached

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_filepaths"}

    def _make_paths(self) -> list[str]:
        template = self.filename_template
        values = {
            "DATASET": template.dataset_name,
            "SPLIT": template.split,
            "FILEFORMAT": template.filetype_suffix,
        }
        names = shard_names(
            template.template, {key: value for key, value in values.items() if value}, len(self.shard_lengths)
        )
        folder = os.fspath(template.data_dir)
        if not names:
            return []
        first = os.path.join(folder, names[0])
        if not is_local(first):
            return [f"{folder.rstrip('/')}/{name}" for name in names]
        # Names differ by digits alone: all lie in folders of the same depth, inside or outside as the first one does.
        folder = os.path.abspath(folder)
        self._check_inside(os.path.normpath(os.path.join(folder, names[0])), folder)
        if os.path.normpath(names[0]) != names[0]:
            return [os.path.normpath(os.path.join(folder, name)) for name in names]
        return [f"{folder}/{name}" for name in names]

    def _check_inside(self, path: str, directory: str) -> None:
        if os.path.commonpath([path, directory]) != directory:
            raise BadTemplateError(
                f"dataset_info.json in {directory} names the file {path}, which does not lie there. Only files of the "
                f"dataset's own directory are read: check its filepathTemplate."
            )
