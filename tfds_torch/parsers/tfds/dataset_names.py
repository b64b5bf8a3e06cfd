"""What to tell a user whose dataset was not found."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from shlex import quote


def base_name(name: str) -> str:
    """Returns a dataset's name without config and version."""
    return name.partition("/")[0].partition(":")[0]


def describe_not_found(name: str, data_dir: Path, registered: Sequence[str]) -> str:
    """Returns a message: what was asked, what is there, what to do.

    Args:
        name: as asked for, `name/config:version`.
        data_dir: the root that was searched.
        registered: the datasets that TFDS knows how to build.
    """
    try:
        prepared, incomplete = _found_under(data_dir)
    except OSError as error:
        return f"The root {data_dir} of dataset {name!r} cannot be looked into: {error.strerror or error}."
    found = f" Prepared there: {', '.join(prepared)}." if prepared else " Nothing is prepared there."
    if incomplete:
        found += f" Incomplete, without a features.json: {', '.join(incomplete)}."
    if base_name(name).lower() in registered:
        problem = f"The dataset {name!r} is not prepared under {data_dir}."
        advice = f" Prepare it with: tfds build {name} --data_dir={quote(str(data_dir))} (or pass download=True)."
    else:
        problem = f"There is no dataset {name!r}, neither prepared under {data_dir} nor known to TFDS."
        near = get_close_matches(name, [*registered, *map(base_name, prepared)])
        advice = f" The nearest names are: {', '.join(dict.fromkeys(near))}." if near else ""
    if not data_dir.is_dir():
        return f"The root {data_dir} of dataset {name!r} does not exist, or is no directory.{advice}"
    return problem + advice + found


def _found_under(data_dir: Path) -> tuple[list[str], list[str]]:
    """Returns the datasets below a root, as `name:version` or `name/config:version`: whole ones, incomplete ones."""
    whole: list[str] = []
    incomplete: list[str] = []
    for info in sorted([*data_dir.glob("*/*/dataset_info.json"), *data_dir.glob("*/*/*/dataset_info.json")]):
        name = ":".join(info.parent.relative_to(data_dir).as_posix().rsplit("/", 1))
        (whole if (info.parent / "features.json").is_file() else incomplete).append(name)
    return whole, incomplete
