"""export_dataset: a dataset in another format, one file or a folder of shards, written by several processes."""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.export.beton import BetonExport, FileRequest
from tfds_torch.export.fields import SKIP, FieldChoice, check_choices
from tfds_torch.export.jobs import Progress
from tfds_torch.export.plan import SHARDED, ExportReport, Part, ShardSizes
from tfds_torch.export.samples import IteratedSamples, ParserSamples, SampleSource, samples_of
from tfds_torch.export.shards import ShardedExport, ShardRequest
from tfds_torch.export.web_dataset_shards import WebDatasetShards
from tfds_torch.parsers.options import check_names
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.runtime.arguments import check_flag, check_integer, did_you_mean
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.limits import num_cores
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.format import DEFAULT_PAGE
from tfds_torch.storage.beton.writer import check_target
from tfds_torch.storage.remote.storage_options import environment_variables
from tfds_torch.storage.remote.store import ObjectStore
from tfds_torch.storage.source import is_local

FORMATS = ("beton", *SHARDED)
DEFAULT_CHUNK = 100


@explain_keywords
def export_dataset(
    source: Any,
    out: str | os.PathLike[str],
    *,
    format: str,
    fields: Mapping[str, FieldChoice] | None = None,
    names: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    num_workers: int = 0,
    indices: Iterable[int] | None = None,
    shuffle_seed: int | None = None,
    chunk_size: int = DEFAULT_CHUNK,
    page_size: int = DEFAULT_PAGE,
    num_shards: int | None = None,
    max_count: int | None = None,
    max_bytes: int | None = None,
    key: str | None = None,
    executor: Executor | None = None,
    part: tuple[int, int] | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the samples of a dataset in another format: each file is there whole or not at all.

    Workers read and encode; the order is that of the numbers of samples, for any number of workers. The images of a
    parser keep the bytes that they have on disk.

    "beton" is one file, which FFCV reads, too; ids, class names and fingerprint go into it. An iterable is iterated
    here, and its samples are sent to the workers.

    The other formats are folders of shards. The same call with the same arguments continues an export that was killed,
    and writes no complete shard again; its files have the same bytes for any number of workers. "webdataset" writes tar
    files: original images, integers of the label as text (cls), texts (txt), numbers and arrays with their types (npy),
    all else as json; a field that is named as an extension of its type, like png, keeps that name. The first, the
    middle and the last sample of a map-style dataset tell whether it is still the one whose shards are there: changes
    of other samples alone are not noticed, and a dataset with random samples is never the same. "tfrecord" and
    "array_record" copy the records of a TFDS dataset, in any number of shards, with its metadata: `out` is then a
    version directory, which TFDS and ParserTfds open. You may export further splits into the same folder.

    Args:
        source: a parser over files of this machine, or a map-style dataset (torch's). For "beton" also anything sized
            that yields dictionaries or tuples, or `WebDatasetShards`.
        out: path of the file, or of the folder; a folder is made.
        format: "beton", "webdataset", "tfrecord" or "array_record".
        fields: name -> how it is stored in a `.beton` file: a value like `BetonImage("jpg")`, or its short name: of
            images "passthrough", "raw", "jpg", "smart", "proportion"; "int", "float", "bytes", "json"; None or "skip"
            leaves it out, of tar files, too. Other fields are stored by their type: encoded images as they are, pixels
            as pixels, integers, numbers and arrays as such, text and values that vary in size as JSON. Image and label
            come first.
        names: the names of the values of rows that are tuples, by position, as in ParserMapStyle. None: a named tuple's
            own names; `image` and `label` for two values of which the first is an image; else "0", "1" ...
        rename: name -> its name in the file; that of a `.beton` file has room for 16 ASCII characters.
        num_workers: number of processes; 0: as many as there are usable cores.
        indices: numbers of samples in the file's order; a number may come several times; None: all.
        shuffle_seed: the seed of a shuffle of them; None: no shuffle.
        chunk_size: for "beton": samples that a worker takes at a time; of `WebDatasetShards`, it takes one shard.
        page_size: for "beton": bytes of a page, a power of two from 2 MiB on. A sample must fit into one page.
        num_shards: number of shards; None: shards of 256 MiB, or of 10,000 samples where their size is not known.
        max_count: maximum number of samples of a shard.
        max_bytes: maximum size of a shard's file in bytes; all samples are read once more for it.
        key: for "webdataset": how members are named: "number", nine digits, or "id", with all but letters, digits, "_",
            "-" and "~" escaped as `urllib.parse.unquote` reads it (`unquote_to_bytes` for ids that are not UTF-8);
            None: "number".
        executor: for shards: runs the workers, instead of processes of this machine: any Executor of
            `concurrent.futures`, like Dask's `client.get_executor()`. Its workers read the dataset and write to
            `out` by the same paths, on file systems that are mounted there.
        part: for shards: "3/16" or (3, 16): write every 16th shard from the 3rd one on. Each of the 16 parts is a
            separate process, on any machine; they have the other arguments in common, and whichever finds all shards
            complete writes the manifest.
        overwrite: for "beton": whether a file may be replaced, in one step, when the new one is complete. A folder of
            shards is never overwritten.
        progress: called in this thread, now and then, with the number of samples that are done and that of all.

    Raises:
        ConfigError: an argument that cannot work, or values that cannot be stored.
        ExportError: a worker raised (with its traceback), died or hung; or the disk is full. An earlier
            file stays as it was; complete shards stay. Where a worker of this machine died or hung at a shard, the
            others are written first.
    """
    check_format(format)
    check_flag("overwrite", overwrite)
    num_workers = check_integer("num_workers", num_workers, 0) or num_cores()
    chunk_size = check_integer("chunk_size", chunk_size, 1)
    page_size = check_integer("page_size", page_size, 1)
    shuffle_seed = None if shuffle_seed is None else check_integer("shuffle_seed", shuffle_seed, 0)
    if progress is not None and not callable(progress):
        raise ConfigError(
            f"progress={quoted(progress)} must be a function of two numbers: done, and how many there are."
        )
    if executor is not None and not isinstance(executor, Executor):
        raise ConfigError(
            f"executor={quoted(executor)} must be an Executor of concurrent.futures, such as what Dask's "
            f"client.get_executor() returns."
        )
    if isinstance(names, Mapping):
        raise ConfigError(
            f"names={quoted(names)} must be the names of a tuple's values, in order, such as ('image', 'label'). Other "
            f"names in the file are rename={{name: new}} (--rename NAME=NEW)."
        )
    names = check_names("export_dataset: names", names, "one for each value of a tuple, such as ('image', 'label')")
    path = local_path(out)
    sizes = ShardSizes(num_shards, max_count, max_bytes)
    if format in SHARDED:
        for name, is_given in (("chunk_size", chunk_size != DEFAULT_CHUNK), ("page_size", page_size != DEFAULT_PAGE)):
            if is_given:
                raise ConfigError(f"{name} is of format='beton', and has no effect on {format}: leave it out.")
        if overwrite:
            raise ConfigError(
                f"overwrite (--overwrite) replaces a .beton file, and {format} is a folder of shards, which is never "
                f"overwritten: leave it out."
            )
        request = ShardRequest(
            format=format,
            sizes=sizes,
            key=key,
            skipped=_skipped(fields, format),
            rename=check_choices(None, rename)[1],
            names=names,
            indices=indices,
            shuffle_seed=shuffle_seed,
            part=None if part is None else Part.of_argument(part),
        )
        if executor is not None and part is not None:
            raise ConfigError(
                f"part={quoted(part)} (--part) is for a process of its own, and executor for workers of this one: "
                f"leave one of them out."
            )
        samples = _numbered(source, format)
        _check_is_not_read(samples, Path(path), is_folder=True)
        if executor is not None:
            _check_has_no_secrets(samples)
        return ShardedExport(samples, path, num_workers, executor).run(request, progress)
    for name, value in (("executor", executor), ("part (--part)", part)):
        if value is not None:
            raise ConfigError(
                f"{name} is for folders of shards, and {format} is one file, which processes of this machine write: "
                f"leave it out."
            )
    if sizes != ShardSizes() or key is not None:
        raise ConfigError(
            f"num_shards, max_count, max_bytes and key (--shards, --max-count, --max-bytes, --key) are for folders of "
            f"shards, and {format} is one file: leave them out."
        )
    check_target(path, page_size, overwrite)
    choices, renamed = check_choices(fields, rename)
    file_request = FileRequest(
        fields=choices,
        rename=renamed,
        names=names,
        indices=indices,
        shuffle_seed=shuffle_seed,
        chunk_size=chunk_size,
        page_size=page_size,
    )
    samples = source if isinstance(source, WebDatasetShards) else samples_of(source)
    _check_is_not_read(samples, Path(path))
    return BetonExport(samples, path, num_workers).run(file_request, overwrite, progress)


def check_format(format: object) -> None:
    """Raise ConfigError for a format that cannot be written."""
    if not isinstance(format, str) or format not in FORMATS:
        known = ", ".join(map(repr, FORMATS))
        raise ConfigError(f"format={quoted(format)} cannot be written: choose {known}.{did_you_mean(format, FORMATS)}")


def local_path(out: object) -> str:
    """Return the path of the file or folder to write; raise ConfigError for a path that this machine cannot reach."""
    if not isinstance(out, str | os.PathLike):
        raise ConfigError(f"out={quoted(out)} must be the path of a file, or of a folder of shards.")
    if not os.fspath(out):  # The folder of the process would be a surprise.
        raise ConfigError("out is empty: give the path of a file, or of a folder of shards.")
    path = os.path.expanduser(os.fspath(out))
    if not is_local(path):
        raise ConfigError(
            f"{path} is on another machine: files are written to file systems that are mounted here. Write to one, and "
            f"copy the files from there."
        )
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):  # The export makes it, or reports the missing folder.
        pass
    except (OSError, ValueError) as error:  # No permission, too long a name, a loop of links, a null character.
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"out={quoted(path)} cannot be written to: {why}. Choose another path.") from None
    return path


def _skipped(fields: object, file_format: str) -> tuple[str, ...]:
    """Return the fields that are left out; a ConfigError for any other choice, which shards do not have."""
    if fields is not None and not isinstance(fields, Mapping):
        raise ConfigError(f"fields={quoted(fields)} must be a mapping by name, such as {{'mask': None}}.")
    for name, choice in (fields or {}).items():
        if choice is not None and not (isinstance(choice, str) and choice == SKIP):
            raise ConfigError(
                f"fields: {quoted(name)} is {quoted(choice)}. In {file_format}, values are stored by their type: only "
                f"None (skip) can be asked for."
            )
    return tuple(fields or {})


def _numbered(source: Any, file_format: str) -> SampleSource:
    """Return samples that any worker can read by number."""
    samples = None if isinstance(source, WebDatasetShards) else samples_of(source)
    if samples is None or isinstance(samples, IteratedSamples):
        advice = (
            "of tars, ParserWebDataset reads them by number" if samples is None else "format='beton' takes iterables"
        )
        raise ConfigError(
            f"{type(source).__name__} can only be iterated, and shards are written by number, so that an export that "
            f"was killed can go on. For format={quoted(file_format)}, give a parser, or a dataset with len() and []; "
            f"{advice}."
        )
    return samples


def _check_has_no_secrets(samples: SampleSource) -> None:
    """Raise ConfigError where a dataset is read with storage options that copies elsewhere do not have."""
    networks = samples.parser.source.networks if isinstance(samples, ParserSamples) else ()
    for store in networks:
        options = store.options.storage_options if isinstance(store, ObjectStore) else None
        if options:
            variables = environment_variables(options, next(iter(samples.paths), ""))
            remedy = (
                f"Leave storage_options out, and set in the environment of this process and of every worker: "
                f"{', '.join(variables)}."
                if variables
                else "Copy the files to a file system that is mounted there."
            )
            raise ConfigError(
                f"{samples.name} is read with explicit storage_options ({', '.join(sorted(options))}), which are "
                f"secrets, and are not sent to the workers of an executor. {remedy}"
            )


def _check_is_not_read(samples: SampleSource, path: Path, is_folder: bool = False) -> None:
    """Raise ConfigError where an export to a path, of a file or of a folder of shards, would write to what it reads.

    For a TFDS dataset, that is everything in its directory; for an image folder, everything in its root. For files like
    tars, it is these files; an export to a file must not replace others of their form beside them either, and one to a
    folder must not go into theirs.
    """
    place = Path(os.path.realpath(path))
    own = _identity(place)
    files = {one for one in samples.paths if is_local(one)}
    # Of links, the folders that they lead to as well.
    folders = {os.path.dirname(one) for one in files}
    folders |= {os.path.dirname(os.path.realpath(one)) for one in files if os.path.islink(one)}
    directories = _identities(_dataset_directories(samples, folders))
    for folder in (place, *place.parents):
        if (identity := _identity(folder)) in directories:
            raise ConfigError(
                f"{path} is in {directories[identity]}, the directory of {samples.name}, which is the source of this "
                f"export: nothing there is written to. Choose a path outside of it."
            )
    if own is not None and own in _identities(folders if is_folder else files):
        what = "another folder for the shards" if is_folder else "another path for the file that is written"
        raise ConfigError(f"{path} is the source of this export: choose {what}.")
    is_like_them = place.suffix == ".tar" and _identity(place.parent) in _identities(folders)
    if not is_folder and own is not None and is_like_them:
        raise ConfigError(
            f"{path} is a tar beside those of {samples.name}, which is exported: choose another path for the file that "
            f"is written."
        )


def _dataset_directories(samples: SampleSource, folders: Iterable[str]) -> set[str]:
    """Return the directories that a dataset has for itself."""
    found = {folder for folder in folders if os.path.isfile(os.path.join(folder, "dataset_info.json"))}
    parser = samples.parser if isinstance(samples, ParserSamples) else None
    if isinstance(parser, ParserTfds):
        found.update(str(one) for one in parser.data_dirs if is_local(str(one)))
    return found


def _identities(paths: Iterable[str]) -> dict[tuple[int, int] | None, str]:
    found = {_identity(path): path for path in paths}
    found.pop(None, None)
    return found


def _identity(path: str | Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null character.
        return None
    return status.st_dev, status.st_ino
