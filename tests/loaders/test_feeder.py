"""Feeder: what it takes, what it delivers, and in which order."""

import itertools
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixed_numbers import mix_numbered
from zygote import forked_instead_of_fresh

from loaders.feeding import Gate, begin, chunks_of, endless, feeder_threads, fetching, in_thread, none_left, rows_of
from tfds_torch import Feeder, ParserTfds, World, demo
from tfds_torch.errors import ConfigError, WorkerError

SIZES = [3, 1, 7, 2, 5, 5, 1, 4]


@pytest.fixture
def feeder() -> Iterator[Feeder]:
    with Feeder() as feeder:
        yield feeder
    assert none_left()


# What comes


@pytest.mark.parametrize("batch_size", [1, 2, 5, 7, 28, 100])
def test_rows_come_once_in_order_in_batches_of_exactly_the_size(feeder: Feeder, batch_size: int) -> None:
    batches = list(begin(feeder, chunks_of(SIZES), batch_size))
    assert rows_of(batches) == list(range(28))
    sizes = [len(batch["x"]) for batch in batches]
    assert sizes == [batch_size] * (28 // batch_size) + [28 % batch_size] * (28 % batch_size > 0)


def test_one_thread_that_calls_a_function_keeps_its_order(feeder: Feeder) -> None:
    assert rows_of(begin(feeder, fetching(SIZES), 4, num_threads=1)) == list(range(28))


def test_several_threads_deliver_every_row_once_and_keep_chunks_together(feeder: Feeder) -> None:
    batches = list(begin(feeder, fetching([3] * 500), 3, num_threads=4))
    assert sorted(rows_of(batches)) == list(range(1500))
    assert all(np.array_equal(np.diff(batch["x"]), [1, 1]) for batch in batches)


def test_rows_of_sources_do_not_mix(feeder: Feeder) -> None:
    for number, name in enumerate(("train", "test")):
        feeder.add_source(name, chunks_of(SIZES, start=1000 * number), ["x", "y"], 4)
    feeder.start()
    for number, name in ((1, "test"), (0, "train")):
        assert rows_of(feeder.batches(name)) == list(range(1000 * number, 1000 * number + 28))


def test_last_drop_leaves_the_short_batch_out(feeder: Feeder) -> None:
    assert rows_of(begin(feeder, chunks_of(SIZES), 5, last="drop")) == list(range(25))


def test_without_rebatching_chunks_come_as_they_are(feeder: Feeder) -> None:
    chunks = [[np.zeros((2, 3))], [np.array(1.0)], [np.zeros(4, np.int8)]]
    batches = list(begin(feeder, chunks, 5, ["x"], rebatch=False))
    assert all(batch["x"] is chunk[0] for batch, chunk in zip(batches, chunks, strict=True))


def test_without_rebatching_a_chunk_of_one_row_comes_at_once(feeder: Feeder) -> None:
    gate = Gate()
    iteration = iter(begin(feeder, gate, 5, num_threads=1, rebatch=False))
    for chunk in chunks_of([1, 1]):
        gate.let(chunk)
        assert next(iteration)["x"] is chunk[0]  # Nothing else is there.
    gate.let(StopIteration())
    assert list(iteration) == []


@pytest.mark.parametrize("chunk", [{"x": np.arange(3), "y": np.arange(3)}, (np.arange(3), np.arange(3))])
def test_chunks_may_be_dictionaries_or_tuples(feeder: Feeder, chunk: Any) -> None:
    assert [sorted(batch) for batch in begin(feeder, [chunk], 2)] == [["x", "y"]] * 2


def test_strings_of_other_lengths_are_joined(feeder: Feeder) -> None:
    begin(feeder, [[np.array(["a"])], [np.array(["longer"])]], 2, ["id"])
    assert [batch["id"].tolist() for batch in feeder.batches("train")] == [["a", "longer"]]


def test_a_batch_may_need_more_chunks_than_the_queue_holds(feeder: Feeder) -> None:
    assert rows_of(begin(feeder, fetching([1] * 40), 20, num_threads=1, max_buffered_chunks=3)) == list(range(40))


def test_the_queue_is_bounded(feeder: Feeder) -> None:
    taken = []

    def counting() -> Iterator[Any]:
        for chunk in endless():
            taken.append(1)
            yield chunk

    iteration = iter(begin(feeder, counting(), 3, max_buffered_chunks=5))
    for _ in range(3):
        next(iteration)
    # Those taken, four that are ready and one being made, five in the queue, one before it.
    assert len(taken) <= 3 + 4 + 1 + 5 + 1
    assert feeder.metrics()["train"].queue_size <= 5


def test_the_batch_size_is_a_hint_to_fetch_and_worker_ids_are_globally_unique(feeder: Feeder) -> None:
    seen: set[int] = set()
    hints: set[int] = set()
    barrier = threading.Barrier(5)

    def fetch(worker: int, batch_size: int) -> Any:
        seen.add(worker)
        hints.add(batch_size)
        barrier.wait(30)
        raise StopIteration

    with Feeder() as other:
        feeder.add_source("train", fetch, ["x"], 6, num_threads=2)
        feeder.add_source("test", fetch, ["x"], 7, num_threads=1)
        other.add_source("train", fetch, ["x"], 8, num_threads=2)
        feeder.start()
        other.start()
        assert list(other.batches("train")) == list(feeder.batches("test")) == list(feeder.batches("train")) == []
    assert len(seen) == 5
    assert hints == {6, 7, 8}


# Passes, and beginning anew


def test_cycle_begins_again_without_a_border(feeder: Feeder) -> None:
    iteration = iter(begin(feeder, chunks_of([3, 4]), 5, at_end="cycle"))
    assert rows_of([next(iteration) for _ in range(7)]) == list(range(7)) * 5


def test_a_function_that_cycles_is_called_again(feeder: Feeder) -> None:
    answers = itertools.cycle([chunks_of([2])[0], StopIteration()])

    def fetch(worker: int, batch_size: int) -> Any:
        answer = next(answers)
        if isinstance(answer, StopIteration):
            raise answer
        return answer

    assert rows_of([next(iter(begin(feeder, fetch, 5, num_threads=1, at_end="cycle")))]) == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("fetch", [[], lambda worker, batch_size: next(iter(()))])
def test_a_whole_pass_without_rows_is_an_error_and_no_busy_loop(feeder: Feeder, fetch: Any) -> None:
    begin(feeder, fetch, 5, ["x"], at_end="cycle")
    with pytest.raises(WorkerError, match=r"^Source 'train', worker \d+: fetched nothing in a whole pass"):
        next(iter(feeder.batches("train")))


def test_a_source_without_data_has_no_batches(feeder: Feeder) -> None:
    begin(feeder, [], 5, ["x"])
    assert list(feeder.batches("train")) == []


def test_start_begins_an_ended_source_anew_and_leaves_others_alone(feeder: Feeder) -> None:
    feeder.add_source("train", endless(), ["x", "y"], 3)
    feeder.add_source("test", chunks_of(SIZES), ["x", "y"], 5)
    feeder.start()
    train, test = iter(feeder.batches("train")), feeder.batches("test")
    rows = rows_of([next(train)])
    for _ in range(3):
        assert rows_of(test) == list(range(28))
        with pytest.raises(ConfigError, match=r"^Source 'test' has ended, .* Call start\(\) for another pass"):
            iter(test)
        feeder.start()
        rows += rows_of([next(train)])
    assert rows == list(range(12))


def test_a_loop_that_comes_too_late_gets_nothing_and_is_told(feeder: Feeder, caplog: pytest.LogCaptureFixture) -> None:
    batches = begin(feeder, chunks_of([3]), 3)
    assert rows_of(batches) == [0, 1, 2]
    assert in_thread(lambda: rows_of(batches)).result() == []  # Another loop over the same batches.
    assert caplog.text.count("This iteration is empty.") == 1
    assert rows_of(feeder.batches("train")) == []
    assert caplog.text.count("This iteration is empty.") == 2
    with pytest.raises(ConfigError, match="has ended"):
        iter(batches)


def test_nothing_of_before_is_left_after_stop(feeder: Feeder) -> None:
    generations = iter([100, 200])

    class Numbered:
        def __iter__(self) -> Iterator[Any]:
            start = next(generations)
            return iter(chunks_of([1] * 50, start))

    batches = begin(feeder, Numbered(), 2)
    iteration = iter(batches)
    assert rows_of([next(iteration)]) == [100, 101]
    assert feeder.stop("train")
    assert feeder.metrics()["train"].queue_size == 0
    with pytest.raises(ConfigError, match=r"^Source 'train' was stopped"):
        next(iteration)
    feeder.start()
    assert rows_of(batches) == list(range(200, 250))
    with pytest.raises(ConfigError, match=r"^Source 'train' was stopped"):
        next(iteration)


def test_an_iterator_can_be_read_once(feeder: Feeder) -> None:
    feeder.add_source("train", iter(chunks_of([3])), ["x", "y"], 3)
    feeder.start()
    assert rows_of(feeder.batches("train")) == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"add_source\('train'\): it was given an iterator, which has been read"):
        feeder.start()


