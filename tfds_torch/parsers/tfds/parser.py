"""ParserTfds: a TFDS dataset on disk as batches of numpy arrays."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.fields import EncodedField, FieldDecoder, ImageField, TensorImageField
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.window_fields import WindowField, WindowImageField
from tfds_torch.errors import ConfigError
from tfds_torch.images.boxes import BoxRows
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.images.views import Views
from tfds_torch.parsers.cache import CACHED_MODES, DecodedCache, open_cached
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.options import DecodeOptions, EpochOptions
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.protocol import METADATA_FIELDS, find_spec
from tfds_torch.parsers.provenance import Episodes, Provenance
from tfds_torch.parsers.remote_store import open_dataset_store
from tfds_torch.parsers.statistics import Statistics, read_statistics
from tfds_torch.parsers.tfds.declared_boxes import find_boxes
from tfds_torch.parsers.tfds.feature_tree import list_leaves
from tfds_torch.parsers.tfds.fields import DatasetFields, OptionalLabelField, is_image
from tfds_torch.parsers.tfds.folder import folder_of
from tfds_torch.parsers.tfds.targets import check_can_be_mapped, class_names, parse_target_key
from tfds_torch.parsers.tfds.window_columns import make_column, read_columns
from tfds_torch.parsers.tfds.window_fields import OWN_FIELDS, WindowFields
from tfds_torch.parsers.tfds.windows import WindowArguments, check_read_mode, divide_preprocess
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.windows import Windows
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.cached_source import PIXELS
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.remote.options import RemoteOptions
from tfds_torch.storage.source import Source, is_local

if TYPE_CHECKING:
    from tensorflow_datasets.core.splits import AbstractSplit
    from tensorflow_datasets.decode import SkipDecoding

_NAMES_AT_A_TIME = 64


class TfdsDataset(Dataset):
    """The records of a split of a TFDS dataset, or windows of them.

    Args:
        source: the records, or the windows.
        split: the split expression.
        decoding: how examples are read and decoded.
        fields: the fields of the records, or of the windows.
        directories: the version directories, one or several, or the root of an image folder.
        cache: where decoded images are kept, built here if it does not exist; None: nowhere.

    Attributes:
        directories: the version directories, one or several, or the root of an image folder.
        cache: where decoded images are kept; None: nowhere.

    Raises:
        ConfigError: as for ParserTfds.
    """

    declares_boxes = True

    def __init__(
        self,
        source: Source,
        split: str,
        decoding: DecodeOptions,
        fields: DatasetFields | WindowFields,
        directories: Sequence[str],
        cache: DecodedCache | None = None,
    ) -> None:
        self._fields, self.directories, self.cache = fields, directories, cache
        super().__init__(source, split, decoding, fields.image_key, fields.target_key)
        if cache is not None:
            self._check_cache(decoding.read)
            self.source = open_cached(source, split, "/".join(fields.find("image").path), cache)

    @property
    def specs(self) -> Mapping[str, Any]:
        """Field -> shape and dtype of one value as the dataset declares it."""
        return self._fields.specs

    @property
    def paths(self) -> list[Path | str]:
        """The directories: paths of local ones, and texts of URLs."""
        return [Path(one) if is_local(one) else one for one in self.directories]

    def provenance(self) -> Provenance:
        """Return where the shards lie, and whether TFDS's own reader reads the same examples; see `Dataset`."""
        holds_images = not self.source.has_shards
        return Provenance(
            promised_by="the image folder" if holds_images else "dataset_info.json",
            place=self.paths[0],
            folder=folder_of(self.directories[0], self.source) if len(self.directories) == 1 else None,
            holds_images=holds_images,
            records=getattr(self.source, "records", None),
            why_no_second_reader=self._why_no_second_reader(),
            can_be_cached=self.image_mode in CACHED_MODES and self.source.obstacle is None,
            frames=self.gif_features,
        )

    def _why_no_second_reader(self) -> str | None:
        if len(self.directories) > 1:
            return "TFDS reads one directory at a time"
        if not all(is_local(run.path) for run in self.source.instructions):
            return "TFDS does not read files of object stores"
        return None if self.source.has_shards else "an image folder has no records, and so no index of them"

    @property
    def gif_features(self) -> list[str]:
        """The keys of features whose values are all frames of a GIF: uint8 `[frames, H, W, 3]`, as Pillow has them."""
        leaves = list_leaves(self._fields.features)
        return [key for key, leaf in leaves if is_image(leaf) and len(leaf.spec.shape) == 4]

    def moving_boxes(self, fields: Sequence[str], preprocess: Preprocess) -> tuple[BoxRows, ...]:
        """Return the boxes that move with the image: those that the preprocess names, else the declared ones."""
        return find_boxes(self._fields.features, self._fields.paths(fields), preprocess.box_fields)[0]

    def unmoved_boxes(self, fields: Sequence[str], preprocess: Preprocess) -> list[str]:
        """Return the fields whose declared boxes do not move with the image; empty if the preprocess names boxes."""
        if not isinstance(preprocess, Views):
            return find_boxes(self._fields.features, self._fields.paths(fields), preprocess.box_fields)[1]
        groups, others = find_boxes(self._fields.features, self._fields.paths(fields), None)
        return list(dict.fromkeys([*(part.field for group in groups for part in group.boxes), *others]))

    def with_read(self, read: ReadOptions) -> Self:
        """Return this dataset with other options for reading; see `Dataset`."""
        if self.cache is not None:
            self._check_cache(read)
        return super().with_read(read)

    @property
    def _folder(self) -> str:
        return self.directories[0]

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return a name for every example of the split, in the order of `index`; see `Dataset`."""
        if not absolute or len(self.directories) == 1:
            return super().filenames(basename, absolute)
        folders = [id.partition("/")[0] for id in self.ids(np.arange(len(self.source)))]
        names = [name.removeprefix(f"{folder}/") for name, folder in zip(self._file_names(), folders, strict=True)]
        names = [os.path.basename(name) for name in names] if basename else names
        return [os.path.join(self.directories[int(one)], name) for one, name in zip(folders, names, strict=True)]

    def _file_names(self) -> list[str]:
        key = self._fields.file_name_key
        if key is None or not self.source.has_shards:
            return super()._file_names()
        return list(self._stored_names(key))

    def _stored_names(self, key: str) -> Iterator[str]:
        """Yield the values of a scalar field as texts, in the order of `index`."""
        if self.source.obstacle is not None:
            raise ConfigError(
                f"The file names of {self.dataset_name} can only be read from local shards, and "
                f"{self.source.obstacle}. Ask for the field {quoted(key)} instead."
            )
        self.source.check()
        for start in range(0, len(self.source), _NAMES_AT_A_TIME):
            index = np.arange(start, min(start + _NAMES_AT_A_TIME, len(self.source)))
            for name in self.source.read(index, [key])[key]:
                yield name.decode(errors="replace") if isinstance(name, bytes) else str(name)

    def _field(self, name: str) -> FieldDecoder:
        field = self._fields.field(name, self.image_mode)
        return ImageField(PIXELS, field.mode) if self.cache is not None and isinstance(field, ImageField) else field

    def _encoded_field(self, name: str) -> EncodedField:
        """Return how a field is handed over as it is stored: every single image encoded."""
        return self._fields.encoded_field(name)

    @property
    def has_optional_label(self) -> bool:
        """Whether examples may have no label, because its feature is optional."""
        return self.has_field("label") and isinstance(self._fields.field("label", None), OptionalLabelField)

    @property
    def _has_integer_target(self) -> bool:
        return self._fields.has_integer_target

    @property
    def _has_one_target(self) -> bool:
        return self._has_integer_target or (self.class_map is not None and self._fields.has_scalar_target)

    @property
    def _all_fields(self) -> Sequence[str]:
        return self._fields.all_fields

    @property
    def _stored_class_names(self) -> list[str] | None:
        return class_names(self.target_key, self._fields.features)

    def _find_stored(self, name: str) -> tuple[object, bool]:
        feature = self._fields.find(name).feature
        return feature, is_image(feature)

    def _check_target_can_be_mapped(self) -> None:
        check_can_be_mapped(self.target_key, self._fields.features, self.dataset_name)

    def _check_cache(self, read: ReadOptions) -> None:
        """Raise ConfigError where a decoded cache cannot work with a parser's other arguments."""
        cache = self.cache
        if not isinstance(cache, DecodedCache):
            raise ConfigError(f"cache={quoted(cache)} must be a DecodedCache, for example DecodedCache(), or None.")
        if isinstance(self._fields.field("image", self.image_mode), TensorImageField):
            raise ConfigError(
                f"{self.dataset_name}: cache= keeps decoded images, and {quoted(self.image_key)} is stored as "
                f"numbers, not as an image file. Leave out cache=."
            )
        if self.is_undecoded("image"):
            raise ConfigError(
                f"{self.dataset_name}: cache= keeps decoded images, and decode gives 'image' as bytes. Leave out one."
            )
        if read.mode not in ("auto", "index"):
            raise ConfigError(
                f"{self.dataset_name}: a decoded cache is read by index, and read mode {quoted(read.mode)} streams the "
                f"original files. Use mode 'index' or 'auto', or leave out cache=."
            )
        if self.image_mode not in CACHED_MODES:
            raise ConfigError(
                f"{self.dataset_name}: a decoded cache holds three channels, and "
                f"image_mode={quoted(self.image_mode)} needs those of the files. Use image_mode 'RGB' or 'L', or leave "
                f"out cache=."
            )
        also = {} if self.preprocess is None else self.preprocess.also_kinds
        if cache.max_resolution is not None and also:
            raise ConfigError(
                f"{self.dataset_name}: max_resolution={cache.max_resolution} makes the cached image smaller, but not "
                f"{', '.join(map(repr, also))}, which must have its size. Leave out max_resolution."
            )


