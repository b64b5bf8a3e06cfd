"""S3Server: moto's S3, in a process and an environment of its own, and what a client finds in its variables.

moto answers ranges (open ones and suffixes, too), ETags (MD5 of the object), If-Match (412) and multipart uploads, over
connections that it keeps. It does not check signatures.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from servers.uploads import ask, upload

from benchmarks.server_process import ServerProcess, listen

if TYPE_CHECKING:
    from obstore.store import S3Store

NEEDS_MOTO = "needs the environment of moto, which was not installed"
"""Why tests are skipped where `find_moto` returns None."""
_OWN = Path(__file__).parents[2] / ".venv" / "moto" / "bin" / "python"
_MAIN = Path(__file__).with_name("moto_main.py")
REGION = "us-east-1"


def find_moto() -> str | None:
    """Returns an interpreter that can import moto: MOTO_PYTHON, `make test`'s or this one."""
    if named := os.environ.get("MOTO_PYTHON"):
        return named
    if _OWN.exists():
        return str(_OWN)
    return sys.executable if importlib.util.find_spec("moto") else None


def s3_environ(endpoint: str) -> dict[str, str]:
    """Returns the variables with which s3:// is read from a server of the tests."""
    return {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class S3Server:
    """moto's server of S3, which ends with `end`, a `with` statement or this process.

    Raises:
        ServerError: it does not start.
        FileNotFoundError: it is not installed.
    """

    def __init__(self) -> None:
        if (python := find_moto()) is None:
            raise FileNotFoundError(NEEDS_MOTO)
        listener = listen()
        command = [python, "-P", str(_MAIN), str(listener.fileno())]
        self.process = ServerProcess(command, listener=listener)
        self.url = f"http://127.0.0.1:{self.process.port}"
        self.environ = s3_environ(self.url)
        self.process.begin(lambda: ask(self.url, "GET"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Kills the server; does nothing when that was done already."""
        self.process.end()

    def store(self, bucket: str) -> "S3Store":
        """Returns obstore's client of a bucket, whatever the environment says."""
        from obstore.store import S3Store

        options = {"access_key_id": "tests", "secret_access_key": "secret-of-the-tests"}
        return S3Store(bucket, endpoint=self.url, region=REGION, client_options={"allow_http": True}, **options)

    def fill(self, folder: Path, bucket: str, prefix: str = "", *, is_public: bool = False) -> str:
        """Uploads a folder's files, into a bucket that is made where there is none; returns the folder's URL.

        Args:
            folder: its files, those of its folders included.
            bucket: its name.
            prefix: goes before the files' names.
            is_public: whether the files may be read without a signature.
        """
        ask(f"{self.url}/{bucket}", "PUT")
        for name in upload(folder, self.store(bucket), prefix):
            if is_public:
                ask(f"{self.url}/{bucket}/{quote(name)}?acl", "PUT", x_amz_acl="public-read", Authorization="any")
        return "/".join([f"s3://{bucket}", *filter(None, [prefix])])
