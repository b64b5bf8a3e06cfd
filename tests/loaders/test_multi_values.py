"""What a MultiLoader's workers may yield beside numpy: PIL images and torch's tensors, as the seed's own users do."""

import gc
import io
import tarfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RunPython
from PIL import Image

from tfds_torch import MultiLoader, World
from tfds_torch.errors import ConfigError

TRANSPORTS = ["shared", "zmq"]
NUM_SAMPLES = 12
UNFIT = {
    "bfloat16": r"a tensor of dtype torch\.bfloat16, which numpy does not have, .*Call `\.float\(\)` on it",
    "sparse": r"a tensor of layout torch\.sparse_coo, .*Call `\.to_dense\(\)` on it",
    "nested": r"a tensor that is nested, .*Yield the list `list\(tensor\.unbind\(\)\)`",
    "jagged": r"a tensor that is nested, ",
    "requires_grad": r"a tensor that requires a gradient, .*Call `\.detach\(\)` on it",
    "quantized": r"a tensor that is quantized, .*Call `\.dequantize\(\)` on it",
    "meta": r"a tensor on the device 'meta', without values",
    "device": r"a tensor on the device 'xpu:1', .*Call `\.cpu\(\)` on it",
}


def tensors(world: World) -> Iterator[Any]:
    """Items of tensors, and what is to come of each."""
    import torch

    grey = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4)
    yield {"x": grey, "y": torch.tensor(2.5), "z": [torch.ones(2, dtype=torch.float16), 7]}
    yield grey.permute(2, 0, 1)
    yield [torch.arange(number) for number in range(20)]
    yield torch.full((3,), 1 + 2j).conj(), torch.full((3,), 1 + 2j).conj().imag
    yield torch.nn.Parameter(torch.ones(3), requires_grad=False)


def unfit(kind: str, world: World) -> Iterator[Any]:
    """Yields a tensor that is not to be carried."""
    import torch

    class Elsewhere(torch.Tensor):
        device = torch.device("xpu", 1)

    torch.set_num_threads(1)  # A forked process has none of the threads that the parent's torch may wait for.
    make = {
        "bfloat16": lambda: torch.ones(3, dtype=torch.bfloat16),
        "sparse": lambda: torch.eye(3).to_sparse(),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]),
        "jagged": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged),
        "requires_grad": lambda: torch.ones(3, requires_grad=True),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.5, 3, torch.quint8),
        "meta": lambda: torch.ones(3, device="meta"),
        "device": lambda: torch.ones(3).as_subclass(Elsewhere),
    }
    yield {"fine": 1, "bad": [make[kind]()]}


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two tars of JPEG, PNG with a palette, and labels."""
    folder, random = tmp_path_factory.mktemp("tars"), np.random.default_rng(3)
    paths = [str(folder / f"train-{shard}.tar") for shard in range(2)]
    for path in paths:
        with tarfile.open(path, "w") as file:
            for number in range(NUM_SAMPLES // 2):
                image = Image.fromarray(random.integers(0, 256, (20 + number, 16, 3), np.uint8))
                for extension, one, kind in (("jpg", image, "JPEG"), ("mask.png", image.quantize(64), "PNG")):
                    content = io.BytesIO()
                    one.save(content, kind)
                    add(file, f"{Path(path).stem}-{number}.{extension}", content.getvalue())
                add(file, f"{Path(path).stem}-{number}.cls", str(number % 3).encode())
    return paths


def add(file: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    file.addfile(member, io.BytesIO(content))


def decoded(paths: list[str], how: str, world: World) -> Any:
    """The samples of tars as WebDataset decodes them; it deals tars by the number of the worker."""
    import webdataset

    found = webdataset.WebDataset(paths, shardshuffle=False, empty_check=False).decode(how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # It leaves its files to the garbage collector.
        yield from found.to_tuple("__key__", "jpg", "mask.png", "cls")
        gc.collect()


@pytest.mark.parametrize(
    ("how", "transport"),
    [
        ("pilrgba", "shared"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("pil", "shared"), ("pil", "zmq"), ("pill", "shared"), ("pill", "zmq"), ("pilrgba", "zmq"))
        ),
    ],
)
def test_samples_that_webdataset_decodes_arrive_as_it_yields_them(tars: list[str], how: str, transport: str) -> None:
    expected = list(decoded(tars, how, World()))
    with MultiLoader(partial(decoded, tars, how), 2, transport=transport, timeout_s=60) as loader:
        came = sorted(loader, key=lambda sample: sample[0])
    assert len(came) == len(expected) == NUM_SAMPLES
    for found, other in zip(came, expected, strict=True):
        assert (found[0], found[3]) == (other[0], other[3])
        for one, image in zip(found[1:3], other[1:3], strict=True):
            assert type(one) is Image.Image
            assert (one.mode, one.size, one.tobytes()) == (image.mode, image.size, image.tobytes())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_tensors_of_the_cpu_arrive_as_arrays(transport: str) -> None:
    with MultiLoader(tensors, 1, transport=transport, timeout_s=60) as loader:
        first, turned, many, complex_numbers, parameter = loader
    grey = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert first["x"].dtype == np.uint8
    np.testing.assert_array_equal(first["x"], grey)
    assert (first["y"].shape, float(first["y"])) == ((), 2.5)
    assert (first["z"][0].dtype, first["z"][1]) == (np.float16, 7)
    np.testing.assert_array_equal(turned, grey.transpose(2, 0, 1))
    assert [one.tolist() for one in many] == [list(range(number)) for number in range(20)]
    assert [one.tolist() for one in complex_numbers] == [[1 - 2j] * 3, [-2.0] * 3]
    assert type(parameter) is np.ndarray


def test_the_examples_of_tensors_are_counted() -> None:
    def batches(world: World) -> Iterator[Any]:
        import torch

        yield torch.zeros(7, 3), torch.zeros(7)

    with MultiLoader(batches, 1, timeout_s=60) as loader:
        list(loader)
        assert loader.stats().examples == 7


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning", "ignore:torch.quantize:UserWarning")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind == "jagged" else ()) for kind in UNFIT]
)
def test_a_tensor_that_no_array_is_equal_to_is_named_with_its_place_and_what_to_do(kind: str) -> None:
    expected = pytest.raises(ConfigError, match=rf"^item\['bad'\]\[0\] is {UNFIT[kind]}")
    with MultiLoader(partial(unfit, kind), 1, timeout_s=60) as loader, expected:
        list(loader)


def test_images_travel_without_torch(run_python: RunPython) -> None:
    done = run_python(
        "-c",
        "import sys\nsys.modules['torch'] = None\n"
        "from PIL import Image\nfrom tfds_torch import MultiLoader\n"
        "images = [Image.new('RGB', (4, 3), (number, 0, 0)) for number in range(20)]\n"
        "with MultiLoader(lambda world: iter([images]), 1) as loader:\n"
        "    (came,) = loader\n"
        "assert [one.getpixel((0, 0))[0] for one in came] == list(range(20))\n"
        "assert sys.modules['torch'] is None",
    )
    assert done.returncode == 0, done.stderr