def test_sources_may_be_stopped_by_name(feeder: Feeder) -> None:
    for name in ("train", "test"):
        feeder.add_source(name, endless(), ["x", "y"], 3)
    feeder.start()
    iteration = iter(feeder.batches("test"))
    assert feeder.stop("train")
    assert not [name for name in feeder_threads() if "train" in name]
    assert rows_of([next(iteration)]) == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"^Source 'train' does not run: call start\(\) first"):
        iter(feeder.batches("train"))
    assert feeder.stop()
    assert feeder_threads() == []


def test_init_comes_before_the_threads_and_shutdown_once_after_them(feeder: Feeder) -> None:
    calls: list[Any] = []

    def fetch(worker: int, batch_size: int) -> Any:
        calls.append("fetch")
        raise StopIteration

    feeder.add_source(
        "train",
        fetch,
        ["x"],
        5,
        init=lambda: calls.append(("init", feeder_threads())),
        shutdown=lambda: calls.append("shutdown"),
    )
    for _ in range(2):
        feeder.start()
        assert list(feeder.batches("train")) == []
        assert feeder.stop()
        assert calls == [("init", []), "fetch", "fetch", "shutdown"]
        calls.clear()


# Several loops over one source


def test_several_loops_share_a_source_and_every_row_comes_once(feeder: Feeder) -> None:
    batches = begin(feeder, chunks_of([3] * 400), 4)
    loops = [in_thread(lambda: rows_of(batches)) for _ in range(3)]
    found = [loop.result() for loop in loops]
    assert sorted(row for rows in found for row in rows) == list(range(1200))
    assert all(rows == sorted(rows) for rows in found)


