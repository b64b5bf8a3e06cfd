"""Files of a folder into an object store of the tests."""

import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Tests without the extra `remote` import the fixtures, too.
    from obstore.store import ObjectStore


def ask(url: str, method: str, body: bytes | None = None, **headers: Any) -> bytes:
    """Sends a request to a server of the tests and returns the body of the answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, named, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        found: bytes = answer.read()
    return found


def files_of(folder: Path, prefix: str = "") -> list[tuple[str, Path]]:
    """Returns a folder's files, those of its folders included, with the names that they have as objects."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [("/".join(filter(None, [prefix, path.relative_to(folder).as_posix()])), path) for path in files]


def upload(folder: Path, store: "ObjectStore", prefix: str = "") -> list[str]:
    """Uploads all files of a folder, under the names that they have in it, behind a prefix; returns the whole names."""
    import obstore

    files = files_of(folder, prefix)
    for name, path in files:
        obstore.put(store, name, path)
    return [name for name, _ in files]
