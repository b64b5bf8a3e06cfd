"""How the stream is read: parallelism, buffers, budgets."""

import math
from dataclasses import dataclass

from tfds_torch.errors import ConfigError
from tfds_torch.images.decoders import jpeg
from tfds_torch.plan.passes import BlockShuffle
from tfds_torch.runtime.arguments import check_integer, did_you_mean
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.limits import usable_cores

READ_MODES = ("auto", "index", "files", "examples")
ON_ERROR = ("raise", "replace")
BLOCKS_OF_SOURCE = "auto"
"""The value of `block_records` for a block size that suits the place of the files."""

_MAX_THREADS = 8
_MAX_SHUFFLE_BYTES = 2 * 2**30


@explain_keywords
@dataclass(frozen=True)
class ReadOptions:
    """Options for reading examples. The defaults suit a training machine.

    In mode `index`, the order depends only on `block_records` (and, where that is set, on `shuffle_buffer` and
    `block_groups`). In the stream modes `files` and `examples`, the shuffled order depends on `cycle_length`,
    `shuffle_buffer` and `ram_budget_bytes`. The other options change only speed and memory.

    Attributes:
        mode: `index` fetches every record by its number, so that the order is one shuffle of the whole split, whatever
            the number of ranks and workers, and can be resumed anywhere; `files` streams whole shards, dealt to the
            pipelines (training only); `examples` streams consecutive cuts of exactly the planned number of examples.
            `auto` takes `index` for local files with random access (TFRecord, ArrayRecord, image folders, .beton,
            tars); else `files` in training when there are at least as many non-empty files as pipelines; else
            `examples`.
        num_threads: threads that decode, per worker; None means max(1, min(8, cores // num_workers)), of the cores that
            the process may use (affinity, container), divided among the ranks of the machine.
        cycle_length: number of files that a shuffling worker reads in turns.
        read_buffer_bytes: read-ahead per open file, bytes.
        shuffle_buffer: number of encoded examples among which a rank's stream draws the next one; its workers share
            the number. Mode `index` has none, unless `block_records` is set.
        prefetch_batches: batches that are decoded ahead of the one that is asked for. In a loader's worker, 1 means
            just enough to keep its threads busy; batches that torch's loader holds ready (prefetch_factor) are added.
        ram_budget_bytes: largest memory of a worker's shuffle buffer, bytes; a buffer that would take more (by the
            dataset's mean example size) holds fewer examples. None means 2 GiB per rank.
        block_records: mode `index` where random reads are expensive: contiguous examples that are kept together.
            Blocks are shuffled as wholes, and examples within windows of `shuffle_buffer` examples (of the whole world,
            rounded down to blocks, one at least). None: every example is shuffled among all of them. `auto`: None for
            local files, and blocks of about 8 MiB for object stores, so that each is fetched once an epoch; the
            attribute `read` of a parser has the number.
        verify_checksums: mode `index`: whether the CRC32C of the bytes read is verified: of each record of TFRecord
            files, and of each value of `.beton` files (those of FFCV itself have none). Streams always verify.
        on_error: mode `index`: `raise` ends with an error at the first damaged example; `replace` lets the next one
            that is whole, by index, take its place, and logs a warning. In training, the replacement is an example like
            any other; in evaluation, it is not `valid`, and its label is -100. All ranks keep their number of batches.
        max_replaced: damaged examples that a worker may replace in an epoch; one more is an error.
        jpeg_decoder: `turbojpeg` (libturbojpeg 3 or later, which decodes only the window of a crop), `simplejpeg` or
            `pillow`; `auto` takes the first of them that the machine has. Their pixels are the same.
        block_groups: with `block_records`, groups into which the shuffled blocks are dealt, anew in every pass. Every
            global batch takes an equal part of each group, and ranks take the groups in order: each of M machines, with
            equal numbers of ranks, reads 1/M of the blocks where `block_groups` divides by M, and the global batch by
            `block_groups`. The global batches do not depend on M.

    Raises:
        ConfigError: mode, on_error or jpeg_decoder is unknown, the machine does not have jpeg_decoder, or a number is
            out of range.
    """

    mode: str = "auto"
    num_threads: int | None = None
    cycle_length: int = 16
    read_buffer_bytes: int = 1 << 20
    shuffle_buffer: int = 8192
    prefetch_batches: int = 1
    ram_budget_bytes: int | None = None
    block_records: int | str | None = BLOCKS_OF_SOURCE
    verify_checksums: bool = True
    on_error: str = "raise"
    max_replaced: int = 100
    jpeg_decoder: str = "auto"
    block_groups: int = 1

    def __post_init__(self) -> None:
        if self.mode not in READ_MODES:
            hint = did_you_mean(self.mode, READ_MODES)
            raise ConfigError(f"Unknown read mode {self.mode!r}: the modes are {', '.join(READ_MODES)}.{hint}")
        for name in ("num_threads", "cycle_length", "read_buffer_bytes", "shuffle_buffer", "prefetch_batches"):
            self._check_number(name)
        self._check_number("ram_budget_bytes")
        self._check_number("block_records")
        self._check_number("block_groups")
        self._check_number("max_replaced")
        if self.on_error not in ON_ERROR:
            hint = did_you_mean(self.on_error, ON_ERROR)
            raise ConfigError(f"Unknown on_error {self.on_error!r}: choose 'raise' or 'replace'.{hint}")
        if self.jpeg_decoder not in jpeg.CHOICES:
            hint = did_you_mean(self.jpeg_decoder, jpeg.CHOICES)
            raise ConfigError(
                f"Unknown jpeg_decoder {self.jpeg_decoder!r}: the decoders are {', '.join(jpeg.CHOICES)}.{hint}"
            )
        jpeg.check(self.jpeg_decoder)
        if not isinstance(self.verify_checksums, bool):
            raise ConfigError(f"ReadOptions: verify_checksums={self.verify_checksums!r} must be True or False.")

    def _check_number(self, name: str) -> None:
        value = getattr(self, name)
        if value is None and name in ("num_threads", "ram_budget_bytes", "block_records"):
            return
        if name == "block_records" and isinstance(value, str) and value == BLOCKS_OF_SOURCE:
            return
        object.__setattr__(self, name, check_integer(f"ReadOptions: {name}", value, 1))

    def threads_of_worker(self, num_workers: int, num_local_ranks: int = 1) -> int:
        """Return the number of threads with which a worker decodes.

        Args:
            num_workers: number of workers of the rank, >= 1.
            num_local_ranks: number of ranks that share the machine, >= 1.

        Returns:
            `num_threads` where it is set; else the worker's part of the cores that its rank may use, 1 to 8.
        """
        cores_of_rank = math.floor(usable_cores().number / num_local_ranks)
        return self.num_threads or max(1, min(_MAX_THREADS, cores_of_rank // num_workers))

    @property
    def most_replaced(self) -> int:
        """Largest number of damaged examples that a worker may replace in an epoch; 0: the first one is an error."""
        return self.max_replaced if self.on_error == "replace" else 0

    @property
    def blocks(self) -> BlockShuffle | None:
        """The blocks of a shuffled order in mode `index`; None: there are none."""
        if not isinstance(self.block_records, int):
            return None
        window_blocks = max(1, self.shuffle_buffer // self.block_records)
        return BlockShuffle(self.block_records, window_blocks, self.block_groups)

    def shuffle_buffer_of_worker(self, num_workers: int, mean_example_bytes: int) -> int:
        """Return the number of encoded examples in a worker's shuffle buffer, within its memory budget.

        Args:
            num_workers: number of workers of the rank, >= 1.
            mean_example_bytes: mean size of an encoded example of the dataset, bytes.

        Returns:
            The worker's part of `shuffle_buffer`, or fewer where these would exceed `ram_budget_bytes` (None: 2 GiB
            per rank); >= 1.
        """
        budget_bytes = self.ram_budget_bytes or _MAX_SHUFFLE_BYTES // num_workers
        return max(1, min(self.shuffle_buffer // num_workers, budget_bytes // max(1, mean_example_bytes)))