class TfdsWindows(TfdsDataset):
    """Windows of the episodes of a split of a TFDS dataset."""

    source: WindowSource
    _fields: WindowFields
    reserved_names = frozenset((*METADATA_FIELDS, *OWN_FIELDS))

    @property
    def has_windows(self) -> bool:
        """Whether examples are windows of episodes."""
        return True

    def provenance(self) -> Provenance:
        """Return where the episodes lie, and how windows are cut from them; see `Dataset`."""
        episodes = self.source.episodes.instructions
        return replace(
            super().provenance(),
            promised_by="the index of steps",
            episodes=Episodes(episodes, self.source.reader.num_steps, self.source.windows),
            records=None,
            can_be_cached=False,
            why_no_second_reader="TFDS reads whole episodes, not windows of them",
        )

    @property
    def cameras(self) -> Mapping[str, Preprocess]:
        """Field -> how its images are cut and resized while they are decoded."""
        return self._fields.cameras

    def with_read(self, read: ReadOptions) -> Self:
        """Return these windows with other options for reading; see `Dataset`."""
        check_read_mode(self.dataset_name, read)
        return super().with_read(read)

    def columns_at(self, fields: Sequence[str], index: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return fields of windows by their numbers, int64 [n], in the order asked; see `columns`."""
        chains = self.transformed.without_epoch(fields, "columns()", "What is stored comes with stored=True.")
        given = [name for name in fields if chains is not None and chains.gives(name)]
        stored = [name for name in fields if name not in given]
        columns = read_columns(self._fields, self.source, stored, index, self.read)
        for name in given:  # One by one: the steps of each are those of the fields that it is made of.
            content = self.content([name], in_batches=False)
            columns[name] = make_column(self._fields, self.source, content, name, index, self.read)
        return {name: columns[name] for name in fields}

    def column_keys(self, field: str) -> tuple[str, ...] | None:
        """Return the stored fields that a column is made of; None where a transform makes it."""
        return None if self.transformed.may_give(field) else self._fields.column_keys(field)

    def number_of_none(self, field: str) -> float | None:
        """Return the number that stands for None in a column of an optional feature; see `Dataset`."""
        return None if self.transformed.may_give(field) else self._fields.number_of_none(field)

    def image_axes(self, name: str) -> int:
        """Return the number of axes of a field that is images, with those of time; see `Dataset`."""
        if not self.is_channels_first(name):
            return super().image_axes(name)
        spec = find_spec(self.stored_spec, name)
        return 3 if spec is None else len(spec.shape)

    def is_channels_first(self, name: str) -> bool:
        """Return whether the values of a field are images [..., C, H, W]."""
        decoder = self.field(name)
        return isinstance(decoder, WindowImageField) or (isinstance(decoder, WindowField) and decoder.is_image)


@explain_keywords
class ParserTfds(DatasetParser):
    """Read a split of a prepared TFDS dataset.

    Building a parser reads `dataset_info.json` and `features.json` only, and builds the cache where one is asked for.
    Local files are read without tensorflow; the stream modes load it in the process that calls `batches`. Parsers can
    be pickled, and may be used from several processes.

    Examples:
        >>> from tfds_torch import ParserTfds, World, demo
        >>> parser = ParserTfds(demo.prepare("digits"), "digits", split="train", batch_size=32)
        >>> len(parser)
        1437
        >>> batch = next(parser.batches(World()))
        >>> len(batch.image), batch.image[0].shape, batch.label.shape
        (32, (8, 8, 3), (32,))

    Args:
        root: TFDS data directory, or the version directory of one dataset, as a path or a URL (s3, gs, az, https, http;
            see docs/remote-files.md). None means TFDS's default data directory. A list of these: one dataset in several
            directories, its examples in their order, with ids `<number of the directory>/<id>`; labels become those
            of the first directory, by the names of their classes. For `image_folder`: the folder that holds
            `<split>/<label>/<image>.jpg` (or .png, .tif, ...); or `<label>/<image>.jpg`, which is the split `train`.
        name: `name`, `name/config`, `name:version` or `name/config:version`; or the path of a version directory; or
            `image_folder`, read as `tfds.ImageFolder` reads it. None if `root` is a version directory.
        split: a TFDS split expression: `train`, `train[:10%]`, `train+test`, `train[5shard:7shard]`; or an object of
            TFDS: one of `tfds.even_splits(...)`, a `tfds.core.ReadInstruction`, or a sum of these, which becomes an
            expression: `parser.split`. Cuts that TFDS rounds to the start or the end of a split are refused.
        shuffle: whether the order is shuffled anew in every epoch; None means only in training.
        is_training: training fills the last batch with further examples; evaluation yields every example exactly once.
        batch_size: examples of a rank's batch, >= 1. Required in training, and in evaluation with several workers.
        repeats: passes over the split in one epoch; 0 and 1 mean one.
        seed: seed of the order, >= 0.
        remainder: `Remainder` or its name. None means `wrap` in training, in evaluation `pad` on several ranks, else
            `keep`.
        preprocess: `TrainPreprocess` or `EvalPreprocess`: images are cut, resized and flipped while they are decoded,
            and `batches` yields them as one array. Needs batch_size. None if images keep their stored size. Windows
            also take a dictionary, camera -> preprocess: all images of a window get the same crop and flip.
        image_key: feature that holds the image, or a tensor [H, W] or [H, W, C]; None if there is none.
        target_key: feature that holds the target; None if there is none. Several keys, also as "cat,dog", name numbers:
            the label is the list of the positions of those that are > 0. Keys are taken literally first, then with "/"
            as nesting.
        image_mode: `RGB`, `L`, `RGBA`, or None for the channels as stored.
        class_map: new labels for the target, by source label (int) or class name; or the path of such a dict (`.pkl`),
            or of a text file (`.txt`) with a class name in each line. None if the target keeps its labels.
        read: how examples are read.
        epoch_size: examples of an epoch, in training: the next ones of the passes, one after the other, so that data
            too large for whole epochs need not begin anew. None if an epoch is `repeats` passes. In read mode `index`.
        decode: field -> whether it is decoded: with {"image": False} an image comes as the stored bytes of its file; a
            text can come as bytes, too. A name stands for its stored feature, by whatever name it is asked for. This
            does not work with a preprocess, which needs pixels. None if all fields are decoded.
        download: whether to prepare (download and build) a dataset that is not there, once, in a separate process.
        windows: an example is a window of steps of an episode, rather than a whole record: see `Windows` and
            docs/robot-episodes.md. `index` numbers windows, and an id is `<shard>__<record>/<step>`. The first parser
            of a dataset reads its files once, for an index of their steps. Fields of steps are named from the sequence
            that holds them (`observation/image`); there are no fields `image` and `label` but those of `fields`. Local
            files, read mode `index`.
        fields: of windows: new names -> the features that they stand for, so that datasets agree:
            `{"image_primary": "observation/image"}`. Other features keep their names.
        transform: functions over whole examples, in turn: a function of a dictionary, a `Transform`, an object with
            `map` or `random_map` as Grain's, or a list of these; see `Transform` and docs/transforms.md.
        cache: where decoded images are kept: built at once if it does not exist, by one process for all ranks, and
            read instead of the original files from then on. Needs local files, read mode `index`, and image_mode `RGB`
            or `L`. None if images are decoded in every epoch.
        decoders: as in `tfds.load`, {"image": tfds.decode.SkipDecoding()}: the same as `decode`. SkipDecoding() alone
            stands for all features that are single images; other decoders are refused.
        remote: of a URL: how objects are fetched, and where they are cached. None means RemoteOptions().

    Raises:
        ConfigError: an argument cannot work; the message says which values can.
        DatasetNotFoundError: the dataset does not exist, or is not prepared under `root`.
    """

    dataset: TfdsDataset

    def __init__(
        self,
        root: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
        name: str | os.PathLike[str] | None = None,
        split: "str | AbstractSplit" = "train",
        shuffle: bool | None = None,
        is_training: bool = False,
        batch_size: int | None = None,
        repeats: int = 0,
        *,
        seed: int = 42,
        remainder: Remainder | str | None = None,
        preprocess: Preprocess | Mapping[str, Preprocess] | None = None,
        image_key: str | None = "image",
        target_key: str | Sequence[str] | None = "label",
        image_mode: str | None = "RGB",
        class_map: Mapping[Any, int] | str | os.PathLike[str] | None = None,
        read: ReadOptions = ReadOptions(),
        epoch_size: int | None = None,
        decode: Mapping[str, bool] | None = None,
        download: bool = False,
        cache: DecodedCache | None = None,
        decoders: "Mapping[str, Any] | SkipDecoding | None" = None,
        windows: Windows | None = None,
        fields: Mapping[str, str] | None = None,
        transform: Any = None,
        remote: RemoteOptions | None = None,
    ) -> None:
        of_image, cameras = divide_preprocess(preprocess, has_windows=windows is not None)
        epoch = EpochOptions(
            shuffle=shuffle,
            is_training=is_training,
            batch_size=batch_size,
            repeats=repeats,
            seed=seed,
            remainder=remainder,
            epoch_size=epoch_size,
        )
        decoding = DecodeOptions(
            preprocess=of_image,
            image_mode=image_mode,
            class_map=class_map,
            read=read,
            decode=decode,
            transform=transform,
        )
        store = open_dataset_store(root, name, remote, read)  # Its fetcher starts during the imports.
        # They import TFDS, which workers do without: they get the parser pickled.
        from tfds_torch.parsers.tfds.joined import open_joined
        from tfds_torch.parsers.tfds.splits import split_expression

        found = open_joined(root, name, download=download, store=store)
        split = split_expression(split, found.splits, found.name)
        source = found.source(split, verify_checksums=read.verify_checksums)
        named: DatasetFields | WindowFields
        of_windows = WindowArguments(windows, fields, of_image, cameras)
        if of_windows.are_given:
            others: dict[str, Any] = {"image_key": image_key, "target_key": target_key, "class_map": class_map}
            others |= {"cache": cache, "decoders": decoders}
            if found.labels:
                raise ConfigError(
                    f"{found.name}: windows of several directories need equal classes, and {', '.join(found.labels)} "
                    f"differ in their order. Mix the directories as members of a ParserMixture."
                )
            named, source = of_windows.open(source, found.features, read, others)
        else:
            target = parse_target_key(target_key, found.features)
            named = DatasetFields(found.name, found.features, image_key, target)
            if decoders is not None:
                from tfds_torch.parsers.tfds.decoders import merge_decoders

                decoding = replace(decoding, decode=merge_decoders(decode, decoders, named))
        self.windows = windows
        directories = found.directories or (found.directory,)
        kind = TfdsWindows if of_windows.are_given else TfdsDataset
        super().__init__(kind(source, split, decoding, named, directories, cache), epoch)

    @staticmethod
    def split_names(
        root: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
        name: str | os.PathLike[str] | None,
        remote: RemoteOptions | None = None,
    ) -> list[str]:
        """Return the names of the splits of a prepared dataset.

        Args:
            root: as in ParserTfds: TFDS data directory, or the version directory of one dataset, or a list of these.
            name: as in ParserTfds; None if `root` is a version directory.
            remote: of a URL: how objects are fetched, and where they are cached. None means RemoteOptions().

        Raises:
            ConfigError: the name does not have a valid form.
            DatasetNotFoundError: the dataset does not exist, or is not prepared under `root`.
        """
        from tfds_torch.parsers.tfds.joined import open_joined

        return list(open_joined(root, name, store=open_dataset_store(root, name, remote)).splits)

    @property
    def data_dir(self) -> Path | str:
        """The version directory, the first of several, with shards and `dataset_info.json`. A URL is a text."""
        return self.data_dirs[0]

    @property
    def data_dirs(self) -> list[Path | str]:
        """The version directories: more than one where the dataset lies in several."""
        return self.dataset.paths

    @property
    def cache(self) -> DecodedCache | None:
        """Where decoded images are kept; None if they are decoded in every epoch."""
        return self.dataset.cache

    @property
    def gif_features(self) -> list[str]:
        """The keys of features whose values are all frames of a GIF: uint8 `[frames, H, W, 3]`, as Pillow has them."""
        return self.dataset.gif_features

    def statistics(self, fields: Sequence[str], *, stored: bool = False) -> Statistics:
        """Return mean, std, min, max and two quantiles of fields of numbers over all windows; see `Dataset`.

        Args:
            fields: names of fields of numbers, as in `columns`.
            stored: whether to use the fields that the dataset stores, also where a Transform makes others.

        Raises:
            ConfigError: there are no windows; a field does not exist, or is not numbers; or a value is not finite.
            ShardError, CorruptRecordError: as reading raises them.
        """
        return read_statistics(self.dataset.as_stored(fields) if stored else self.dataset, fields)
