"""check_parser: the proofs of `python -m tfds_torch.check` for a parser that was made in Python."""

from tfds_torch.check.prove import How, prove
from tfds_torch.check.report import Report
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.printable import quoted


def check_parser(
    parser: DatasetParser,
    *,
    num_replicas: int = 1,
    num_workers: int = 2,
    num_epochs: int = 2,
) -> Report:
    """Read a parser as a training does, with every rank and real workers, and check the examples that came.

    It takes any parser: your own dataset (`ParserMapStyle`), a subset, balanced or weighted examples, a mixture.
    The promises are those of the command: equal numbers of full batches on every rank, each example once (for a subset:
    its examples; for balanced examples: once in each pass of their class; for weighted ones: as often as the order
    draws them), each rank's share, and in read mode `index` one order for any number of ranks and workers, and exact
    resume. The pixels of some images are compared with Pillow's.

    Ranks read one after the other, through `create_loader`, in whole batches where the parser has a preprocess.

    Args:
        parser: the parser as the training script makes it.
        num_replicas: ranks, >= 1.
        num_workers: loader processes of a rank, >= 0.
        num_epochs: epochs that are read, >= 1.

    Returns:
        The report: `print(report)` shows it; `assert report.is_kept, report` is a test.

    Raises:
        ConfigError: an argument that cannot work, or a parser that cannot be read in such a world.
        ShardError, CorruptRecordError, WorkerError: reading failed.
    """
    if not isinstance(parser, DatasetParser):
        raise ConfigError(
            f"check_parser: {quoted(parser)} is not a parser. Of a dataset of your own make one: "
            f"check_parser(ParserMapStyle(dataset, batch_size=32, is_training=True))."
        )
    how = How(
        num_replicas=check_integer("check_parser: num_replicas", num_replicas, 1),
        num_workers=check_integer("check_parser: num_workers", num_workers, 0),
        num_epochs=check_integer("check_parser: num_epochs", num_epochs, 1),
    )
    return prove(parser, how)
