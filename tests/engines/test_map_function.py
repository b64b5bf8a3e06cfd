"""Functions of the user are found by name. (What they do to images: tests/parsers/test_preprocess.py.)"""

import math
import re

import numpy as np
import pytest

from tfds_torch import TrainPreprocess
from tfds_torch.engines import map_function
from tfds_torch.engines.map_function import find_map_function
from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import draw_seeds


def test_a_function_is_found_by_its_name_or_is_itself() -> None:
    assert find_map_function("math:sqrt") is math.sqrt
    assert find_map_function(math.sqrt) is math.sqrt
    assert find_map_function("os.path:join").__name__ == "join"


def test_a_name_that_leads_nowhere_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "falls_over.py").write_text("raise RuntimeError('it rains')")
    monkeypatch.syspath_prepend(tmp_path)
    for name, message in (
        ("no_such:f", "map_fn='no_such:f': the module 'no_such' cannot be imported: ModuleNotFoundError: No module"),
        ("falls_over:f", "map_fn='falls_over:f': the module 'falls_over' cannot be imported: RuntimeError: it rains."),
        ("math:no_such", "map_fn='math:no_such': the module 'math' has no function 'no_such'."),
        ("math:pi", "map_fn='math:pi': the module 'math' has no function 'pi'."),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            find_map_function(name)


def test_a_function_draws_by_the_sample_key_and_so_anew_in_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recording:
        def __init__(self, *arguments: object) -> None:
            """Nothing is traced."""

        def apply(self, pixels: object, seeds: np.ndarray) -> np.ndarray:
            return seeds

    monkeypatch.setattr(map_function, "ImageMap", Recording)
    monkeypatch.setattr(map_function, "load_tensorflow", lambda user: None)
    apply = map_function.make_map(TrainPreprocess(8, map_fn="a:b"), "RGB", 3)
    assert apply is not None
    keys = np.array([5, 5 + 41, 5 + 2 * 41])  # One example of 41, in three passes.
    seeds = apply(np.zeros((3, 8, 8, 3), np.uint8), keys)
    assert len({tuple(seed) for seed in seeds.tolist()}) == 3
    np.testing.assert_array_equal(seeds, draw_seeds(keys, 3))
