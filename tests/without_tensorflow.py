"""The tests where tensorflow is not installed (`make test-slim`): what needs it is skipped, if its error says so.

`allowed_skips.txt` names those of `make test-slim`: a test that begins to need tensorflow fails that run.
"""

import re
from collections.abc import Generator
from typing import Any

import pytest

from tfds_torch.engines.tensorflow_runtime import is_tensorflow_installed

DATASETS = "TFDS_TORCH_TEST_DATASETS"
"""The environment variable that names the datasets of the tests, which only TFDS with tensorflow can build."""
_SAYS_SO = re.compile(r"tensorflow is not installed|No module named 'tensorflow'|tensorflow, which is not installed")


class WithoutTensorflow:
    """A plugin of pytest: a test that fails for want of tensorflow is skipped."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: "pytest.CallInfo[None]"
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None and _SAYS_SO.search(_whole_text(call.excinfo.value)):
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, "Skipped: needs tensorflow")
        return report


def _whole_text(error: BaseException) -> str:
    """Returns the messages of an error and of those behind it."""
    texts: list[str] = []
    following: Any = error
    while following is not None:
        texts.append(str(following))
        following = following.__cause__ or following.__context__
    return "\n".join(texts)


def install(config: pytest.Config) -> None:
    """Registers the plugin where tensorflow is not installed."""
    if not is_tensorflow_installed():
        config.pluginmanager.register(WithoutTensorflow())
