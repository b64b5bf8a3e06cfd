"""Files that are not waited for until they are on the disk: what a machine keeps that loses power, no test can see."""

import os

import pytest


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `os.fsync` return at once, here and in what is forked; it is called all the same."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
