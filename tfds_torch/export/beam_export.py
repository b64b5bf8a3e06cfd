"""BeamRunner: the shards of an export are written by an Apache Beam pipeline, on one machine or on many.

`Create(range(num_shards)) | Reshuffle | Map(write_shard)`. What the workers need - plan, content and folder - lies in
the export's own folder as long as the pipeline runs, in `.export-<split>-<random>.job`: a pipeline may be limited to a
few megabytes. A worker that does not find it has not mounted the folder, or belongs to an export that has ended; it
writes nothing. The process that wrote a shard notes it and then renames it, so that an attempt that is killed leaves
none, and attempts that are made twice put the same bytes in the same place.

Each shard is written by a fresh process, which has none of the worker's threads and connections. If it dies, that is an
exception in the worker, and most runners try the shard again.
"""

import importlib.util
import io
import pickle
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from tfds_torch import __version__
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.folder import KEPT, ShardFolder, has_size
from tfds_torch.export.shard_file import write_for_good
from tfds_torch.export.workers import Progress
from tfds_torch.export.write_shards import DoneShard, WriteShards
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted

_LOOK_S = 0.5
_USUAL = ("DirectRunner", "FnApiRunner", "PrismRunner", "FlinkRunner", "SparkRunner", "DataflowRunner")
_OF_THIS_MACHINE = ("apache_beam.runners.direct.", "apache_beam.runners.portability.fn_api_runner.")
"""Modules of the runners that pass no option on."""
_OPTION = re.compile(r"(?:--)?([A-Za-z][\w-]*)(?:=.*)?", re.DOTALL)


class BeamRunner:
    """Runs an Apache Beam pipeline; `make_pipeline` explains the arguments and errors."""

    def __init__(self, name: object, options: Sequence[str]) -> None:
        self._pipeline = make_pipeline(name, options)
        self.name = str(name)

    def write(self, job: WriteShards, progress: Progress | None) -> list[DoneShard]:
        """Runs the pipeline to its end, and returns all shards, in order; an ExportError: shards are missing."""
        path = job.folder.path / f".{job.folder.manifest.stem}-{secrets.token_hex(8)}.job"
        write_for_good(path, _pickle(job))
        try:
            self._run(path, job, progress)
        finally:
            path.unlink(missing_ok=True)  # Workers that are left begin no shard any more.
        return self._look(job)

    def _run(self, path: Path, job: WriteShards, progress: Progress | None) -> None:
        import apache_beam as beam

        plan, folder = job.plan, job.folder
        numbers = self._pipeline | "shards" >> beam.Create(range(plan.num_shards))
        numbers | "to all workers" >> beam.Reshuffle() | "write" >> beam.Map(_WriteShard(str(path)))
        result = None
        with _noted_signals(path) as signals:
            try:
                result = self._pipeline.run()  # In this thread: some runners set signal handlers.
                ending = _Ending(result)
                while not ending.wait(_LOOK_S) and not signals:
                    if progress is not None:
                        num_done = min(len(job.noted) + folder.num_noted(), plan.num_shards)
                        progress(plan.num_examples * num_done // plan.num_shards, plan.num_examples)
                if signals:
                    raise KeyboardInterrupt
                if ending.state not in ("DONE", "UNKNOWN"):
                    raise RuntimeError(f"the pipeline ended in the state {ending.state}")
            except (Exception, KeyboardInterrupt) as error:  # Of the runner's own types.
                with suppress(Exception):  # Not all runners can.
                    if result is not None:
                        result.cancel()
                if isinstance(error, Exception) and not signals:
                    raise self._failure(error, folder) from error
                raise KeyboardInterrupt from error
        if progress is not None:
            progress(plan.num_examples, plan.num_examples)

    def _look(self, job: WriteShards) -> list[DoneShard]:
        plan, folder = job.plan, job.folder
        done, missing = [], []
        for number in range(plan.num_shards):
            noted = folder.noted(number)
            shard = noted or job.noted.get(number)
            if shard is None or not has_size(folder.path / plan.file_name(number), shard.num_bytes):
                missing.append(plan.file_name(number))
            else:
                done.append((shard, noted is None))
        if missing:
            raise ExportError(
                f"The export to {folder.path} failed: {self.name} has ended, and {len(missing)} of {plan.num_shards} "
                f"shards are not here, such as {missing[0]}. Is the same file system mounted there on every worker? "
                f"The same command goes on with the missing ones."
            )
        return done

    def _failure(self, error: Exception, folder: ShardFolder) -> ExportError:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        return ExportError(f"The export to {folder.path} failed on {self.name}: {lines[-1]}\n{KEPT}")


class _WriteShard:
    """Has the shard of a number written, by the job in a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, number: int) -> int:
        """Returns the number of the shard, which is complete; a TfdsTorchError says why not."""
        subprocess_call.call(write_by_job, self._path, number)
        return number


def write_by_job(path: str, number: int) -> None:
    """Writes a shard, unless it is complete; an ExportError says why not, such as a job's file of another version."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ExportError(
            f"{path} cannot be read on {socket.gethostname()} ({error.strerror}): mount the folder of the export on "
            f"every worker, at the same path. Or the export was ended meanwhile."
        ) from error
    versions, _, pickled = content.partition(b"\n")
    if versions != _versions():
        raise ExportError(
            f"{socket.gethostname()} has {_versions().decode()}, and this export is of {versions.decode()}: install "
            f"the same on every worker."
        )
    job: WriteShards = pickle.loads(pickled)  # noqa: S301 (from the folder that is exported to, of this export)
    if not Path(path).exists():  # Loading takes time.
        raise ExportError(f"The export of {path} was ended meanwhile.")
    metrics = StageMetrics(0)
    try:
        answer = job(number, metrics)
    except Exception as error:
        raise ExportError(f"{job.describe(metrics.reading(0))}: {type(error).__name__}: {error}") from error
    if isinstance(answer, OSError):
        raise ExportError(
            f"Shard {number} cannot be written on {socket.gethostname()}: {answer.strerror or answer}."
        ) from answer


