"""Training that is killed at any moment, and goes on in another world, delivers what an uninterrupted one delivers."""

import multiprocessing
import os
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest
from runtime.ended import wait_until_ended
from torchdata.stateful_dataloader import StatefulDataLoader

from tfds_torch import ImageDataset, ParserTfds
from tfds_torch.runtime import worker_start
from torch_data.killing import GRACE_S, Campaign, Place, kill_and_compare

CHOSEN = [
    *(("own dataset", "all"), ("own dataset, chosen", "subset"), ("own dataset, chosen", "classes")),
    *(("numbered, chosen", "subset"), ("numbered, chosen", "weighted"), ("own dataset, chosen", "weighted")),
    ("own dataset, chosen", "classes of a subset"),
]
WINDOWS = (("windows", "all"), ("mixture of windows", "by weights"))
QUICK = (("own dataset", "all"), ("numbered, chosen", "subset"), ("own dataset, chosen", "classes"))
OVER_PARSERS = ("Loader", "MultiLoader", "DataLoader", "StatefulDataLoader")
CAMPAIGNS = [
    *(Campaign(kind) for kind in OVER_PARSERS),
    Campaign("create_loader(rows)", "rows", "first 24", num_kills=5),
    *(Campaign("any", *reads, num_kills=5) for reads in (*QUICK, ("numbered, chosen", "weighted"), *WINDOWS)),
]
LONG_CAMPAIGNS = [
    *(Campaign(kind, is_seeded=True) for kind in OVER_PARSERS if kind != "MultiLoader"),
    Campaign("create_loader(rows)", "rows", "first 24", num_kills=40),
    *(Campaign("any", *reads, num_kills=40) for reads in (*CHOSEN, *WINDOWS, ("windows, chosen", "subset"))),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "campaign",
    [
        *(pytest.param(campaign, id=str(campaign)) for campaign in CAMPAIGNS),
        *(pytest.param(campaign, id=str(campaign), marks=pytest.mark.campaign) for campaign in LONG_CAMPAIGNS),
    ],
)
def test_killed_training_that_goes_on_in_other_worlds_loses_and_repeats_nothing(
    campaign: Campaign, numbered_root: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    kill_and_compare(campaign, Place(numbered_root), tmp_path, pytestconfig)


def begin_and_hang(link: Connection, root: str) -> None:
    """Starts a worker that does not get to its loop before this process is dead, and has not been given any work."""
    parent = os.getpid()
    worker_start._PARENT_CHECK_S = 0.1  # Of this process and its worker.
    warnings.simplefilter("ignore")  # Torchdata calls what torch has deprecated.

    def tell_and_wait(worker: int) -> None:
        link.send(os.getpid())
        while os.getppid() == parent:
            time.sleep(0.01)

    dataset = ImageDataset(ParserTfds(root, "numbered", is_training=True, batch_size=4), fields=("index",))
    # It waits for its worker to say that it is there.
    iter(StatefulDataLoader(dataset, 4, num_workers=1, worker_init_fn=tell_and_wait, multiprocessing_context="fork"))


def test_a_worker_that_begins_after_its_parent_was_killed_ends(numbered_root: str) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    parent = context.Process(target=begin_and_hang, args=(theirs, numbered_root))
    parent.start()
    theirs.close()
    assert ours.poll(GRACE_S)
    worker = psutil.Process(ours.recv())
    parent.kill()
    parent.join()
    assert wait_until_ended([worker], GRACE_S) == []
