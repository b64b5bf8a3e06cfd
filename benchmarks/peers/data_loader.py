"""torch's `DataLoader` over rows by number: of `tfds.data_source`, or of Hugging Face `datasets` (the option `rows`).

Configured as both documentations do it for training: `shuffle=True`, batches collated in the workers by torch's
default, persistent workers. `data_source` reads ArrayRecord files in TFDS's layout; Hugging Face reads Arrow files with
the encoded images, and transforms them by `with_transform`. Both decode whole images, by their own features.
"""

from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.protocol import Epochs, Task, serve
from benchmarks.transform import read_tars, transform_of


class TransformedRows:
    """Rows of `tfds.data_source` as (image, label), by the transform of a task. Picklable."""

    def __init__(self, rows: Any, task: Task) -> None:
        self.rows = rows
        self.transform = transform_of(task)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        """Returns image (uint8 [3, H, W]) and label of a row."""
        row = self.rows[number]  # Its image is numpy uint8 [H, W, 3].
        return self.transform(Image.fromarray(row["image"])), int(row["label"])


class TransformedBatch:
    """What `with_transform` calls with some rows, as lists by name. Picklable."""

    def __init__(self, task: Task) -> None:
        self.transform = transform_of(task)

    def __call__(self, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Returns the rows with their images as uint8 [3, H, W]."""
        return {**rows, "image": [self.transform(image.convert("RGB")) for image in rows["image"]]}


def prepare(task: Task) -> None:
    """Writes the dataset as ArrayRecord files of TFDS's layout, and as Arrow files with the same encoded images."""
    import datasets

    from tfds_torch import ParserTfds, export_dataset

    folder = f"{task.files}/{task.dataset}/1.0.0"
    export_dataset(ParserTfds(task.data_dir, task.dataset), folder, format="array_record")
    examples = [{"image": {"bytes": image, "path": None}, "label": label} for image, label in read_tars(task.tars)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    datasets.Dataset.from_list(examples, features=features).save_to_disk(f"{task.files}/arrow")


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        _rows_of(task),
        batch_size=task.batch_size,
        shuffle=task.is_training,
        num_workers=task.num_workers,
        persistent_workers=task.num_workers > 0,
    )
    return lambda epoch: (_image_of(batch) for batch in loader)


def _rows_of(task: Task) -> Any:
    if task.options["rows"] == "data_source":
        import tensorflow_datasets as tfds

        (folder,) = (Path(task.files) / task.dataset).iterdir()
        return TransformedRows(tfds.builder_from_directory(folder).as_data_source("train"), task)
    import datasets

    return datasets.load_from_disk(f"{task.files}/arrow").with_transform(TransformedBatch(task))


def _image_of(batch: Any) -> Any:
    return batch["image"] if isinstance(batch, dict) else batch[0]


if __name__ == "__main__":
    serve(load, ("tensorflow-datasets", "array-record", "datasets", "torch"), prepare=prepare)
