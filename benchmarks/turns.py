"""Peers that do the same work in turns, and the table of their figures.

In each round every peer has one epoch; the order is turned around from round to round, so that a drift of the machine,
and whatever a peer leaves to the next one, hits all of them alike. Ratios are made round by round.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.formats import kept, tars_of
from benchmarks.peer_process import Epoch, Interpreter, PeerProcess
from benchmarks.protocol import PLAIN, Task
from benchmarks.tables import Column, Ratio, Table
from tfds_torch import demo
from tfds_torch.errors import TfdsTorchError

OURS, TIMM = "ours", "timm"
PNG = {"image_shape": (3, 32, 32), "work": PLAIN}
"""The fields of a task over 32x32 images that are delivered as they are."""

PNGS_FOR_A_PHOTO = 5
_MOST_SHARDS = 8

T = TypeVar("T")


@dataclass(frozen=True)
class Peer:
    """This package, or another way to the same batches.

    Attributes:
        name: on the command line.
        title: in tables.
        script: a module of `benchmarks.peers`.
        changes: fields of the task that differ for this peer.
        options: of the task.
        files: "": it reads the dataset itself; "tars": tar files; "own": what its script prepares from them.
    """

    name: str
    title: str
    script: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    files: str = ""

    @property
    def module(self) -> str:
        """What its process runs."""
        return self.script if "." in self.script else f"benchmarks.peers.{self.script}"


@dataclass(frozen=True)
class Settings:
    """How much is measured, as the command line says.

    Attributes:
        num_photos: examples of an epoch of photographs; the number of other examples is proportional to it.
        num_repeats: measured epochs, or fresh processes.
        timeout_s: the most that an epoch may take.
        baseline: a folder with another `tfds_torch`, which takes part as `baseline`; "": there is none.
        venvs: peer's name -> its virtual environment.
    """

    num_photos: int
    batch_size: int
    num_workers: int
    num_repeats: int
    timeout_s: float
    baseline: str = ""
    venvs: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_shards(self) -> int:
        """Files of a dataset that is measured."""
        return min(_MOST_SHARDS, self.num_photos)

    def as_dict(self) -> dict[str, Any]:
        """Returns what a report tells of them: no paths."""
        found = {**asdict(self), "num_shards": self.num_shards}
        return {key: value for key, value in found.items() if key not in ("baseline", "venvs")}


@dataclass(frozen=True)
class Run:
    """One run of a suite.

    Attributes:
        settings: how much is measured.
        only: names of the peers that take part where the command line can choose them; empty: all.
        show_progress: shows the user a text about the current step.
        versions: distribution -> version, as the peers have told; filled by the suite.
    """

    settings: Settings
    only: Sequence[str] = ()
    show_progress: Callable[[str], None] = lambda text: None
    versions: dict[str, str] = field(default_factory=dict)

    def data_dir(self, dataset: str = "photos", num_examples: int | None = None) -> Path:
        """Returns the data dir of a dataset of that many examples: an embedded one, or one whose content is made up.

        Raises:
            TfdsTorchError: it cannot be made.
        """
        number = self.settings.num_photos if num_examples is None else num_examples
        self.show_progress(f"preparing {dataset}")
        num_shards = min(self.settings.num_shards, number)
        if dataset.partition("/")[0] in demo.DEMO_NAMES:
            return demo.prepare(dataset, num_examples=number, num_shards=num_shards, progress=False)
        return demo.prepare_fake(dataset, num_examples=number, num_shards=num_shards, splits=("train",), progress=False)

    def task(self, data_dir: Path | str, num_examples: int, **fields: Any) -> Task:
        """Returns the work of an epoch, in the settings' batches and workers."""
        settings = self.settings
        return Task(
            **{
                "data_dir": str(data_dir),
                "num_examples": num_examples,
                "batch_size": settings.batch_size,
                "num_workers": settings.num_workers,
                **fields,
            }
        )

    def interpreter_of(self, peer: Peer, **environ: str) -> Interpreter:
        """Returns where a peer runs."""
        if peer.name in self.settings.venvs:
            return Interpreter.of_venv(self.settings.venvs[peer.name])
        return Interpreter.here(before=self.settings.baseline if peer.name == "baseline" else "", **environ)

    def task_of(self, peer: Peer, task: Task) -> Task:
        """Returns a peer's own task; its files are written first where they are not there.

        Raises:
            TfdsTorchError: they cannot be written; a package is missing.
        """
        task = replace(task, **{"options": {**task.options, **peer.options}, **peer.changes})
        if not peer.files:
            return task
        data_dir = Path(task.data_dir)
        self.show_progress(f"preparing the files of {peer.title}")
        task = replace(task, tars=str(tars_of(data_dir, task.dataset, self.settings.num_shards)))
        if peer.files == "tars":
            return task

        def write(folder: Path) -> None:
            # Photographs may take FFCV's writer minutes.
            PeerProcess(
                peer.module, replace(task, files=str(folder)), 10 * self.settings.timeout_s, self.interpreter_of(peer)
            ).prepare()

        return replace(task, files=str(kept(data_dir, task.dataset, peer.script, write)))


