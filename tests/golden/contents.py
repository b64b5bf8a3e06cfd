"""What is golden of a case: its examples, its epochs in every world, and pixels of a few images."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from golden.cases import CASES, FIELDS, FOR_TRAINING_ONLY, Data
from tfds_torch import EvalPreprocess, ImageDataset, TrainPreprocess, World

Sections = dict[str, list[Any]]
WORLDS = ((1, 1), (2, 1), (1, 3), (2, 2))
"""Ranks and workers. The global batch is the same in each."""
GLOBAL_BATCH, SIZE = 6, 8
EPOCHS = {"training": 3, "evaluation": 1}
PREPROCESS = {"training": TrainPreprocess(size=SIZE), "evaluation": EvalPreprocess(size=SIZE)}
PICTURED = {"training": (-1, slice(-3, None)), "evaluation": (0, slice(2))}
"""Of which batch and images pixels are golden: the last ones of an epoch, one of them of the next pass; the first."""


def contents_of(case: str, data: Data) -> Sections:
    """Returns section -> rows."""
    parsers = {"training": CASES[case](data, is_training=True, batch_size=GLOBAL_BATCH)}
    if case not in FOR_TRAINING_ONLY:
        parsers["evaluation"] = CASES[case](data, is_training=False, batch_size=GLOBAL_BATCH)
    parser, fields = parsers["training"], FIELDS.get(case, ("caption",))
    found: Sections = {"class names": list(parser.class_names or [])}
    examples = parser.examples_by_index(parser.indices.tolist(), fields or ("label",))
    values = ([one.index, one.id, *(one.features[name] for name in fields)] for one in examples)
    found["examples"] = [plain([*row, target]) for row, target in zip(values, parser.targets(), strict=True)]
    assert [row[1] for row in found["examples"]] == list(parser.ids(parser.indices))
    if case == "windows":
        columns = parser.columns(["label", *fields])
        found["columns"] = [[name, str(values.dtype), plain(values)] for name, values in columns.items()]
    found["deal"] = []
    for mode, parser in parsers.items():
        for ranks, workers in WORLDS:
            of_rank = parser.with_batch_size(GLOBAL_BATCH // ranks)
            rows, dealt = read_epochs(of_rank, ranks, workers, EPOCHS[mode])
            found["deal"].append([mode, ranks, workers, dealt])
            add(found, mode, f"{ranks} x {workers}", rows)
            images = read_images(of_rank.with_preprocess(PREPROCESS[mode]), ranks, workers, PICTURED[mode][0])
            add(found, f"{mode} pixels", f"{ranks} x {workers}", pixels_of(images, mode))
        batches = list(ImageDataset(parser.with_preprocess(PREPROCESS[mode]), fields=("image",), world=World()))
        (images,) = batches[PICTURED[mode][0]]
        add(found, f"{mode} pixels", "tensors", pixels_of(images.permute(0, 2, 3, 1).numpy(), mode))
    return found


def add(found: Sections, name: str, where: str, rows: list[Any]) -> None:
    """Adds a section, unless one of the same name is alike: what is the same everywhere is there once."""
    if not is_known(name, rows, found):
        found[f"{name} in {where}"] = rows


def read_epochs(parser: Any, ranks: int, workers: int, num_epochs: int) -> tuple[list[Any], list[Any]]:
    """Returns the global batches that a world delivers, which must be the planned ones, and those of each place."""
    fields = [name for name in ("label", "member") if name in parser.element_spec.fields]
    grid, rows, deals = World.grid(ranks, workers), [], []
    for epoch in range(num_epochs):
        places = [list(parser.batches(world, epoch, fields=fields)) for world in grid]
        deals.append([[batch.batch for batch in place] for place in places])
        by_rank = [(batch.batch, world, batch) for world, place in zip(grid, places, strict=True) for batch in place]
        for number in range(parser.plan(grid[0]).num_batches):
            own = [(world, batch) for found, world, batch in by_rank if found == number]
            planned = [parser.plan(world).batch(epoch, number) for world, _ in own]
            row: dict[str, Any] = {"epoch": epoch, "batch": number}
            for name in ("index", "valid"):
                row[name] = join(getattr(batch, name) for _, batch in own)
                assert row[name] == join(getattr(batch, name) for batch in planned)
            row["pass"] = join(batch.pass_number for batch in planned)
            for name in fields:  # Windows have a label like any other field.
                row[name] = join(batch.features.get(name, getattr(batch, name, None)) for _, batch in own)
            assert [id for _, batch in own for id in batch.id] == parser.ids(np.array(row["index"]))
            rows.append(row)
    assert deals == deals[:1] * num_epochs
    return rows, deals[0]


def read_images(parser: Any, ranks: int, workers: int, number: int) -> Any:
    """Returns the images of a global batch of the first epoch, uint8 [n, SIZE, SIZE, 3]."""
    worlds = [World(rank, ranks, 0, workers) for rank in range(ranks)]
    number %= parser.plan(worlds[0]).num_batches
    return np.concatenate([next(parser.batches(world, 0, number, fields=("image",))).image for world in worlds])


def pixels_of(images: Any, mode: str) -> list[list[int]]:
    """Returns a row for each row of pixels of those images of a batch that are golden."""
    rows: list[list[int]] = images[PICTURED[mode][1]].reshape(-1, SIZE * 3).tolist()
    return rows


def join(arrays: Iterable[Any]) -> list[int]:
    """Returns the values of all ranks, flags as 0 and 1."""
    values: list[int] = np.concatenate(list(arrays)).astype(np.int64).tolist()
    return values


def plain(value: Any) -> Any:
    """Returns a value without numpy's types."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


# What is committed


def golden_file(case: str) -> Path:
    return Path(__file__).parent / f"{case}.json"


def load(case: str) -> Sections:
    sections: Sections = json.loads(golden_file(case).read_text(encoding="utf-8"))
    return sections


def dump(sections: Mapping[str, Iterable[Any]]) -> str:
    """Returns the text of a golden file: JSON, one row a line."""

    def as_text(rows: Iterable[Any]) -> str:
        return ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)

    return "{\n" + ",\n".join(f'"{name}": [\n{as_text(rows)}\n]' for name, rows in sections.items()) + "\n}\n"


def are_alike(name: str, ours: Any, golden: Any) -> bool:
    """Whether rows are equal; pixels within one grey level, as torch resizes by the processor's own instructions."""
    if not name.endswith("pixels"):
        return bool(ours == golden)
    return np.shape(ours) == np.shape(golden) and int(np.abs(np.subtract(ours, golden)).max()) <= 1


def is_known(name: str, rows: Any, sections: Sections) -> bool:
    """Whether rows are like those of a section of this name, wherever these were read."""
    return any(are_alike(name, rows, old) for section, old in sections.items() if section.split(" in ")[0] == name)


def without_noise(found: Sections, golden: Sections) -> Sections:
    """Returns sections as they were found, but the golden pixels where these are alike."""
    kept = {}
    for section, rows in found.items():
        name = section.split(" in ")[0]
        if not (name.endswith("pixels") and is_known(name, rows, golden)):
            kept[section] = rows
        elif section in golden:
            kept[section] = golden[section]
    return kept
