"""Plain cases give what is committed in the golden files, in every world.

An issue that changes a golden line on purpose writes the files anew (`python -m golden.write` in `tests`), commits the
diff and says why.
"""

from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

import pytest
from servers.s3_server import S3Server

from golden.cases import CASES, Data, write_data
from golden.contents import contents_of, dump, golden_file, load, without_noise


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return write_data(tmp_path_factory.mktemp("golden"))


@pytest.fixture
def data(written: Data, case: str, request: pytest.FixtureRequest) -> Data:
    """The datasets; TFDS's are in the bucket, too, where a case reads it."""
    if case != "bucket":
        return written
    server: S3Server = request.getfixturevalue("s3_server")
    return replace(written, bucket=server.fill(written.folder / "tfds", "golden"))


@pytest.mark.parametrize("case", CASES)
def test_contents_are_the_golden_ones(case: str, data: Data) -> None:
    golden = load(case)
    now = without_noise(contents_of(case, data), golden)
    changes = unified_diff(dump(golden).splitlines(), dump(now).splitlines(), "golden", "now", n=1, lineterm="")
    assert not (text := "\n".join(changes)), text


def test_every_golden_file_is_of_a_case() -> None:
    assert sorted(Path(__file__).parent.glob("*.json")) == sorted(map(golden_file, CASES))
