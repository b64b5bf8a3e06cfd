"""What runs in a fresh process for test_no_network.py: builds, and what they ask of the network."""

import queue
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any
from unittest import mock

from tfds_torch.demo import preparation as building
from tfds_torch.demo.spec import DemoSpec

_GRACE_S = 60.0


def build_watched(root: str, specs: Sequence[DemoSpec]) -> dict[str, list[str]]:
    """Builds each spec, and returns for each name what was asked of the network, by Python or by tensorflow."""
    asked = {}
    with watched_network() as requests:
        for number, spec in enumerate(specs):
            folder = Path(root, str(number))
            folder.mkdir()
            building.build(spec, str(folder), "", progress=False)
            asked[spec.full_name] = [requests.get() for _ in range(requests.qsize())]
    return asked


def ask_a_bucket(root: str) -> str:
    """Builds, and looks for a file in a bucket; returns what was asked first."""
    with watched_network() as requests:
        building.build(DemoSpec.embedded("photos", 1), root, "", progress=False)
        import tensorflow as tf

        # tensorflow tries again for minutes, and this process ends before.
        Thread(target=tf.io.gfile.exists, args=("gs://tfds-data/dataset_info/mnist",), daemon=True).start()
        return requests.get(timeout=_GRACE_S)


@contextmanager
def watched_network() -> Iterator["queue.Queue[str]"]:
    """Yields a queue of what is asked of the network: by Python's sockets, or of the proxy that builds are sent to."""
    requests: queue.Queue[str] = queue.Queue()

    class Refusing(StreamRequestHandler):
        def handle(self) -> None:
            requests.put(self.rfile.readline().decode("latin-1").strip())

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.getaddrinfo", "socket.connect"):
            requests.put(f"{event} {arguments}")

    with ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        sys.addaudithook(watch)  # For as long as the process lives.
        with mock.patch.object(building, "_NO_PROXY", f"http://127.0.0.1:{server.server_address[1]}"):
            yield requests
        server.shutdown()