def test_a_loop_that_does_not_take_does_not_keep_the_others(feeder: Feeder) -> None:
    batches = begin(feeder, chunks_of([1] * 100), 1)
    idle, busy = iter(batches), iter(batches)
    rows = [next(idle)["x"][0]] + [next(busy)["x"][0] for _ in range(90)]  # At most four wait for the idle one.
    rest = rows_of(idle) + rows_of(busy)
    assert sorted([*rows, *rest]) == list(range(100))


@pytest.mark.parametrize("num_taken", [0, 1, 5])
def test_what_a_loop_leaves_goes_to_the_next_one_in_its_order(feeder: Feeder, num_taken: int) -> None:
    batches = begin(feeder, chunks_of([1] * 60), 2)
    rows: list[int] = []
    for _ in range(5):
        iteration = iter(batches)
        rows += rows_of([next(iteration) for _ in range(num_taken)])
        del iteration
    rows += rows_of(batches)
    assert rows == list(range(60))


@pytest.mark.parametrize("last_left", [0, 1])
def test_what_two_loops_leave_goes_to_the_next_one_in_its_order(feeder: Feeder, last_left: int) -> None:
    feeder.add_source("train", chunks_of([1] * 60), ["x", "y"], 2)
    for num_taken in range(12):
        feeder.start()
        loops = [iter(feeder.batches("train")) for _ in range(2)]
        taken = rows_of([next(loops[number % 2]) for number in range(num_taken)])
        loops[1 - last_left].close()
        loops[last_left].close()
        rest = rows_of(feeder.batches("train"))
        assert rest == sorted(set(range(60)) - set(taken))
        assert len(taken) == 2 * num_taken
        feeder.stop()


