"""Which splits a dataset of TFDS has, without its download: TFDS itself knows them only once they are written.

Imports TFDS: for the process that builds.
"""

import ast
import contextlib
import inspect
import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow_datasets as tfds

from tfds_torch.demo.spec import is_split_name

_USUAL = ("train",)


def real_splits(builder: Any) -> tuple[str, ...]:
    """Returns the names of the splits that TFDS's own builder would write, in its order.

    The builder is asked for its generators, with paths of downloads that are not there. Where it looks into its
    downloads first, the names are read from its code. ("train",) where neither tells.

    Args:
        builder: TFDS's own builder, in an empty data dir; it is spent by this.
    """
    for ask in (_generated, _written):
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):  # A dataset's code: any code.
            if names := tuple(dict.fromkeys(filter(is_split_name, ask(builder)))):
                return names
    return _USUAL


class _NoDownloads:
    """What stands for TFDS's download manager: whatever is asked for lies in a folder, which is empty."""

    def __init__(self, folder: Any) -> None:
        self.manual_dir = self.download_dir = folder
        self._folder = folder

    def download_and_extract(self, urls: Any) -> Any:
        """Returns a path for each URL, in the structure of the URLs."""
        if isinstance(urls, Mapping):
            return {key: self.download_and_extract(value) for key, value in urls.items()}
        if isinstance(urls, list | tuple):
            return type(urls)(map(self.download_and_extract, urls))
        return self._folder / "download"

    download = extract = download_and_extract

    def download_kaggle_data(self, *args: Any, **options: Any) -> Any:
        """Returns a path."""
        del args, options
        return self._folder / "download"

    def iter_archive(self, path: Any) -> Iterator[Any]:
        """Returns an iterator over nothing."""
        del path
        return iter(())


def _generated(builder: Any) -> Iterable[str]:
    generators = builder._split_generators(_NoDownloads(tfds.core.Path(builder._data_dir_root)))
    return map(str, generators) if isinstance(generators, Mapping) else [str(one.name) for one in generators]


def _written(builder: Any) -> Iterable[str]:
    """Returns the names in the builder's code: `tfds.Split.TRAIN`, `{"dev": self._generate_examples(...)}`."""
    code = ast.parse(textwrap.dedent(inspect.getsource(type(builder)._split_generators)))
    found = [(node.lineno, node.col_offset, name) for node in ast.walk(code) for node, name in _names_in(node)]
    return [name for *_, name in sorted(found)]


def _names_in(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yields what names a split, with the name."""
    if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("Split"):
        name = getattr(tfds.Split, node.attr, None)
        if name is not None:
            yield node, str(name)
    elif isinstance(node, ast.Call) and _called(node) == "SplitGenerator":
        yield from (_constant(word.value) for word in node.keywords if word.arg == "name" and _is_text(word.value))
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(value, ast.Call) and "generate" in _called(value) and _is_text(key):
                yield _constant(key)


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _constant(node: Any) -> tuple[ast.expr, str]:
    return node, node.value
