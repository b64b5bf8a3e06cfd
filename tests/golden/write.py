"""`python -m golden.write [CASE ...]`, run in `tests`: writes the golden files anew, all or those of some cases.

An issue that changes a golden line on purpose commits the diff and says why. Any other diff is a mistake.
"""

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from servers.s3_server import S3Server

from golden.cases import CASES, write_data
from golden.contents import contents_of, dump, golden_file, load, without_noise


def main(chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, S3Server() as server:
        os.environ.update(server.environ, XDG_CACHE_HOME=f"{folder}/cache")
        data = write_data(Path(folder) / "data")
        data = replace(data, bucket=server.fill(data.folder / "tfds", "golden"))
        for case in chosen or CASES:
            golden = load(case) if golden_file(case).exists() else {}
            golden_file(case).write_text(dump(without_noise(contents_of(case, data), golden)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
