"""The same numbered examples in every kind of source that a parser reads, for the claims that hold of all of them.

Example n is the JPEG image `FILES[n]` of 32 x 32 pixels with the label n: what a batch holds says which example it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from picture_fixtures import decode, save, write_pictures
from PIL import Image
from storage.beton.made_files import PAGE
from storage.example_writer import write_example
from storage.webdataset.made_tars import write_samples
from tfds_fixtures import change_format, write_shard

from parsers.look_alikes import HubDataset, HubImage
from tfds_torch import (
    DecodedCache,
    ParserBeton,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    Windows,
)
from tfds_torch.storage.beton.fields import BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter
from tfds_torch.storage.tfrecord.framing import read_records

NUM_EXAMPLES, SIDE = 24, 32
SHARDS = (7, 0, 9, 8)
EPISODES = (5, 1, 10, 8)
"""Steps of each episode."""
CHOSEN = (20, 3, 7, 23, 4, 5, 6, 11, 0, 15, 16, 17)
"""The numbers of a subset, in its order."""

Files = Sequence[bytes]


def _draw(number: int) -> bytes:
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (SIDE // 4, SIDE // 4, 3), np.uint8)
    return save(Image.fromarray(np.kron(coarse, np.ones((4, 4, 1), np.uint8))), "JPEG", quality=92, subsampling=0)


FILES = [_draw(number) for number in range(NUM_EXAMPLES)]
PIXELS = np.stack([np.asarray(decode(file)) for file in FILES])


def damaged(*numbers: int) -> list[bytes]:
    """Return the files, of which some lack their second half."""
    return [file[: len(file) * 2 // 3] if number in numbers else file for number, file in enumerate(FILES)]


@dataclass(frozen=True)
class Made:
    """Parsers over the examples.

    Attributes:
        make: opens one; takes the arguments that all parsers take. Those of decoding and reading reach the members of a
            mixture.
        numbers: which example each place holds, as `parser[place]` counts.
        index: `Batch.index` of each place; empty: the place.
        label: the field that holds an example's number.
        file: what an error about example n must name beside its place.
        weighs: whether its examples come by weights, in training alone.
        decodes: whether `decode` may leave the image as it is stored.
    """

    make: Callable[..., Any]
    numbers: Sequence[int] = range(NUM_EXAMPLES)
    index: Sequence[int] = ()
    label: str = "label"
    file: Callable[[int], str] = str
    weighs: bool = False
    decodes: bool = True

    @property
    def number_at(self) -> dict[int, int]:
        """`Batch.index` -> the number of the example."""
        return dict(zip(self.index or range(len(self.numbers)), self.numbers, strict=True))


def make_records(folder: Path, files: Files) -> Made:
    write_pictures(folder, files, shards=SHARDS)
    return Made(partial(ParserTfds, str(folder), "pictures"), file=_shard_of)


def _shard_of(number: int) -> str:
    shard = next(shard for shard, stop in enumerate(accumulate(SHARDS)) if number < stop)
    return f"{shard:05}-of-{len(SHARDS):05}"


def make_array_records(folder: Path, files: Files) -> Made:
    made = make_records(folder, files)
    directory = folder / "pictures" / "1.0.0"
    for path in directory.glob("*.tfrecord-*"):
        writer = ArrayRecordWriter(str(path).replace("tfrecord", "array_record"), "group_size:1")
        for record in read_records(path):
            writer.write(record)
        writer.close()
        path.unlink()
    change_format(directory, "array_record")
    return made


def make_folder(folder: Path, files: Files) -> Made:
    for number, file in enumerate(files):
        path = folder / "train" / f"{number:02}" / f"{number:02}.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(file)
    make = partial(ParserTfds, str(folder), "image_folder")
    ids = make().filenames()  # In TFDS's order.
    return Made(make, [int(Path(name).stem) for name in ids], file=lambda number: f"{number:02}.jpg")


def make_windows(folder: Path, files: Files) -> Made:
    """Windows of one step, whose camera is their image."""
    directory = folder / "arm" / "1.0.0"
    directory.mkdir(parents=True)
    stops = list(accumulate(EPISODES))
    records = [
        write_example({"steps/image": list(files[stop - length : stop]), "steps/label": [*range(stop - length, stop)]})
        for length, stop in zip(EPISODES, stops, strict=True)
    ]
    for shard, part in enumerate((records[:2], records[2:])):
        write_shard(directory / f"arm-train.tfrecord-{shard:05}-of-00002", part)
    step = {"image": tfds.features.Image(shape=(SIDE, SIDE, 3), encoding_format="jpeg"), "label": np.int64}
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory),
        features=tfds.features.FeaturesDict({"steps": tfds.features.Dataset(step)}),
        split_infos=[tfds.core.SplitInfo(name="train", shard_lengths=[2, 2], num_bytes=sum(map(len, files)))],
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        check_data=False,
    )
    make = partial(ParserTfds, str(folder), "arm", windows=Windows("steps"))
    return Made(make, file=lambda number: f"{int(number >= stops[1]):05}-of-00002")


def make_directories(folder: Path, files: Files) -> Made:
    """Two directories, of which the second counts its classes from the last one."""
    names, first = [f"class {number:02}" for number in range(NUM_EXAMPLES)], 10
    for root, numbers, classes in (("a", range(first), names), ("b", range(first, NUM_EXAMPLES), names[::-1])):
        directory = folder / root / "halves" / "1.0.0"
        directory.mkdir(parents=True)
        labels_of = {number: classes.index(names[number]) for number in numbers}
        records = [write_example({"image": [files[number]], "label": [own]}) for number, own in labels_of.items()]
        write_shard(directory / "halves-train.tfrecord-00000-of-00001", records)
        image, label = tfds.features.Image(shape=(None, None, 3)), tfds.features.ClassLabel(names=classes)
        tfds.folder_dataset.write_metadata(
            data_dir=str(directory),
            features=tfds.features.FeaturesDict({"image": image, "label": label}),
            split_infos=[tfds.core.SplitInfo(name="train", shard_lengths=[len(records)], num_bytes=9)],
            filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            check_data=False,
        )
    make = partial(ParserTfds, [str(folder / "a"), str(folder / "b")], "halves")
    return Made(make, file=lambda number: f"/{'ab'[number >= first]}/halves/1.0.0/halves-train")


def make_beton(folder: Path, files: Files, numbers: Sequence[int] = range(NUM_EXAMPLES)) -> Made:
    fields = {"image": BetonImage(), "label": BetonInt()}
    with BetonWriter(folder / "a.beton", fields, len(numbers), page_size=PAGE) as writer:
        for number in numbers:
            writer.add((files[number], number), id=f"image {number}")
    make = partial(ParserBeton, str(folder / "a.beton"))
    return Made(make, numbers, file=lambda number: f"a.beton: sample {number} ")


def make_tars(folder: Path, files: Files, numbers: Sequence[int] = range(NUM_EXAMPLES)) -> Made:
    for tar in range(3):
        part = numbers[tar * len(numbers) // 3 : (tar + 1) * len(numbers) // 3]
        samples = [{"__key__": f"part/{number:02}", "jpg": files[number], "cls": b"%d" % number} for number in part]
        write_samples(folder / f"a-{tar}.tar", samples)
    make = partial(ParserWebDataset, str(folder / "a-{0..2}.tar"))
    return Made(make, numbers, file=lambda number: f".tar: sample 'part/{number:02}'")


def make_own(folder: Path, files: Files) -> Made:
    """A dataset with the interface of Hugging Face's."""
    images = [{"bytes": file, "path": None} for file in files]
    rows = HubDataset({"image": images, "label": list(range(NUM_EXAMPLES))}, {"image": HubImage(), "label": object()})
    return Made(partial(ParserMapStyle, rows), file=lambda number: f"item {number} ")