def test_what_a_loop_leaves_goes_to_another_that_waits(feeder: Feeder) -> None:
    gate = Gate()
    batches = begin(feeder, gate, 1, num_threads=1)
    gate.let(*chunks_of([1] * 5))
    first = iter(batches)
    rows = rows_of([next(first)])
    second = iter(batches)
    others = in_thread(lambda: rows_of([next(second) for _ in range(4)]))
    first.close()
    assert sorted(rows + others.result()) == list(range(5))
    assert list(first) == []
    gate.let(StopIteration())


def test_breaking_off_loses_nothing(feeder: Feeder) -> None:
    batches = begin(feeder, chunks_of([1] * 40), 3)
    rows = []
    while len(rows) < 40:
        for batch in batches:
            rows += batch["x"].tolist()
            break
    assert rows == list(range(40))


def test_leftover_rows_wait_while_the_queue_is_full(feeder: Feeder) -> None:
    """Caffe2 drops the rows that are left over of a chunk when its queue is full."""
    gate = Gate()
    batches = begin(feeder, gate, 2, num_threads=1, max_buffered_chunks=1)
    gate.let(*chunks_of([3] * 30), StopIteration())
    iteration = iter(batches)
    rows = rows_of([next(iteration)])
    assert gate.is_waiting.wait(30)
    assert rows + rows_of(iteration) == list(range(90))


# The batch size of a source that runs


def test_the_batch_size_may_be_set_while_it_runs(feeder: Feeder) -> None:
    iteration = iter(begin(feeder, chunks_of([7] * 60), 4))
    batches = [next(iteration)]
    feeder.set_batch_size("train", 10)
    batches += list(iteration)
    assert rows_of(batches) == list(range(420))
    sizes = [len(batch["x"]) for batch in batches]
    num_before = sizes.index(10)
    assert set(sizes[:num_before]) == {4}
    assert num_before <= 1 + 5
    assert set(sizes[num_before:-1]) == {10}
    feeder.start()
    assert len(next(iter(feeder.batches("train")))["x"]) == 10


def test_a_smaller_batch_size_reaches_a_loop_that_waits(feeder: Feeder) -> None:
    gate = Gate()
    batches = begin(feeder, gate, 4, num_threads=1)
    gate.let(chunks_of([2])[0])
    loop = in_thread(lambda: next(iter(batches)))
    feeder.set_batch_size("train", 2)
    assert rows_of([loop.result()]) == [0, 1]
    gate.let(StopIteration())


def test_fetch_is_told_the_new_batch_size(feeder: Feeder) -> None:
    hints = []

    def fetch(worker: int, batch_size: int) -> Any:
        hints.append(batch_size)
        if batch_size == 2:
            raise StopIteration
        return chunks_of([batch_size])[0]

    iteration = iter(begin(feeder, fetch, 4, num_threads=1, max_buffered_chunks=1))
    next(iteration)
    feeder.set_batch_size("train", 2)
    for _ in iteration:
        pass
    assert hints[0] == 4
    assert hints[-1] == 2


# Parsers


@pytest.fixture(scope="module")
def digits() -> Path:
    with forked_instead_of_fresh():
        return demo.prepare("digits", progress=False)


