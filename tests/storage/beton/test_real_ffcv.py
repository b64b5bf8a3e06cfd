"""The real FFCV reads what we write. Where it is not installed, the reader of the tests takes its place.

It is looked for beside this interpreter, and in the one that the variable FFCV_PYTHON names.
"""

import io
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from storage.beton.made_files import FIELDS, PAGE, sample_of
from storage.beton.plain_reader import read_plainly
from storage.webdataset.made_tars import write_samples

from tfds_torch.export.api import export_dataset
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.storage.beton.fields import BetonField
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

NUM_SAMPLES = 2000
SCRIPT = Path(__file__).with_name("read_with_ffcv.py")


def find_python() -> str | None:
    return os.environ.get("FFCV_PYTHON") or (sys.executable if find_spec("ffcv") else None)


def read_with_ffcv(python: str, path: Path, os_cache: bool) -> Any:
    result = path.with_suffix(f".{os_cache}.npz")
    command = [python, str(SCRIPT), str(path), str(result), str(int(os_cache))]
    done = subprocess.run(
        command, cwd=path.parent, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return np.load(result)


def photographs(number: int) -> dict[str, Any]:
    pixels = sample_of(number, (32, 40))["image"]
    return {"photo": pixels, "grey": encode(pixels, "L"), "scans": encode(pixels, "RGB", progressive=True)}


def encode(pixels: Any, mode: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def decode(image: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))


@pytest.mark.slow
def test_ffcv_reads_every_field_of_our_files(tmp_path: Path) -> None:
    path = tmp_path / "a.beton"
    fields: dict[str, BetonField] = {**FIELDS, "photo": BetonImage("jpg"), "grey": BetonImage(), "scans": BetonImage()}
    samples = [sample_of(number) | {"text": b"%05d" % number} | photographs(number) for number in range(NUM_SAMPLES)]
    with BetonWriter(path, fields, NUM_SAMPLES, page_size=PAGE, name="a name", class_names={"label": ["a"]}) as writer:
        for number in np.random.default_rng(0).permutation(NUM_SAMPLES).tolist():
            writer.add(samples[number], number, id=f"id {number}")
    _, plain = read_plainly(path.read_bytes())
    assert [sample["image"][3] for sample in plain] == [sample["image"].tobytes() for sample in samples]
    assert [sample["facts"] for sample in plain] == [sample["facts"] for sample in samples]
    python = find_python()
    for os_cache in (False, True) if python else ():
        found = read_with_ffcv(str(python), path, os_cache)
        assert (found["image"] == np.stack([sample["image"] for sample in samples])).all()
        assert found["label"].ravel().tolist() == [sample["label"] for sample in samples]
        assert found["score"].ravel().tolist() == [sample["score"] for sample in samples]
        assert [row.tobytes() for row in found["text"]] == [sample["text"] for sample in samples]
        assert found["facts"].tolist() == [repr(sample["facts"]) for sample in samples]
        assert (found["box"] == np.stack([sample["box"] for sample in samples])).all()
        assert (found["codes"] == np.stack([sample["codes"] for sample in samples])).all()
        for name in ("photo", "grey", "scans"):
            decoded = np.stack([decode(sample[name][3]) for sample in plain])
            assert np.abs(found[name].astype(int) - decoded).mean() < 3, name  # FFCV decodes by the fast transform.


@pytest.mark.slow
def test_ffcv_reads_what_was_exported_from_tars(tmp_path: Path) -> None:
    samples = [
        {
            "__key__": f"{number:04d}",
            "jpg": encode(sample_of(number, (32, 40))["image"], "RGB"),
            "cls": number % 7,
            "json": {"number": number, "said": "grün"},
        }
        for number in range(300)
    ]
    tars = [write_samples(tmp_path / f"a-{shard}.tar", samples[shard * 100 :][:100]) for shard in range(3)]
    parser = ParserWebDataset(tars, {"image": "jpg", "label": "cls", "facts": "json"})
    path = tmp_path / "a.beton"
    assert export_dataset(parser, path, format="beton", num_workers=2).num_reencoded == 0
    _, plain = read_plainly(path.read_bytes())
    assert [sample["image"][3] for sample in plain] == [sample["jpg"] for sample in samples]
    assert [(sample["label"], sample["facts"]) for sample in plain] == [(one["cls"], one["json"]) for one in samples]
    python = find_python()
    for os_cache in (False, True) if python else ():
        found = read_with_ffcv(str(python), path, os_cache)
        assert found["label"].ravel().tolist() == [sample["cls"] for sample in samples]
        assert found["facts"].tolist() == [repr(sample["json"]) for sample in samples]
        decoded = np.stack([decode(sample["jpg"]) for sample in samples])  # type: ignore[arg-type]
        assert np.abs(found["image"].astype(int) - decoded).mean() < 3