def make_columns(folder: Path, files: Files) -> Made:
    columns = {"image": list(files), "label": np.arange(NUM_EXAMPLES)}
    return Made(partial(ParserMapStyle, columns), file=lambda number: f"item {number} ")


def make_cached(folder: Path, files: Files) -> Made:
    made = make_records(folder / "data", files)
    make = partial(made.make, cache=DecodedCache(folder / "cache"))
    return replace(made, make=make, decodes=False)


def make_subset(folder: Path, files: Files) -> Made:
    made = make_records(folder, files)
    return replace(made, make=lambda **more: made.make(**more).subset(CHOSEN), numbers=CHOSEN, index=CHOSEN)


def make_draws(folder: Path, files: Files, *, balanced: bool) -> Made:
    made = make_records(folder, files)

    def make(**more: Any) -> Any:
        parser = made.make(**more)
        return (
            parser.balanced(epoch_size=31) if balanced else parser.weighted(1 + 9 * (np.arange(24) == 5), epoch_size=31)
        )

    return replace(made, make=make, weighs=True)


OF_MEMBERS = ("decode", "class_map", "image_mode")


def make_concatenation(folder: Path, files: Files, weights: Any = None) -> Made:
    """Of tars and a `.beton` file; with weights it is a mixture."""
    half = NUM_EXAMPLES // 2
    first, last = range(half), range(half, NUM_EXAMPLES)
    made = {"tars": make_tars(folder, files, first), "beton": make_beton(folder, files, last)}

    def make(**more: Any) -> ParserMixture:
        of_members = {name: more.pop(name) for name in OF_MEMBERS if name in more}
        if getattr(more.get("read"), "on_error", "raise") == "replace":
            of_members["read"] = more.pop("read")
        return ParserMixture({name: one.make(**of_members) for name, one in made.items()}, weights, **more)

    def file_of(number: int) -> str:
        return made["tars"].file(number) if number < half else made["beton"].file(number - half)

    return Made(make, file=file_of, weighs=weights is not None)


SOURCES: dict[str, Callable[[Path, Files], Made]] = {
    "records": make_records,
    "array records": make_array_records,
    "two directories": make_directories,
    "image folder": make_folder,
    "windows": make_windows,
    "beton": make_beton,
    "tars": make_tars,
    "own dataset": make_own,
    "columns": make_columns,
    "decoded cache": make_cached,
    "subset": make_subset,
    "balanced": partial(make_draws, balanced=True),
    "weighted": partial(make_draws, balanced=False),
    "concatenation": make_concatenation,
    "mixture": partial(make_concatenation, weights={"tars": 0.25, "beton": 0.75}),
}
