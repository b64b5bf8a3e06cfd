"""The README's Python blocks run as they stand, and its claims about commands hold."""

import os
import re
from pathlib import Path

import pytest
from zygote import Script, forked_instead_of_fresh, torch_zygote

from tfds_torch import demo

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_readme_has_python_blocks_and_no_other_code_marked_as_such():
    assert len(BLOCKS) == README.count("```python") >= 2


# Lightning imports torchvision, whose operators cannot be loaded everywhere.
RUN = """
import runpy, sys
from tfds_torch.bench.peers.timm_reader import declare_torchvision_operators
held = declare_torchvision_operators()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_the_first_python_block_runs_where_torch_has_been_imported(tmp_path: Path) -> None:
    """The quick one; the slow ones are scripts of their own."""
    (parameters,) = re.findall(r"^root = demo.prepare\((.*?)\)", BLOCKS[0], re.MULTILINE)
    with forked_instead_of_fresh():  # Where the block then finds it.
        assert eval(f"demo.prepare({parameters}, progress=False)", {"demo": demo}).is_dir()
    script = tmp_path / "block_0.py"
    script.write_text(BLOCKS[0])
    done = Script(torch_zygote(), [str(script)], os.environ, tmp_path).finish()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6 batches, 96 examples, ")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_block_runs_verbatim(number, tmp_path, run_python):
    script = tmp_path / f"block_{number}.py"
    script.write_text(BLOCKS[number])
    result = run_python("-c", RUN, str(script))
    assert result.returncode == 0, result.stderr


def test_every_room_is_on_the_map():
    rooms = {path.parent.name for path in (ROOT / "tfds_torch").glob("*/__init__.py")}
    assert rooms == set(re.findall(r"^  (\w+)/ ", README, re.MULTILINE))


def test_the_tests_that_the_mental_model_names_are_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "tfds_torch" / "README.md").read_text())
    assert len(named) >= 8, "a test for every promise of mode index"
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"