def test_a_parser_is_a_source_of_its_fields_in_its_own_order(digits: Path) -> None:
    parser = ParserTfds(digits, "digits", is_training=True, batch_size=100, image_mode="L", seed=7)
    with Feeder() as feeder:
        feeder.add_source("train", parser, ["index", "label", "image", "id"], 48, at_end="cycle")
        feeder.start()
        iteration = iter(feeder.batches("train"))
        found = [next(iteration) for _ in range(50)]
    wanted = [batch for epoch in (0, 1) for batch in parser.batches(World(), epoch, fields=("index", "label", "image"))]
    index = np.concatenate([batch.index for batch in wanted])[: 48 * 50]
    assert np.array_equal(np.concatenate([batch["index"] for batch in found]), index)
    labels = np.concatenate([batch.label for batch in wanted])[: 48 * 50]
    assert np.array_equal(np.concatenate([batch["label"] for batch in found]), labels)
    assert found[0]["image"].shape == (48, 8, 8, 1)
    assert found[0]["id"].tolist() == list(parser.ids(found[0]["index"]))


def test_a_mixture_is_a_source_like_any_parser(numbered_root: str) -> None:
    parser = mix_numbered(numbered_root, batch_size=6)
    with Feeder() as feeder:
        feeder.add_source("mixture", parser, ["label", "member", "id"], 6, at_end="cycle")
        feeder.start()
        iteration = iter(feeder.batches("mixture"))
        found = [next(iteration) for _ in range(14)]
    wanted = [batch for epoch in (0, 1) for batch in parser.batches(World(), epoch, fields=("label", "member"))]
    for batch, planned in zip(found, wanted, strict=True):
        assert batch["label"].tolist() == planned.label.tolist()
        assert batch["member"].tolist() == planned.features["member"].tolist()
        assert batch["id"].tolist() == list(planned.id)