class _Ending:
    """The end of a pipeline, which another thread waits for, so that this one can be interrupted."""

    def __init__(self, result: Any) -> None:
        self.state = ""
        self._result = result
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Returns whether it has ended; raises what the runner raised."""
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def _wait(self) -> None:
        try:
            state = self._result.wait_until_finish()
            self.state = str(state or self._result.state)
        except BaseException as error:
            self._error = error


@contextmanager
def _noted_signals(job: Path) -> Iterator[list[int]]:
    """Yields a list of the signals for which the user's handlers end the export; each removes the job's file.

    A runner that works in this thread turns a signal's exception into its own error, or drops it; other runners finish
    all that they have begun. Without the job, either ends with the next shard.
    """
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        try:
            before[number](number, frame)
        except BaseException:
            came.append(number)
            job.unlink(missing_ok=True)
            raise

    is_main = threading.current_thread() is threading.main_thread()
    both = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {int(number): handler for number in both if callable(handler := signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, note)
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _versions() -> bytes:
    """Returns the versions that must be equal where a job is pickled and where it is loaded."""
    return f"tfds_torch {__version__} on Python {sys.version_info.major}.{sys.version_info.minor}".encode()


def _pickle(job: WriteShards) -> bytes:
    from apache_beam.internal.cloudpickle import cloudpickle

    try:
        return _versions() + b"\n" + bytes(cloudpickle.dumps(job))  # Also what the user's script defines.
    except Exception as error:  # Of the user's own classes, any type.
        raise ConfigError(
            f"The dataset cannot be sent to Beam's workers ({type(error).__name__}: {error}): keep open files, locks "
            f"and connections out of it, or leave beam_runner out."
        ) from error


def make_pipeline(name: object, options: Sequence[str]) -> Any:
    """Returns a pipeline of Apache Beam without steps; a ConfigError says why there is none.

    Args:
        name: of the runner: one of Beam's, also without "Runner", in any case, or the full name of a class.
        options: of the pipeline, such as "direct_num_workers=2", with or without "--".
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
        reason = " ".join(line.strip() for line in str(error).splitlines())
        raise ConfigError(f"beam_options (--beam-options) do not suit {name}: {reason}") from error


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
        option = _OPTION.fullmatch(one)
        if option is None or option[1] == "help":
            raise ConfigError(
                f"beam_options (--beam-options): {quoted(one)} must have the form NAME=VALUE, or be a NAME."
            )
        if option[1] == "runner":
            raise ConfigError("beam_options (--beam-options): the runner is named by beam_runner (--beam-runner).")
    output = io.StringIO()  # argparse's: all options, and then the error.
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
