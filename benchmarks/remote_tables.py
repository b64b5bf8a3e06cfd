"""Tables of the suite `remote`, without rows."""

from dataclasses import replace

from benchmarks.figures import NUM_EXAMPLES
from benchmarks.tables import Column, Ratio, Table
from benchmarks.task import OURS

LOCAL, OBSTORE, NEW, RANKS, RESUMED, RESUMED_ALONE = "local", "obstore", "new", "ranks", "resumed", "resumed_alone"
"""Rows: local files; obstore alone; this package where no index is known; with several ranks; in mid-epoch; likewise,
where nobody reads ahead for workers."""

NUM_RANKS = 4
LINK = "40 ms to the first byte of an answer, {connection_mb:,.0f} MB/s a connection, {link_mb:,.0f} MB/s together"
_FETCHED = Column("fetched", "bytes fetched, x the split", "{:.4f}", has_spread=False)

PIXELS = Table(
    "pixels",
    "photographs a second, from a server",
    "{num_examples:,} photographs, {megabytes:,.0f} MB, with the work of the suite `jpeg`; batches of {batch_size}, in "
    f"{{num_workers}} workers. The link: {LINK}. In turn, each is started anew with an empty cache folder: its first "
    "epoch is the cold one, which also fetches what it needs to know of the files; the warm ones follow in the same "
    "process. Streaming and litData read files that were converted before; the conversion is not counted.",
    "competitor",
    [
        Column("cold_per_s", "cold, examples/s"),
        Column("cold_ours_by_it", "tfds_torch by it", "{:.2f}", ratio=Ratio("cold_per_s", of=OURS)),
        Column("start_s", "process start to first batch, cold, s", "{:.2f}"),
        Column("start_by_ours", "x tfds_torch", "{:.2f}", ratio=Ratio("start_s", by=OURS)),
        Column("warm_per_s", "warm, examples/s"),
        Column("warm_ours_by_it", "tfds_torch by it", "{:.2f}", ratio=Ratio("warm_per_s", of=OURS)),
        _FETCHED,
        Column("warm_fetched", "in a warm epoch, x the split", "{:.4f}", has_spread=False),
        replace(NUM_EXAMPLES, heading="examples an epoch"),
    ],
)

LONG = Table(
    "long",
    "photographs a second, over a link that is faster than decoding",
    "{num_examples:,} photographs, {megabytes:,.0f} MB, {copies} times the same ones under other names, once, with an "
    "empty cache folder and an index, in {num_workers} workers; and the same as local files. The link: "
    "{link_mb:,.0f} MB/s together, {connection_mb:,.0f} MB/s a connection. Server, fetcher and decoders share the "
    "machine's cores.",
    "photographs",
    [
        Column("per_s", "examples/s"),
        Column("by_local", "x local files", "{:.2f}", ratio=Ratio("per_s", by=LOCAL)),
        Column("epoch_s", "an epoch, s", "{:.0f}"),
        _FETCHED,
    ],
)

BYTES = Table(
    "bytes",
    "encoded images, nothing decoded",
    "{num_examples:,} photographs, {megabytes:,.0f} MB, {copies} times the same ones under other names, shuffled, "
    f"without workers, over the first table's link. Each is started anew with an empty cache folder; {NUM_RANKS} "
    "ranks share one. obstore alone fetches ranges of 8 MiB and throws them away. Memory of the fetcher: the most that "
    "was resident; its processor time is that of the cold epoch.",
    "reader",
    [
        Column("mb_per_s", "cold, MB/s"),
        Column("by_link", "x the link", "{:.3f}"),
        Column("by_obstore", "x obstore alone", "{:.3f}", ratio=Ratio("mb_per_s", by=OBSTORE)),
        _FETCHED,
        Column("lost", "examples lost or twice", has_spread=False),
        Column("warm_requests", "requests for data in the next epoch", has_spread=False),
        Column("warm_mb_per_s", "next epoch, MB/s"),
        Column("fetcher_mb", "fetcher, MB"),
        Column("fetcher_cpu", "fetcher, processor s/GB", "{:.2f}"),
    ],
)

FIRST = Table(
    "first",
    "how training begins",
    "{num_examples:,} photographs, {megabytes:,.0f} MB, in {num_workers} workers, over the same link; each in a fresh "
    "process with an empty cache folder, metadata included. With an index: an earlier epoch has left it on this "
    "machine. Resumed: by a state in the middle of an epoch, with an index. Without one, the first window draws from "
    "all files, so that the time of the link for the whole split is the bound. Bytes are counted when the batch has "
    "come to the training loop: with workers, they are those of all batches that are read at the same time.",
    "beginning",
    [
        Column("start_s", "process start to first batch, s", "{:.2f}"),
        Column("beyond_s", "beyond local files, s", "{:.2f}"),
        Column("by_window", "beyond, x the link's time for the first window", "{:.2f}"),
        Column("before", "bytes sent before it, x those of a batch", "{:.2f}"),
    ],
)

MACHINES = Table(
    "machines",
    "machines with a cache folder each, block_groups=4",
    "{num_examples:,} encoded photographs, global batches of {batch_size}, one process for each machine, without "
    "workers; all have an index, and empty cache folders. The link: {link_mb:,.0f} MB/s together.",
    "machines",
    [
        Column("fetched", "bytes in the largest cache folder, x the split", "{:.4f}", has_spread=False),
        Column("all_fetched", "bytes fetched by all, x the split", "{:.4f}", has_spread=False),
        Column("equal", "global batches that equal those of one machine", "{:.4f}", has_spread=False),
        Column("lost", "examples lost or twice", has_spread=False),
    ],
)

SMALL_CACHE = Table(
    "small_cache",
    "a cache folder of a quarter of the split",
    "{num_examples:,} encoded photographs, {megabytes:,.0f} MB, without workers, over the same link, windows of "
    "{window:,} examples. Both have an index. The folder is looked at five times a second.",
    "max_bytes",
    [
        _FETCHED,
        Column("by_all", "x no limit", "{:.4f}", has_spread=False, ratio=Ratio("fetched", by="none")),
        Column("next_fetched", "in the next epoch, x the split", "{:.4f}", has_spread=False),
        Column("lost", "examples lost or twice", has_spread=False),
        Column("cached_mb", "folder at its largest, MB"),
        Column("by_limit", "x max_bytes", "{:.3f}"),
    ],
)