def test_a_parser_reads_the_share_of_its_rank(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        with Feeder() as feeder:
            feeder.add_source("test", ParserTfds(digits, "digits", "test", batch_size=32), ["index", "valid"], 7)
            feeder.start()
            seen += [i for batch in feeder.batches("test") for i in batch["index"][batch["valid"]].tolist()]
    assert sorted(seen) == list(range(360))


def test_half_a_rank_is_said_when_a_parser_is_added(
    feeder: Feeder, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConfigError, match="sets RANK=1 but not WORLD_SIZE"):
        feeder.add_source("train", ParserTfds(digits, "digits", batch_size=32), ["label"], 7)


def test_a_field_that_a_parser_lacks_is_said_when_it_is_added(feeder: Feeder, digits: Path) -> None:
    parser = ParserTfds(digits, "digits", batch_size=32)
    with pytest.raises(ConfigError, match="labl"):
        feeder.add_source("train", parser, ["labl"], 7)


def test_images_of_several_sizes_are_an_error_that_says_what_to_do(feeder: Feeder) -> None:
    with forked_instead_of_fresh():
        root = demo.prepare("photos", num_examples=64, num_shards=4, progress=False)
    begin(feeder, ParserTfds(root, "photos", batch_size=8), 4, ["image"])
    with pytest.raises(WorkerError, match=r"field 'image' has values of several shapes.*preprocess"):
        next(iter(feeder.batches("train")))


# Arguments


def no_chunk(worker: int, batch_size: int) -> Any:
    raise StopIteration


GOOD: dict[str, Any] = {"name": "train", "fetch": no_chunk, "names": ["x", "y"], "batch_size": 4}
WRONG = [
    ({"name": ""}, "name='' must be a string"),
    ({"name": 3}, "name=3 must be a string"),
    ({"fetch": 5}, r"fetch=5 must be a function fetch\(worker_id, batch_size\), an iterable of chunks, or a Parser"),
    ({"fetch": "file"}, "fetch='file' must be a function"),
    ({"fetch": Gate}, "must be a function"),
    ({"fetch": lambda worker: None}, r"fetch has the parameters \(worker\)"),
    ({"fetch": endless}, "A generator function must be called"),
    ({"fetch": iter([]), "at_end": "cycle"}, "an iterator, which can be read once"),
    ({"names": "xy"}, "names='xy' must be a list of names"),
    ({"names": []}, r"names=\[\] must be a list of names"),
    ({"names": ["x", "x"]}, "a name is there twice"),
    ({"names": ["x", 1]}, "1 is not a name"),
    ({"batch_size": 0}, "batch_size=0 must be an integer >= 1"),
    ({"batch_size": 2.5}, "batch_size=2.5 must be an integer >= 1"),
    ({"num_threads": 0}, "num_threads=0 must be an integer in 1..1024"),
    ({"num_threads": 5000}, "num_threads=5000 must be an integer in 1..1024"),
    ({"max_buffered_chunks": 0}, "max_buffered_chunks=0 must be an integer >= 1"),
    ({"batch_axes": [0]}, r"batch_axes=\[0\] are 1, and there are 2 names"),
    ({"batch_axes": "0"}, "batch_axes='0' must be an integer, or one for each name"),
    ({"batch_axes": [0, 1.0]}, "must be an integer, or one for each name"),
    ({"rebatch": 1}, "rebatch=1 must be True or False"),
    ({"init": 3}, "init=3 must be a function, or None"),
    ({"shutdown": "x"}, "shutdown='x' must be a function, or None"),
    ({"timeout_s": 0}, "timeout_s=0 must be a number of seconds > 0"),
    ({"timeout_s": float("inf")}, "timeout_s=inf must be a number of seconds > 0"),
    ({"timeout_s": "9"}, r"timeout_s='9' must be a number of seconds > 0, or None \(for ever\)"),
    ({"timeout_s": True}, "timeout_s=True must be a number of seconds > 0"),
    ({"at_end": "cylce"}, "at_end='cylce' must be 'stop' or 'cycle'. Did you mean 'cycle'?"),
    ({"last": "kept"}, "last='kept' must be 'keep' or 'drop'. Did you mean 'keep'?"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_an_argument_that_cannot_be_meant_is_an_error_at_once(
    feeder: Feeder, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        feeder.add_source(**{**GOOD, **wrong})
    feeder.add_source(**GOOD)  # The name is still free, and nothing else is wrong.


def test_names_and_calls_that_cannot_be_meant_are_errors(feeder: Feeder) -> None:
    with pytest.raises(ConfigError, match="start: there is no source: call add_source first"):
        feeder.start()
    feeder.add_source(**GOOD)
    with pytest.raises(ConfigError, match="there is a source 'train' already"):
        feeder.add_source(**GOOD)
    for call in (feeder.batches, feeder.stop, lambda name: feeder.set_batch_size(name, 3)):
        with pytest.raises(ConfigError, match=r"no source 'trian': the sources are 'train'. Did you mean 'train'\?"):
            call("trian")
    with pytest.raises(ConfigError, match="set_batch_size: n=0 must be an integer >= 1"):
        feeder.set_batch_size("train", 0)
    with pytest.raises(ConfigError, match="add_logger: 3 must be a function"):
        feeder.add_logger(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Source 'train' does not run: call start\(\) first"):
        iter(feeder.batches("train"))
    feeder.close()
    with pytest.raises(ConfigError, match="This Feeder is closed"):
        feeder.start()


def test_neither_a_feeder_nor_its_batches_can_be_pickled(feeder: Feeder) -> None:
    feeder.add_source(**GOOD)
    for value in (feeder, feeder.batches("train")):
        with pytest.raises(ConfigError, match="cannot go to another process: threads do not travel"):
            pickle.dumps(value)


def test_reprs_say_what_they_are(feeder: Feeder) -> None:
    feeder.add_source("train", endless(), ["x", "y"], 4)
    assert repr(feeder) == "Feeder(sources=['train'], running=[])"
    feeder.start()
    assert repr(feeder) == "Feeder(sources=['train'], running=['train'])"
    assert repr(feeder.batches("train")) == "FeedBatches('train', names=['x', 'y'])"