@dataclass(frozen=True)
class Suite:
    """A suite of measurements.

    Attributes:
        title: a line about what it measures.
        method: a paragraph about how it measures.
        measure: yields its tables.
        peers: names of the peers that the command line may choose from; empty where all take part always.
        own_venvs: names of further peers that may have environments of their own.
    """

    name: str
    title: str
    method: str
    measure: Callable[[Run], Iterator[Table]]
    peers: Sequence[str] = ()
    own_venvs: Sequence[str] = ()


@dataclass
class Outcome:
    """All figures of one peer.

    Attributes:
        firsts: the first epoch of each of its processes; no speed is judged by them.
        epochs: the measured epochs, one for each round.
        memory_mb: PSS of the training process and of each process that it started, when their sum was greatest in an
            epoch of its own; empty: not measured.
        missing: why there are no figures to compare; None: there are some.
    """

    firsts: list[Epoch] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    missing: str | None = None

    def samples(self) -> dict[str, Any]:
        """Returns column's key -> values, round by round; nothing when it is missing."""
        if self.missing is not None:
            return {}
        found: dict[str, Any] = {
            "examples_per_s": [epoch.examples_per_s for epoch in self.epochs],
            "first_batch_s": [epoch.first_batch_s for epoch in self.epochs],
            "tail_s": [epoch.tail_s for epoch in self.epochs],
            "cpu_us": [epoch.cpu_s and epoch.cpu_s * 1e6 / epoch.num_examples for epoch in self.epochs],
            "num_examples": [epoch.num_examples for epoch in self.epochs],
            "start_s": [epoch.start_s for epoch in self.firsts],
            "very_first_batch_s": [epoch.first_batch_s for epoch in self.firsts],
        }
        if self.memory_mb:
            found |= {"memory_mb": [sum(self.memory_mb)], "training_mb": self.memory_mb[:1]}
            found["memory_parts"] = " + ".join(f"{part:,.0f}" for part in self.memory_mb)
        return found


SPEED = Column("examples_per_s", "examples/s")
OURS_BY_IT = Column("ours_by_it", "tfds_torch by it", "{:.2f}", ratio=Ratio(SPEED.key, of=OURS))
BY_TIMM = Column("by_timm", "x timm", "{:.2f}", has_spread=False, ratio=Ratio(SPEED.key, by=TIMM))
START = Column("start_s", "process start to first batch, s", "{:.2f}")
VERY_FIRST_BATCH = Column("very_first_batch_s", "its first epoch to first batch, s", "{:.2f}")
FIRST_BATCH = Column("first_batch_s", "first batch of a later epoch, s", "{:.2f}")
TAIL = Column("tail_s", "tail, s", "{:.3f}")
CPU = Column("cpu_us", "processor time of an example, us")
NUM_EXAMPLES = Column("num_examples", "examples an epoch", has_spread=False)
MEMORY = Column("memory_mb", "memory, MB", has_spread=False)
TRAINING_MEMORY = Column("training_mb", "of it, training process, MB", has_spread=False)
MEMORY_PARTS = Column("memory_parts", "training process + others, MB")


def compare(
    run: Run,
    table: Table,
    peers: Sequence[Peer],
    task: Task,
    *,
    is_fresh: bool = False,
    rounds_for_a_repeat: int = 1,
    most_rounds: int | None = None,
    **in_note: Any,
) -> Table:
    """Lets peers do the same work in turns, and returns the table with a row for each.

    Args:
        run: how much is measured; versions are added to it.
        table: without rows; its note may name fields of the settings and `num_examples`.
        peers: which take part, `baseline` only where there is one.
        task: the work.
        is_fresh: whether each epoch is the first or second one of a new process, whose memory is measured too.
        rounds_for_a_repeat: short epochs need more of them for a stable median.
        most_rounds: measured rounds at most.
        **in_note: further fields of the note.

    Raises:
        TfdsTorchError: the dataset cannot be made. A peer that fails is a row without figures.
    """
    settings = run.settings
    peers = [
        peer
        for peer in peers
        if (settings.baseline if peer.name == "baseline" else not run.only or peer.name in run.only)
    ]
    outcomes = {peer.name: Outcome() for peer in peers}
    ready: dict[str, Task] = {}
    for peer in peers:
        try:
            ready[peer.name] = run.task_of(peer, task)
        except TfdsTorchError as error:
            outcomes[peer.name].missing = last_line(error)

    def begin(peer: Peer) -> PeerProcess:
        return PeerProcess(peer.module, ready[peer.name], settings.timeout_s, run.interpreter_of(peer))

    there = [peer for peer in peers if peer.name in ready]

    def show(text: str) -> None:
        run.show_progress(f"{table.title}, {text}" if table.title else text)

    if is_fresh:
        start_in_turns(there, begin, outcomes, settings.num_repeats, show)
    else:
        num_rounds = settings.num_repeats * rounds_for_a_repeat
        take_turns(
            {peer.name: begin(peer) for peer in there}, outcomes, min(num_rounds, most_rounds or num_rounds), show
        )
    for outcome in outcomes.values():
        for epoch in outcome.firsts:
            run.versions.update(epoch.versions)
    return table.fill(
        {name: outcome.samples() for name, outcome in outcomes.items()},
        {peer.name: peer.title for peer in peers},
        {name: outcome.missing for name, outcome in outcomes.items() if outcome.missing is not None},
        **{**vars(settings), "num_examples": task.num_examples, **in_note},
    )


