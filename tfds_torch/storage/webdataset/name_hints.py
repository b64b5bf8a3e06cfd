"""Hints for a field that is not found, from the names of members: dots in keys, or a folder for each sample.

A key ends at the first dot of a file's name, as WebDataset has it: `v1.2.jpg` is the member `2.jpg` of a sample `v1`,
and `0001/input.jpg` the member `jpg` of a sample `0001/input`.
"""

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np

from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.webdataset.tar_index import TarIndex, text_of

_LOOKED_AT = 1000
"""Number of first samples that are looked at: the names of the others are alike."""
_MOST_SHOWN = 3
_MOST_FILES = 32  # A folder of more files is a class, and its files are samples.
_WITH_DOTS = r"tar --sort=name --transform='s,/\([^/]\+\)$,.\1,' -cf new.tar *"


def name_hint(index: TarIndex, wanted: Sequence[str]) -> str:
    """Return a sentence on extensions that no sample has, with a space before it; empty where there is no hint."""
    there = index.extensions
    by_end = _by_end(there)
    ends = [extension for extension in wanted if len(by_end.get(extension, ())) > 1]
    near = get_close_matches(wanted[0], [end for end, own in by_end.items() if len(own) > 1], n=1)
    if any("." in one for one in wanted) and (found := folder_hint(index, wanted)):
        return found
    if ends:
        return dot_hint(by_end[ends[0]])
    return nearest(wanted[0], there) or (dot_hint(by_end[near[0]]) if near else "") or folder_hint(index, wanted)


def nearest(wanted: str, there: Sequence[str]) -> str:
    """Return " Did you mean 'jpg'?" for the nearest extension; groups like `1.jpg`, `2.jpg` are left out."""
    by_end = _by_end(there)
    return did_you_mean(
        wanted, [one for one in there if len(by_end.get(one.rpartition(".")[2], ())) < 2 or "." not in one]
    )


def dot_hint(alike: Sequence[str]) -> str:
    """Return an explanation of extensions with dots that end in a wanted one, like `1.jpg` and `2.jpg`."""
    shown, more = ", ".join(map(quoted, alike[:_MOST_SHOWN])), ", ..." if len(alike) > _MOST_SHOWN else ""
    are = "are extensions" if len(alike) > 1 else "is an extension"
    return (
        f" A key ends at the first dot of a file's name, so that {shown}{more} {are}: where the dots belong to the "
        f"keys, write the tars again with other characters in their place; otherwise name the extension in full."
    )


def folder_hint(index: TarIndex, wanted: Sequence[str]) -> str:
    """Return advice on reading tars with a folder for each sample; empty: the names of their files do not repeat.

    Args:
        index: index of the tars.
        wanted: the wanted extensions; `input.jpg` stands for the files `input.jpg` of all folders.
    """
    folders: dict[str, set[str]] = {}
    for key in index.keys_of(np.arange(min(len(index), _LOOKED_AT))):
        folder, slash, base = text_of(key).rpartition("/")
        if slash:
            folders.setdefault(folder, set()).add(base)
    sets = Counter(map(frozenset, folders.values())).most_common(1)
    if not sets or sets[0][1] < max(2, len(folders) / 2) or len(sets[0][0]) > _MOST_FILES:
        return ""
    names = sorted(sets[0][0])
    if all(name.isdigit() for name in names):  # Numbered samples in folders of classes.
        return ""
    asked = [
        one.removeprefix(f"{name.lower()}.") for name in names for one in wanted if one.startswith(f"{name.lower()}.")
    ]
    if len(names) == 1 and not asked:
        return ""
    shown = f"{', '.join(map(quoted, names[:_MOST_SHOWN]))}{', ...' if len(names) > _MOST_SHOWN else ''}"
    folder = next(folder for folder, own in folders.items() if own == sets[0][0])
    if len(names) == 1:
        start, remedy = f"The name {shown} repeats", f"name the extension alone, {quoted(asked[0])}"
    else:
        start = f"The names {shown} repeat"
        remedy = f"write the tars again with a dot in the place of the last slash: unpack them, and {_WITH_DOTS}"
    return (
        f" {start} in every folder, and a key is the path up to the first dot of a file's name: "
        f"{quoted(f'{folder}/{names[0]}')} is a sample of its own. For one sample a folder, {remedy}."
    )


def _by_end(extensions: Sequence[str]) -> dict[str, list[str]]:
    """Return the extensions with dots by their last part."""
    found: dict[str, list[str]] = {}
    for one in extensions:
        if "." in one:
            found.setdefault(one.rpartition(".")[2], []).append(one)
    return found
