"""The tf.data engine: encoded records streamed by tf.data, for the read modes `files` and `examples`.

Only reading and shuffling happen in the graph. The records leave it encoded, and are decoded like those that the direct
engine reads by number.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

import numpy as np

from tfds_torch.engines.batch import Batch, BatchAssembler
from tfds_torch.engines.chunks import ChunkDecoder, EncodedChunk
from tfds_torch.engines.read_mode import assign
from tfds_torch.engines.record_stream import RecordRange, RecordStream, stream_elsewhere, stream_records
from tfds_torch.engines.request import ReadRequest
from tfds_torch.engines.tensorflow_runtime import has_inherited_runtime
from tfds_torch.errors import TfdsTorchError
from tfds_torch.plan.deal import Assignment, ShardRange
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.order import examples_of
from tfds_torch.storage.source import FileInstruction


def read_in_stream_mode(request: ReadRequest, mode: str) -> Iterator[Batch]:
    """Yield the batches of a pipeline in read mode `files` or `examples`."""
    plan, world = request.plan, request.plan.world
    # The worker whose turn is batch start_batch continues the stream of the worker that batch belonged to.
    number = (world.worker + request.start_batch) % world.num_workers
    source_plan = replace(plan, world=world.at_worker(number, world.num_workers))
    num_passed = len(source_plan.worker_batches()) - len(plan.worker_batches(request.start_batch))
    num_skipped = num_passed * plan.batch_size
    assignment = assign(request.source, source_plan, request.epoch, mode)
    (seed,) = np.random.SeedSequence([plan.seed, request.epoch, source_plan.world.pipeline]).generate_state(
        1, np.uint64
    )
    seed = int(seed >> np.uint64(1))  # tf.data takes int64.
    num_valid = assignment.num_valid + (0 if plan.remainder is Remainder.PAD else assignment.num_fill) - num_skipped
    stream = _record_stream(request, assignment, num_skipped, seed)
    if len(stream) <= num_skipped:
        return
    request.source.check(streamed={part.path for part in stream.ranges})
    decoder = ChunkDecoder(request.source, request.content, plan.seed, request.context.metrics)
    assembly = BatchAssembler(request, len(stream) - num_skipped, num_valid, decoder)
    with closing(_encoded_chunks(request, stream)) as chunks:
        yield from assembly.batches(chunks)


def _record_stream(request: ReadRequest, assignment: Assignment, num_skipped: int, seed: int) -> RecordStream:
    source, options, plan = request.source, request.options, request.plan
    num_workers, buffer = plan.world.num_workers, 1
    if plan.order.shuffle:
        buffer = options.shuffle_buffer_of_worker(num_workers, source.mean_example_bytes)
    return RecordStream(
        dataset=source.name,
        valid=[_record_range(source.instructions, part, plan.num_examples) for part in assignment.valid],
        fill=[_record_range(source.instructions, part, plan.num_examples) for part in assignment.fill],
        num_skipped=num_skipped,
        chunk_size=request.chunk_size,
        shuffle_buffer=buffer,
        seed=seed,
        cycle_length=options.cycle_length,
        read_buffer_bytes=options.read_buffer_bytes,
        num_threads=request.num_threads,
    )


def _record_range(instructions: Sequence[FileInstruction], part: ShardRange, num_examples: int) -> RecordRange:
    file = instructions[part.file]
    first_key = part.pass_number * num_examples + file.first_index + part.start
    return RecordRange(file.path, file.skip + part.start, len(part), first_key, file.num_in_shard)


def _encoded_chunks(request: ReadRequest, stream: RecordStream) -> Generator[EncodedChunk, None, None]:
    """Yield the chunks of a stream; where it cannot be read, the last chunk has an error."""
    source, metrics, keys = request.source, request.context.metrics, request.content.keys
    # A process that was forked after tensorflow ran must not use it: its records come from another process.
    streamed = stream_elsewhere(stream) if has_inherited_runtime() else stream_records(stream)
    position = 0
    with closing(streamed) as chunks:  # type: ignore[type-var] # Both are generators.
        while True:
            try:
                sample_keys, records = next(chunks)
            except StopIteration:
                return
            except TfdsTorchError as error:
                yield EncodedChunk(position, np.zeros(1, np.int64), error=error)
                return
            index = examples_of(sample_keys, request.plan.num_examples)
            try:
                with nullcontext() if metrics is None else metrics.at_work.reading(index):
                    chunk = EncodedChunk(position, sample_keys, source.parse(records, index, keys))
            except TfdsTorchError as error:
                chunk = EncodedChunk(position, sample_keys, error=error)
            position += len(sample_keys)
            yield chunk
