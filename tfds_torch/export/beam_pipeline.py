"""make_pipeline: an empty pipeline of Apache Beam, from what a user says of its runner and options."""

import importlib.util
import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted

_USUAL = ("DirectRunner", "FnApiRunner", "PrismRunner", "FlinkRunner", "SparkRunner", "DataflowRunner")
_OF_THIS_MACHINE = ("apache_beam.runners.direct.", "apache_beam.runners.portability.fn_api_runner.")
"""Modules of runners that hand no option to anybody else."""
_OPTION = re.compile(r"(?:--)?([A-Za-z][\w-]*)(?:=.*)?", re.DOTALL)


def make_pipeline(name: object, options: Sequence[str]) -> Any:
    """Returns a pipeline without steps.

    Args:
        name: of the runner: one of Beam's, also without "Runner", in any case, or the full name of a class.
        options: of the pipeline, such as "direct_num_workers=2", with or without "--".

    Raises:
        ConfigError: Beam is not installed, there is no such runner, or the options cannot be read or do not suit it.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"beam_runner={quoted(name)} must be the name of a runner, such as {', '.join(_USUAL)}.")
    is_sequence = isinstance(options, Sequence) and not isinstance(options, str | bytes)
    if not is_sequence or not all(isinstance(one, str) for one in options):
        raise ConfigError(
            f"beam_options={quoted(options)} must be a sequence of texts NAME=VALUE, such as ['parallelism=8']."
        )
    if importlib.util.find_spec("apache_beam") is None:
        raise ConfigError(
            f"beam_runner={quoted(name)} (--beam-runner): Apache Beam is not installed: "
            f"`pip install 'tfds-torch[beam]'`, best into an environment of its own."
        )
    import apache_beam as beam

    runner = _make_runner(name)
    made = _make_options(options, is_local=type(runner).__module__.startswith(_OF_THIS_MACHINE))
    try:
        return beam.Pipeline(runner=runner, options=made)
    except ValueError as error:
        said = " ".join(line.strip() for line in str(error).splitlines())
        raise ConfigError(f"beam_options (--beam-options) do not suit {name}: {said}") from error


def _make_runner(name: str) -> Any:
    from apache_beam.options.pipeline_options import StandardOptions
    from apache_beam.runners.runner import create_runner

    try:
        return create_runner(name)
    except ValueError:
        raise ConfigError(
            f"beam_runner={quoted(name)} (--beam-runner) is not a runner of Beam's: choose {', '.join(_USUAL)}, or the "
            f"full name of a class.{did_you_mean(name, StandardOptions.KNOWN_RUNNER_NAMES)}"
        ) from None
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"beam_runner={quoted(name)} (--beam-runner) cannot be had: {error}.") from error


def _make_options(options: Sequence[str], is_local: bool) -> Any:
    from apache_beam.options.pipeline_options import PipelineOptions

    for one in options:
        said = _OPTION.fullmatch(one)
        if said is None or said[1] == "help":
            raise ConfigError(
                f"beam_options (--beam-options): {quoted(one)} must have the form NAME=VALUE, or be a NAME."
            )
        if said[1] == "runner":
            raise ConfigError("beam_options (--beam-options): the runner is named by beam_runner (--beam-runner).")
    output = io.StringIO()  # argparse's: all that can be given, and then what is wrong.
    try:
        with redirect_stderr(output):
            made = PipelineOptions([f"--{one.removeprefix('--')}" for one in options])
            given = made.get_all_options(retain_unknown_options=True)
    except SystemExit:
        why = output.getvalue().strip().rpartition("error: ")[2]
        raise ConfigError(
            f"beam_options (--beam-options) {quoted(' '.join(options))}: Beam refuses them: {why}."
        ) from None
    known = PipelineOptions([]).get_all_options()
    if is_local and (unknown := sorted(given.keys() - known.keys())):  # Others hand them to their servers.
        raise ConfigError(
            f"beam_options (--beam-options): {quoted(unknown[0])} has no effect on a runner of this machine: leave it "
            f"out.{did_you_mean(unknown[0], known)}"
        )
    return made