def turned(items: Iterable[T], number: int) -> list[T]:
    """Returns the order of a round: A B C, then C B A, and so on."""
    found = list(items)
    return found[::-1] if number % 2 else found


def take_turns(
    processes: Mapping[str, PeerProcess],
    outcomes: Mapping[str, Outcome],
    num_rounds: int,
    show_progress: Callable[[str], None],
) -> None:
    """Runs a warm-up epoch of each peer, then `num_rounds` measured ones, in turns.

    A peer that fails is ended and takes no further turns. All peers are ended at the end, also of an error.
    """
    with ExitStack() as stack:
        for process in processes.values():
            stack.callback(process.end)
        for number in range(1 + num_rounds):
            for name in turned(processes, number):
                outcome = outcomes[name]
                if outcome.missing is not None:
                    continue
                show_progress(f"{f'round {number} of {num_rounds}' if number else 'warm-up'}: {name}")
                try:
                    (outcome.epochs if number else outcome.firsts).append(processes[name].run_epoch())
                except TfdsTorchError as error:
                    outcome.missing = last_line(error)
                    processes[name].end()


def start_in_turns(
    peers: Sequence[Peer],
    begin: Callable[[Peer], PeerProcess],
    outcomes: Mapping[str, Outcome],
    num_starts: int,
    show_progress: Callable[[str], None],
) -> None:
    """Starts each peer several times, in turns, for a first and a later epoch.

    One peer runs at a time, so that it shares no pages with another one; memory is measured in one more epoch of its
    last start. A peer that fails is not started again.
    """
    for number in range(num_starts):
        for peer in turned(peers, number):
            outcome = outcomes[peer.name]
            if outcome.missing is not None:
                continue
            show_progress(f"start {number + 1} of {num_starts}: {peer.name}")
            process = begin(peer)
            try:
                outcome.firsts.append(process.run_epoch())
                outcome.epochs.append(process.run_epoch())
                if number == num_starts - 1:
                    outcome.memory_mb = [size / 1e6 for size in process.measure_memory()]
            except TfdsTorchError as error:
                outcome.missing = last_line(error)
            finally:
                process.end()


def write_in_turns(
    run: Run,
    table: Table,
    writers: Mapping[str, tuple[str, Callable[[], Mapping[str, float]]]],
    num_rounds: int,
    *,
    num_warm_ups: int = 0,
    after: Callable[[], object] = lambda: None,
    **in_note: Any,
) -> Table:
    """Calls functions in turns, each of which measures itself; one that fails takes no further turn.

    Args:
        run: shows the progress.
        table: without rows.
        writers: row -> its title, and a function that returns figures by column.
        num_rounds: that count.
        num_warm_ups: rounds before them that do not.
        after: is called after each turn.
        **in_note: fields of the note.
    """
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in writers}
    missing: dict[str, str] = {}
    for number in range(-num_warm_ups, num_rounds):
        for name in [name for name in turned(writers, number) if name not in missing]:
            run.show_progress(f"{table.title}, round {number + 1} of {num_rounds}: {name}")
            try:
                figures = writers[name][1]()
            except TfdsTorchError as error:
                missing[name], samples[name] = last_line(error), {}
                continue
            finally:
                after()
            for key, value in figures.items() if number >= 0 else ():
                samples[name].setdefault(key, []).append(value)
    return table.fill(samples, {name: title for name, (title, _) in writers.items()}, missing, **in_note)


def last_line(error: TfdsTorchError) -> str:
    """Returns why a row is missing."""
    return str(error).strip().splitlines()[-1]


def seconds_of(work: Callable[[], object]) -> float:
    """Returns how long a function takes."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s
