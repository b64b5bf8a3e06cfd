"""The examples do what they say."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision_build

from tfds_torch import demo

EXAMPLES = Path(__file__).parents[1] / "examples"
TRAIN, TRAIN_DDP = str(EXAMPLES / "train.py"), str(EXAMPLES / "train_ddp.py")
TRAIN_TIMM, NOTEBOOK = EXAMPLES / "train_timm.sh", EXAMPLES / "finetune_notebook.ipynb"
EPOCHS = "5"  # Room for a busy machine: a signal may come some epochs late.

# timm's train.py has many more options than the script that stands for it here.
STAND_IN = """
import argparse, runpy

argparse.ArgumentParser.parse_args = lambda self: self.parse_known_args()[0]
runpy.run_path({script!r}, run_name="__main__")
"""


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def weights_in(state):
    return torch.load(state)["model"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a run that nobody stops prints, and its state."""
    state = tmp_path_factory.mktemp("trained") / "state.pt"
    command = [sys.executable, TRAIN, "--epochs", EPOCHS, "--state", str(state)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, state


@pytest.mark.slow
def test_train_learns_the_digits_with_an_exact_evaluation(trained):
    *epochs, last = trained[0].splitlines()
    assert [line.partition(":")[0] for line in epochs] == [f"epoch {number}" for number in range(int(EPOCHS))]
    percent, examples = re.fullmatch(r"test accuracy ([\d.]+)% \(\d+ of (\d+)\)", last).groups()
    assert int(examples) == 360
    assert float(percent) >= 95


@pytest.mark.slow
def test_train_that_is_stopped_and_killed_ends_with_the_weights_of_one_that_is_not(trained, tmp_path):
    output, wanted = trained
    state = tmp_path / "state.pt"
    command = [sys.executable, "-u", TRAIN, "--epochs", EPOCHS, "--state", str(state)]

    def run_until(line, action):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert next(shown for shown in process.stdout if shown.startswith(line))
            action(process)
            rest = process.stdout.read()
        return process.returncode, rest

    # As a terminal does: to the process and to its workers.
    code, rest = run_until("epoch 0:", lambda process: os.killpg(process.pid, signal.SIGINT))
    assert code == 130
    # On a busy machine it comes an epoch later.
    stopped = re.fullmatch(r"(?:epoch \d: .*\n)*stopped in epoch (\d); the same command goes on\n", rest)
    assert stopped, rest
    assert run_until(f"epoch {stopped[1]}:", lambda process: process.kill())[0] == -signal.SIGKILL
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.startswith(tuple(f"epoch {number}" for number in range(int(stopped[1]) + 1)))
    assert done.stdout.splitlines()[-1] == output.splitlines()[-1]
    torch.testing.assert_close(weights_in(state), weights_in(wanted))


@pytest.mark.campaign
def test_a_mixture_that_is_stopped_shows_what_one_that_is_not_shows(tmp_path):
    command = [sys.executable, "-u", str(EXAMPLES / "mixture.py"), "--epochs", "4"]
    whole = subprocess.run(command, capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    shares = "digits 50.0%, more digits 30.0%, photos 20.0%"
    assert whole.stdout.splitlines()[:-1] == [f"epoch {epoch}: 2,880 examples: {shares}" for epoch in range(4)]
    state = ["--state", str(tmp_path / "mixture.json")]
    with subprocess.Popen([*command, *state], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout.readline().startswith("epoch 0: ")
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 130
    assert "the same command goes on" in rest
    done = subprocess.run([*command, *state, "--workers", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]


@pytest.mark.slow
def test_train_ddp_evaluates_every_example_once_on_two_ranks(run_python):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run_python(*torchrun, TRAIN_DDP, "--epochs", "2", env={"GLOO_SOCKET_IFNAME": "lo"})
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    shape = r"epoch \d, 12 batches on each of 2 ranks: loss [\d.]+, accuracy ([\d.]+)% \((\d+) of 360 = 192 \+ 168\)"
    percent, correct = re.fullmatch(shape, last).groups()
    assert float(percent) == pytest.approx(int(correct) / 3.6, abs=0.05)
    assert int(correct) > int(re.fullmatch(shape, first).group(2))


@pytest.fixture
def timm_environment(tmp_path, root):
    """An environment in which timm can be imported, and one thread trains."""
    torchvision_build.write_startup(tmp_path / "site")
    paths = [str(tmp_path / "site"), str(root)]
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return {"PYTHONPATH": os.pathsep.join(paths), "PATH": os.pathsep.join(programs), "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_train_timm_runs_a_script_of_timms_shape_on_our_loaders(tmp_path, timm_environment):
    script = tmp_path / "train.py"
    script.write_text(STAND_IN.format(script=str(EXAMPLES.parent / "tests" / "integrations" / "timm_train.py")))
    data = demo.prepare("digits", progress=False)
    done = subprocess.run(
        [TRAIN_TIMM, script, "--epochs", "1", "--train-split", "train[:300]"],
        env={**os.environ, **timm_environment, "DATA_DIR": str(data)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"digits is in {data}; ")
    shown = json.loads(done.stdout.splitlines()[-1])
    assert len(shown["epochs"]) == 1
    assert shown["epochs"][0]["top1"] == pytest.approx(shown["alone"]["top1"], rel=1e-6)


def test_train_timm_without_a_script_says_its_usage(tmp_path):
    done = subprocess.run([TRAIN_TIMM], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "usage: train_timm.sh TRAIN_PY [ARGUMENT ...]" in done.stderr


@pytest.mark.slow
def test_the_notebook_runs_and_shows_a_bar_pictures_and_nothing_of_tensorflow(timm_environment, tmp_path, monkeypatch):
    import nbformat  # Of requirements/slow.txt, as the next one.
    from nbclient import NotebookClient

    for name, value in timm_environment.items():
        monkeypatch.setenv(name, value)
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):  # Not the user's own.
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    complaints = [output.text for output in outputs if output.get("name") == "stderr"]
    assert [line for text in complaints for line in text.splitlines() if "building the demo dataset" not in line] == []
    shown = [output.data for output in outputs if "data" in output]
    assert sum("image/png" in data for data in shown) == 2
    bars = [data["text/plain"] for data in shown if "application/vnd.jupyter.widget-view+json" in data]
    assert [bar.partition("|")[2].split("|")[1].split()[0] for bar in bars] == ["0/5"] * 3
    told = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert float(re.findall(r"accuracy ([\d.]+)%", told)[-1]) >= 90


def test_the_notebook_is_kept_without_outputs():
    cells = code_cells(json.loads(NOTEBOOK.read_text()))
    assert len(cells) >= 5
    for cell in cells:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize(
    "path", [path for path in sorted(EXAMPLES.iterdir()) if path.is_file()], ids=lambda path: path.name
)
def test_an_example_is_short_says_its_command_and_uses_the_public_api_only(path):
    source = path.read_text()
    if path.suffix == ".ipynb":
        notebook = json.loads(source)
        source = "\n".join("".join(cell["source"]) for cell in code_cells(notebook))
        assert path.name in "".join(notebook["cells"][0]["source"])
    else:
        assert re.search(rf"^#? +(\S+ )*examples/{path.name}", source, re.MULTILINE)
    assert len(source.splitlines()) < 120
    if path.suffix != ".sh":
        assert set(re.findall(r"^(?:from|import) (tfds_torch\S*)", source, re.MULTILINE)) == {"tfds_torch"}
