"""The read mode, and so the engine, that serves a pipeline; and the ranges that it reads in the stream modes."""

from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.tensorflow_runtime import check_tensorflow_is_installed
from tfds_torch.errors import ConfigError
from tfds_torch.plan.deal import Assignment, deal_examples, deal_files
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.passes import Passes
from tfds_torch.storage.source import Source, is_local

_DEFAULTS = ReadOptions()


def find_read_mode(source: Source, split: str, plan: EpochPlan, options: ReadOptions) -> str:
    """Return the read mode for a plan: `index`, `files` or `examples`.

    Raises:
        ConfigError: the mode that was asked for cannot keep its promises here, or no mode can read the files.
    """
    obstacle = source.obstacle
    mode = options.mode
    if mode == "auto":
        mode = "index" if obstacle is None else "files" if _can_deal_files(source, split, plan) else "examples"
    if mode == "index":
        if obstacle is not None:
            working = "'files' (training) and 'examples'" if source.can_stream else "none: copy it to this machine"
            raise ConfigError(
                f"read mode 'index' fetches single records, and {obstacle}. The modes that can read "
                f"{source.name} are {working}."
            )
        if options.block_groups > 1 and options.blocks is None:
            raise ConfigError(
                f"block_groups={options.block_groups} deals blocks into groups, and single examples are shuffled "
                f"here. Pass block_records, such as ReadOptions(block_records=256, "
                f"block_groups={options.block_groups}), or leave out block_groups."
            )
        if options.mode == "index":
            _refuse_idle(options, mode, _of_streams(options), "shuffles the whole split and opens every file once")
        return mode
    if not isinstance(plan.order, Passes) or plan.order.subset is not None or plan.order.is_endless:
        what = f"the order {type(plan.order).__name__}"
        if isinstance(plan.order, Passes):
            what = "a subset" if plan.order.subset is not None else f"epoch_size={plan.order.num_slots}"
        why = f"{obstacle}. Copy it to this machine" if obstacle else f"mode={mode!r}. Use mode 'index' or 'auto'"
        raise ConfigError(f"{what} needs every example by its number, and {source.name} is read as a stream: {why}.")
    url = next((part.path for part in source.instructions if not is_local(part.path)), None)
    if not source.can_stream and obstacle is None and url is not None:
        raise ConfigError(
            f"read mode {mode!r} streams files by tensorflow, which does not open {url}. Use mode 'index' or 'auto'."
        )
    if not source.can_stream:
        where = "" if obstacle is None else f", and {obstacle}: copy it to this machine"
        raise ConfigError(
            f"read mode {mode!r} streams TFRecord files, and {source.name} is stored in a format that is "
            f"only read by index. Use mode 'index' or 'auto'{where}."
        )
    if options.on_error != "raise":
        raise ConfigError(
            f"on_error={options.on_error!r} replaces damaged examples by their neighbours, and the read mode is "
            f"{mode!r}: a stream cannot go on behind a damaged record. Use mode 'index', or on_error='raise'."
        )
    for name in ("block_records", "block_groups"):
        value = getattr(options, name)
        if value not in (None, getattr(_DEFAULTS, name)):
            reason = "" if obstacle is None else f" ({obstacle}, so 'index' cannot be used)"
            raise ConfigError(
                f"{name}={value} sets how mode 'index' shuffles, and the read mode is {mode!r}{reason}. Leave out "
                f"{name}: a stream shuffles by shuffle_buffer."
            )
    if options.mode != "auto":
        _refuse_idle(options, mode, ("verify_checksums",), "is read by tf.data, which always verifies")
    check_tensorflow_is_installed(f"read mode {mode!r}")
    if mode == "files":
        _check_files_can_be_dealt(source, split, plan)
    return mode


def _of_streams(options: ReadOptions) -> tuple[str, ...]:
    """Return the options that have an effect in the stream modes only."""
    buffer = () if options.blocks is not None else ("shuffle_buffer",)
    return ("cycle_length", "read_buffer_bytes", "ram_budget_bytes", *buffer)


def _refuse_idle(options: ReadOptions, mode: str, names: tuple[str, ...], reason: str) -> None:
    """Raise ConfigError where an option is set that has no effect in the mode that was asked for."""
    for name in names:
        if getattr(options, name) != getattr(_DEFAULTS, name):
            raise ConfigError(
                f"ReadOptions: {name}={getattr(options, name)!r} has no effect in read mode {mode!r}, which {reason}. "
                f"Leave it out, or use mode 'auto', where it takes effect as far as the mode that is found allows."
            )


def assign(source: Source, plan: EpochPlan, epoch: int, mode: str) -> Assignment:
    """Return which ranges of the source's instructions the plan's pipeline reads in an epoch of a stream mode.

    Raises:
        ConfigError: the read mode is `index`, in which `EpochPlan.batch` lists the examples of every batch.
    """
    if mode == "index":
        raise ConfigError("In read mode 'index' nothing is dealt: EpochPlan.batch says what is in every batch.")
    deal = deal_files if mode == "files" else deal_examples
    return deal(plan, [instruction.take for instruction in source.instructions], epoch)


def _can_deal_files(source: Source, split: str, plan: EpochPlan) -> bool:
    try:
        _check_files_can_be_dealt(source, split, plan)
    except ConfigError:
        return False
    return True


def _check_files_can_be_dealt(source: Source, split: str, plan: EpochPlan) -> None:
    world = plan.world
    others = "'index', 'examples'" if source.obstacle is None else "'examples'"
    if not plan.is_training:
        raise ConfigError(f"read mode 'files' yields some examples twice: evaluation takes {others} or 'auto'.")
    if plan.remainder is Remainder.PAD:
        raise ConfigError(f"read mode 'files' does not pad: use remainder='wrap' or 'drop', or mode {others}.")
    if len(source.instructions) < world.num_pipelines:
        raise ConfigError(
            f"read mode 'files' needs a file for each pipeline: {source.name} split {split!r} has "
            f"{len(source.instructions)} non-empty files, and there are {world.num_pipelines} pipelines "
            f"({world.num_replicas} ranks x {world.num_workers} workers). Use mode {others} or 'auto'."
        )
