"""Two forked processes fill pages of one file, as an export's workers do."""

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
from storage.beton.made_files import FIELDS, PAGE, sample_of

from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.verify import verify
from tfds_torch.storage.beton.writer import BetonWriter

NUM_SAMPLES = 40


def write_share(writer: BetonWriter, numbers: range, parts: Any) -> None:
    pages = writer.page_writer()
    for number in numbers:
        pages.add([sample_of(number, (300, 400))[name] for name in FIELDS], number, str(number))
    parts.put(pages.close())


def test_processes_share_a_counter_of_pages_and_hand_back_what_they_wrote(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    number_of_page, parts = fork.Value("q", 0), fork.SimpleQueue()

    def take_page() -> int:
        with number_of_page.get_lock():
            number_of_page.value += 1
            return int(number_of_page.value) - 1

    with BetonWriter(tmp_path / "a.beton", FIELDS, NUM_SAMPLES, page_size=PAGE, take_page=take_page) as writer:
        shares = [range(start, NUM_SAMPLES, 2) for start in range(2)]
        processes = [fork.Process(target=write_share, args=(writer, share, parts)) for share in shares]
        for process in processes:
            process.start()
        for _ in processes:
            writer.include(parts.get())
        for process in processes:
            process.join()
    assert verify(tmp_path / "a.beton").num_pages >= 8
    source = BetonSource(tmp_path / "a.beton")
    assert list(source.ids(np.arange(NUM_SAMPLES))) == [str(number) for number in range(NUM_SAMPLES)]
    columns = source.read(np.arange(NUM_SAMPLES), ["image", "label"])
    assert columns["label"].tolist() == [number % 3 for number in range(NUM_SAMPLES)]
    assert all((image == sample_of(n, (300, 400))["image"]).all() for n, image in enumerate(columns["image"]))
