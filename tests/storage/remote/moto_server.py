"""moto's S3 server in a process of its own: `python moto_server.py` prints its port, and ends with standard input."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen


class MotoServer:
    """S3 of moto, filled by plain HTTP requests."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"

    def make_bucket(self, name: str) -> None:
        self._put(name, b"")

    def put(self, bucket: str, path: str, content: bytes) -> str:
        self._put(f"{bucket}/{path}", content)
        return f"s3://{bucket}/{path}"

    def _put(self, path: str, content: bytes) -> None:
        request = Request(f"{self.endpoint}/{path}", data=content, method="PUT")
        request.add_header("Content-Type", "application/octet-stream")
        # moto takes the bucket's region from the signature.
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request")
        with urlopen(request, timeout=30):
            pass


@contextmanager
def moto_server(python: str) -> Iterator[MotoServer]:
    process = subprocess.Popen(
        [python, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
    )
    try:
        yield MotoServer(json.loads(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


if __name__ == "__main__":
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    print(json.dumps(server.get_host_and_port()[1]), flush=True)
    sys.stdin.read()
    os._exit(0)
