"""timm's own scripts on any TFDS dataset: `from tfds_torch.timm import install; install()`.

Or, for a script that is to stay as it is: `python -m tfds_torch.timm train.py --dataset tfds/cifar10 ...`.
"""


def install(fuse: bool | str = "auto") -> None:
    """Make timm's `create_dataset("tfds/...")` read through tfds_torch, and its evaluation exact on several ranks.

    Call it once, before anything is imported from timm by name:

        from tfds_torch.timm import install; install()
        from timm.data import create_dataset, create_loader

    What changes:

    - `create_dataset("tfds/...")` takes the same arguments, and its dataset has the same methods; the examples come
      from `ParserTfds`, local ones without tensorflow. Other datasets are timm's own.
    - `create_loader` hands its batch size to the dataset, so that batches and `len` are exact, and compares what the
      ranks are about to read. Settings that contradict the dataset are a ConfigError.
    - Several ranks evaluate exactly: `accuracy` leaves out padding (label -100), and in the last batch
      `reduce_tensor(x, num_replicas)` and `AverageMeter.update(x, batch_size)` weight by examples that are not padding.
      Elsewhere the three are timm's own. Other metrics stay the script's: see `MaskedMean`.
    - `filenames()` come in the order of an unshuffled loader on one rank. Asked for before the loader is made (as
      timm's validate.py does for `--real-labels`), they make it read with one worker, with a warning.

    - The crop, resize and flips with which the transform of such a loader begins are done while images are decoded;
      the rest runs as it is, seeded by the example. Each transform's new form is logged once, level INFO.

    A second call changes only `fuse`.

    Args:
        fuse: "auto": as above, unless the environment has TFDS_TORCH_FUSE=0. True: as above, also with that. False:
            transforms and collation are left to timm.

    Raises:
        ConfigError: timm is not installed, or is a version whose functions lie elsewhere; or the script already holds
            timm's own functions.
    """
    from tfds_torch.integrations.timm import drop_in  # Loads torch: not for the help of the command.

    drop_in.install(fuse)
