"""decode= and decoders=: images come as the bytes of their files, whatever the parser."""

import io
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
import torch
import torchvision_build
from conformance import OwnStateLoader, Step, check_resumes
from picture_fixtures import ENCODINGS, NAMES, photograph, write_pictures
from PIL import Image
from storage.beton.made_files import PAGE
from storage.webdataset.made_tars import write_samples
from tfds_fixtures import Datasets, call_reader
from torch.utils.data import DataLoader

from parsers.look_alikes import HubDataset, HubImage
from tfds_torch import (
    DecodedCache,
    EvalPreprocess,
    ImageDataset,
    IndexedImageDataset,
    MultiLoader,
    ParserBeton,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    ReadOptions,
    TrainPreprocess,
    World,
    create_loader,
    export_dataset,
)
from tfds_torch.check.opening import open_parser
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.images.decoders import jpeg
from tfds_torch.images.decoding import ImageDecoder
from tfds_torch.parsers.recipe_file import load_config
from tfds_torch.storage.beton.fields import BetonField, BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

NUM_EXAMPLES = 16
FILES = [
    ENCODINGS[kind](photograph(name, size))
    for kind, size in zip(
        ("jpeg 4:2:0", "jpeg 4:4:4", "jpeg gray", "jpeg 4:2:0"), ((30, 20), (64, 42), (9, 12), (25, 33)), strict=True
    )
    for name in NAMES
] * 2
FILES = FILES[:NUM_EXAMPLES]
BYTES: dict[str, Any] = {"decode": {"image": False}}
SKIP = tfds.decode.SkipDecoding()


@dataclass(frozen=True)
class Case:
    """Parsers over the 16 files: `make` takes the arguments of all parsers; `files` are in the order of `index`."""

    make: Callable[..., Any]
    files: list[bytes]


def tfds_case(folder: Path) -> Case:
    return Case(partial(ParserTfds, write_pictures(folder, FILES, shards=(5, 11)), "pictures"), FILES)


def folder_case(folder: Path) -> Case:
    for number, file in enumerate(FILES):
        path = folder / "train" / str(number % 3) / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file)
    make = partial(ParserTfds, folder, "image_folder")
    return Case(make, [FILES[int(Path(one).stem)] for one in make().ids(np.arange(NUM_EXAMPLES))])


def tar_case(folder: Path) -> Case:
    for tar in range(2):
        numbers = range(tar, NUM_EXAMPLES, 2)
        samples = [{"__key__": f"{n:02d}", "jpg": FILES[n], "cls": b"%d" % n, "txt": b"t%d" % n} for n in numbers]
        write_samples(folder / f"a-{tar}.tar", samples)
    files = [*FILES[::2], *FILES[1::2]]
    return Case(partial(ParserWebDataset, str(folder / "a-{0..1}.tar")), files)


def beton_case(folder: Path) -> Case:
    fields: dict[str, BetonField] = {"image": BetonImage("passthrough"), "label": BetonInt()}
    with BetonWriter(folder / "a.beton", fields, NUM_EXAMPLES, page_size=PAGE) as writer:
        for number, file in enumerate(FILES):
            writer.add((file, number))
    return Case(partial(ParserBeton, folder / "a.beton"), FILES)


def item_case(folder: Path) -> Case:
    return Case(partial(ParserMapStyle, [(file, number) for number, file in enumerate(FILES)]), FILES)


def path_case(folder: Path) -> Case:
    """Images as Hugging Face's undecoded columns have them: half of them as a path."""
    rows = []
    for number, file in enumerate(FILES):
        (path := folder / f"{number}.jpg").write_bytes(file)
        held = {"bytes": file, "path": None} if number % 2 else {"bytes": None, "path": str(path)}
        rows.append({"image": held, "label": number})
    return Case(partial(ParserMapStyle, rows), FILES)


def mixture_case(folder: Path) -> Case:
    beton, tfds_files = beton_case(folder), tfds_case(folder / "tfds")

    def make(decode: Any = None, **arguments: Any) -> ParserMixture:
        members = {"a": beton.make(decode=decode), "b": tfds_files.make(decode=decode)}
        return ParserMixture(members, **arguments)

    return Case(make, FILES * 2)


CASES: dict[str, Callable[[Path], Case]] = {
    "tfds": tfds_case,
    "image folder": folder_case,
    "tars": tar_case,
    "beton": beton_case,
    "items": item_case,
    "paths": path_case,
    "mixture": mixture_case,
}


@pytest.fixture(scope="module", params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    made: Case = request.param(tmp_path_factory.mktemp("files"))
    return made


KINDS = [
    pytest.param(make, id=name, marks=() if name in ("tfds", "tars", "mixture") else pytest.mark.slow)
    for name, make in CASES.items()
]
"""Of what costs processes, or many readings."""


@pytest.fixture
def no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every decoder of images fail, and the search for the library of JPEG."""

    def fail(*_: object, **__: object) -> Any:
        raise AssertionError("An image was to be decoded.")

    for name in ("read_header", "decode", "decode_into"):
        monkeypatch.setattr(ImageDecoder, name, fail)
    monkeypatch.setattr(jpeg, "warn_of_problems", fail)
    monkeypatch.setattr(Image, "open", fail)


# What comes


@pytest.mark.usefixtures("no_decoder")
def test_the_images_of_a_batch_are_a_list_of_the_files_bytes(case: Case) -> None:
    parser, num = case.make(batch_size=5, **BYTES), 0
    assert parser.is_undecoded("image")
    assert not parser.is_undecoded("label")
    for batch in parser.batches():
        assert type(batch.image) is list
        assert {type(one) for one in batch.image} == {bytes}
        assert batch.image == [case.files[at] for at in batch.index]
        assert batch.label.dtype == np.int64
        num += len(batch)
    assert num == len(case.files)


def test_training_deals_the_same_examples_undecoded(case: Case) -> None:
    arguments: dict[str, Any] = {"is_training": True, "batch_size": 4}
    bare = case.make(**arguments, **BYTES)
    decoded = case.make(**arguments)
    assert bare.fingerprint == decoded.fingerprint
    for world in World.grid(2, 2):
        for one, other in zip(bare.batches(world, 1), decoded.batches(world, 1, fields=("label",)), strict=True):
            assert one.index.tolist() == other.index.tolist()
            assert one.image == [case.files[at] for at in one.index]


@pytest.mark.usefixtures("no_decoder")
def test_single_examples_have_the_bytes(case: Case) -> None:
    parser = case.make(**BYTES)
    assert parser[3].image == case.files[3]
    assert "bytes>" in repr(parser[3])
    assert [one.image for one in parser.subset([2, 5]).examples_by_index([5, 2])] == [case.files[5], case.files[2]]
    assert pickle.loads(pickle.dumps(parser))[1].image == case.files[1]


@pytest.mark.usefixtures("no_decoder")
def test_datasets_give_the_bytes_and_transform_gets_them(case: Case) -> None:
    parser = case.make(batch_size=4, **BYTES)
    assert [image for image, _ in ImageDataset(parser)] == case.files
    assert [size for size, _ in ImageDataset(parser, transform=len)] == list(map(len, case.files))
    indexed = IndexedImageDataset(parser, fields=("image", "index"))
    assert [indexed[at] for at in (0, 7)] == [(case.files[0], 0), (case.files[7], 7)]


def test_loaders_give_the_bytes(case: Case) -> None:
    check_loaders(0, case)


@pytest.mark.parametrize("case", KINDS, indirect=True)
def test_loaders_with_workers_give_the_bytes(case: Case) -> None:
    check_loaders(2, case)


def check_loaders(num_workers: int, case: Case) -> None:
    parser = case.make(is_training=True, batch_size=4, **BYTES)
    wanted = [[case.files[at] for at in batch.index] for batch in parser.batches(fields=())]
    for is_batched in (True, False):
        dataset = ImageDataset(parser, batched=is_batched)
        with create_loader(dataset, num_workers) as loader:
            assert [list(images) for images, _ in loader] == wanted
    plain = DataLoader(ImageDataset(parser), batch_size=4, num_workers=num_workers)
    assert [list(images) for images, _ in plain] == wanted
    if num_workers:
        with MultiLoader(parser, num_workers=num_workers) as batches:
            assert [batch.image for batch in batches] == wanted


class BytesLoader(OwnStateLoader):
    """A Loader of undecoded images as training uses it."""

    def __init__(self, case: Case, num_workers: int = 0) -> None:
        self.files = case.files
        parser = case.make(is_training=True, batch_size=4, **BYTES)
        dataset = ImageDataset(parser, fields=("image", "index", "valid"), batched=True)
        self.loader = create_loader(dataset, num_workers)

    def __iter__(self) -> Iterator[Step]:
        for images, index, valid in self.loader:
            assert images == [self.files[at] for at in index]
            yield self.step(index.tolist(), valid.tolist())


@pytest.mark.parametrize("case", KINDS, indirect=True)
def test_a_loader_restored_at_every_step_gives_the_uninterrupted_tail(case: Case) -> None:
    check_resumes(partial(BytesLoader, case), num_epochs=1)


@pytest.mark.parametrize("case", KINDS, indirect=True)
def test_a_transform_of_ones_own_decodes_in_the_workers(case: Case) -> None:
    parser = case.make(batch_size=4, **BYTES)
    decoded = [image.shape for batch in case.make(batch_size=4).batches() for image in batch.image]
    dataset = ImageDataset(parser, transform=size_of)
    with create_loader(dataset, 2) as loader:
        assert [(height, width, 3) for sizes, _ in loader for height, width in sizes.tolist()] == decoded


def size_of(file: bytes) -> torch.Tensor:
    return torch.tensor(Image.open(io.BytesIO(file)).size[::-1])


def test_what_can_be_asked_for_says_that_it_is_bytes(case: Case) -> None:
    spec = case.make(**BYTES).element_spec.fields["image"]
    assert (spec.shape, spec.dtype) == ((), object)
    assert case.make(decode={"image": True}).element_spec == case.make().element_spec


def test_true_is_what_there_is_without_it(case: Case) -> None:
    parser = case.make(decode={"image": True}, batch_size=16)
    assert not parser.is_undecoded("image")
    assert next(parser.batches()).image[0].dtype == np.uint8


# TFDS


def read_streamed(root: str, mode: str, num_epochs: int) -> list[tuple[list[int], list[bytes]]]:
    """Returns indices and images of a stream. Loads tensorflow."""
    read = ReadOptions(mode=mode, shuffle_buffer=4)
    parser = ParserTfds(root, "pictures", is_training=True, batch_size=4, read=read, decode={"image": False})
    batches = [batch for epoch in range(num_epochs) for batch in parser.batches(epoch=epoch)]
    return [(batch.index.tolist(), batch.image) for batch in batches]


@pytest.mark.parametrize("mode", ["files", "examples"])
def test_streams_give_the_same_bytes(mode: str, tmp_path: Path) -> None:
    found = call_reader(read_streamed, str(write_pictures(tmp_path, FILES, shards=(5, 11))), mode, 2)
    assert len(found) == 8
    for index, images in found:
        assert {type(one) for one in images} == {bytes}
        assert images == [FILES[at] for at in index]


def test_record_files_and_array_record_files_give_the_same_bytes(datasets: Datasets) -> None:
    names = ("image", "mask", "depth", "caption", "file_name")
    arguments: dict[str, Any] = {"batch_size": 9, "decode": dict.fromkeys(names, False)}
    one, other = (
        next(ParserTfds(root, "shapes", **arguments).batches(fields=names))
        for root in (datasets.root, datasets.array_record)
    )
    assert one.image == other.image
    assert one.features == other.features
    starts = {name: {value[:4] for value in one.features[name]} for name in ("mask", "depth")}
    assert starts == {name: {b"\x89PNG"} for name in ("mask", "depth")}
    decoded = next(ParserTfds(datasets.root, "shapes", batch_size=9).batches(fields=("image", "caption")))
    assert one.features["caption"] == [text.encode() for text in decoded.features["caption"]]
    for file, pixels in zip(one.image, decoded.image, strict=True):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(file))), pixels)


def theirs(directory: str) -> tuple[list[bytes], list[bytes]]:
    """Returns images and masks as TFDS gives them, in the order of the files. Loads tensorflow."""
    decoders = {"image": tfds.decode.SkipDecoding(), "mask": tfds.decode.SkipDecoding()}
    config = tfds.ReadConfig(interleave_cycle_length=1)
    rows = tfds.builder_from_directory(directory).as_dataset(split="train", decoders=decoders, read_config=config)
    return tuple(map(list, zip(*((row["image"], row["mask"]) for row in rows.as_numpy_iterator()), strict=True)))  # type: ignore[return-value]


def test_skip_decoding_gives_what_tfds_gives(datasets: Datasets) -> None:
    decoders = {"image": SKIP, "mask": SKIP}
    parser = ParserTfds(datasets.root, "shapes", batch_size=300, decoders=decoders)
    (batch,) = parser.batches(fields=("image", "mask"))
    assert (batch.image, batch.features["mask"]) == call_reader(theirs, str(datasets.shapes))


def test_skip_decoding_alone_stands_for_all_single_images(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", decoders=SKIP)
    names = ("image", "mask", "depth", "frames", "caption", "label")
    assert [name for name in names if parser.is_undecoded(name)] == ["image", "mask", "depth"]
    with pytest.raises(ConfigError, match="stands for all images, and no feature is a single one"):
        ParserTfds(datasets.root, "sentences", image_key=None, target_key=None, decoders=SKIP)


def test_decode_and_decoders_say_it_together(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", decode={"mask": False}, decoders={"image": SKIP})
    assert parser.is_undecoded("mask")
    assert parser.is_undecoded("image")


def test_one_stored_image_comes_in_one_way_under_all_its_names(datasets: Datasets) -> None:
    for decode in ({"image": False}, {"mask": False}):
        parser = ParserTfds(datasets.root, "shapes", image_key="mask", decode=decode)
        (example,) = parser.examples_by_index([4], ("image", "mask", "stored/image"))
        assert example.image == example.features["mask"]
        assert example.image.startswith(b"\x89PNG")
        assert isinstance(example.features["stored/image"], np.ndarray)
    with pytest.raises(ConfigError, match="'image' and 'mask' are one stored field, which comes either as bytes or"):
        ParserTfds(datasets.root, "shapes", image_key="mask", decode={"image": False, "mask": True})


def test_an_image_beside_undecoded_masks_goes_through_the_preprocess(datasets: Datasets) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "preprocess": EvalPreprocess(8)}
    parser = ParserTfds(datasets.root, "shapes", **arguments, decode={"mask": False})
    plain = next(ParserTfds(datasets.root, "shapes", **arguments).batches())
    batch = next(parser.batches(fields=("image", "mask")))
    assert np.array_equal(batch.image, plain.image)
    assert {one[:4] for one in batch.features["mask"]} == {b"\x89PNG"}


def test_bytes_need_neither_opencv_nor_turbojpeg_nor_tensorflow(tmp_path: Path) -> None:
    root = write_pictures(tmp_path, FILES)
    blocked = ("cv2", "simplejpeg", "kornia_rs", "torchvision", "ffcv")
    code = f"""
import sys
for name in {blocked!r}: sys.modules[name] = None
import ctypes.util
ctypes.util.find_library = lambda name: None
from tfds_torch import ParserTfds
parser = ParserTfds({str(root)!r}, "pictures", batch_size=4, decode={{"image": False}})
images = [image for batch in parser.batches() for image in batch.image]
sys.stdout.buffer.write(b"".join(images))
assert "tensorflow" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"".join(FILES)


# Other formats


def test_any_member_of_a_tar_comes_as_bytes(tmp_path: Path) -> None:
    make = tar_case(tmp_path).make
    decode = {"label": False, "txt": False}
    (batch,) = make(batch_size=16, decode=decode).batches(fields=("label", "txt"))
    assert batch.label is None
    numbers = [*range(0, NUM_EXAMPLES, 2), *range(1, NUM_EXAMPLES, 2)]
    assert batch.features["label"] == [b"%d" % number for number in numbers]
    assert batch.features["txt"] == [b"t%d" % number for number in numbers]


def test_any_image_field_of_a_dataset_of_ones_own_comes_as_bytes() -> None:
    rows = [{"view": {"bytes": file, "path": None}, "label": number} for number, file in enumerate(FILES)]
    parser = ParserMapStyle(rows, batch_size=16, image_key=None, decode={"view": False})
    (batch,) = parser.batches(fields=("view",))
    assert batch.features["view"] == FILES


def test_the_images_of_a_hub_come_as_their_files_and_nothing_is_decoded_but_the_first() -> None:
    columns: dict[str, list[Any]] = {
        "image": [{"bytes": file, "path": None} for file in FILES],
        "label": list(range(NUM_EXAMPLES)),
    }
    rows = HubDataset(columns, {"image": HubImage(), "label": object()})
    assert [image for batch in ParserMapStyle(rows, batch_size=5, **BYTES).batches() for image in batch.image] == FILES
    assert rows.num_decoded == 1  # That of the first item, which shows what there is.
    shown = rows.with_format("numpy")
    assert "holds its pixels, not the bytes of a file" in refusal(ParserMapStyle, dataset=shown, **BYTES)


def test_an_image_folder_of_torchvision_comes_as_its_files(tmp_path: Path) -> None:
    held = torchvision_build.declare_where_needed()
    from torchvision.datasets import ImageFolder

    folder_case(tmp_path)
    rows = ImageFolder(str(tmp_path / "train"))
    (batch,) = ParserMapStyle(rows, batch_size=NUM_EXAMPLES, **BYTES).batches()
    assert batch.image == [Path(path).read_bytes() for path, _ in rows.samples]
    changed = ImageFolder(str(tmp_path / "train"), transform=np.asarray)
    assert "holds its pixels, not the bytes of a file" in refusal(ParserMapStyle, dataset=changed, **BYTES)
    del held


def test_files_that_no_decoder_knows_come_as_bytes() -> None:
    rows = [(b"\0\0\0 ftypavif" + bytes([number]), number) for number in range(4)]
    parser = ParserMapStyle(rows, names=("image", "label"), batch_size=4, **BYTES)
    assert next(parser.batches()).image == [row[0] for row in rows]


def test_empty_datasets_take_it() -> None:
    for parser in (ParserMapStyle([], **BYTES), ParserMapStyle({"image": [], "label": []}, **BYTES)):
        assert parser.is_undecoded("image")
        assert list(parser.batches(fields=())) == []


def test_a_recipe_says_it_for_a_dataset_and_for_all_members(tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "tfds", FILES)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('name = "pictures"\nbatch_size = 4\n[decode]\nimage = false\n')
    config = load_config(recipe)
    assert config.decode == {"image": False}
    assert next(config.make_parser(root).batches()).image == FILES[:4]
    beton_case(tmp_path)
    recipe.write_text(
        f'batch_size = 4\ndecode = {{ image = false }}\n[[mixture]]\nname = "pictures"\nroot = "{root}"\n'
        f'[[mixture]]\nname = "{tmp_path}/a.beton"\n'
    )
    assert [image for batch in load_config(recipe).make_parser().batches() for image in batch.image] == FILES * 2
    recipe.write_text('name = "pictures"\ndecode = { image = 0 }\n')
    with pytest.raises(ConfigError, match=re.escape("decode = {'image': 0} cannot be: expected `bool`")):
        load_config(recipe)


# What is refused


def refusal(make: Callable[..., Any], **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make(**arguments)
    return str(caught.value)


def test_a_preprocess_beside_it_is_refused_with_ways_on(case: Case) -> None:
    text = refusal(case.make, batch_size=4, preprocess=TrainPreprocess(8), **BYTES)
    assert "decode gives 'image' as bytes, and TrainPreprocess(size=8" in text
    assert "Leave out the preprocess, and decode the bytes where you need pixels (ImageDataset's transform" in text
    assert "or leave 'image' out of decode." in text
    assert "works on its pixels" in refusal(
        case.make(batch_size=4, **BYTES).with_preprocess, preprocess=EvalPreprocess(8)
    )


def test_an_unknown_field_is_refused_with_the_nearest(case: Case) -> None:
    text = refusal(case.make, decode={"imag": False})
    assert "imag" in text.replace("image", "")
    assert "image" in text


@pytest.mark.parametrize("decode", [{"image": 0}, ["image"], {1: False}, "image", False])
def test_anything_but_fields_with_true_or_false_is_refused(decode: Any) -> None:
    text = refusal(item_case(Path()).make, decode=decode)
    assert text.startswith(f"decode={decode!r} must map fields to whether they are decoded, such as {{'image': False}}")


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ({"imag": False}, "There is no feature 'imag'. The dataset's features are: .*Did you mean 'image'"),
        ({"weight": False}, "decode names 'weight', which is Tensor.*, not stored as bytes: only single images"),
        ({"frames": False}, "decode names 'frames', which is Sequence.*, not stored as bytes"),
        ({"label": False}, "decode names 'label', which is ClassLabel.*, not stored as bytes"),
    ],
)
def test_fields_of_tfds_that_are_no_bytes_are_refused(decode: Any, message: str, datasets: Datasets) -> None:
    with pytest.raises(ConfigError, match=f"^shapes:1.0.0: {message}"):
        ParserTfds(datasets.root, "shapes", decode=decode)


@tfds.decode.make_decoder()  # type: ignore[untyped-decorator]
def own_decoder(example: Any, feature: Any) -> Any:
    return feature.decode_example(example)


@pytest.mark.parametrize(
    ("decoders", "message"),
    [
        (
            {"image": own_decoder()},
            r"decoders\['image'\]=.*DecoderFn.* decodes with tensorflow, which reading by number",
        ),
        (
            tfds.decode.PartialDecoding({"image": True}),
            r"decoders=.* chooses which features are read, and fields= does that here: ImageDataset",
        ),
        ({"image": tfds.decode.SkipDecoding}, r"decoders\['image'\]=.* is the class: give SkipDecoding\(\)"),
        ({"nested": {"inner": 3}}, r"decoders\['nested/inner'\]=3 is not a decoder"),
        ({"imag": SKIP}, "shapes:1.0.0: There is no feature 'imag'.*Did you mean 'image'"),
        ({"objects": {"bbox": SKIP}}, "shapes:1.0.0: decode names 'objects/bbox', which is .*not stored as bytes"),
        ({7: SKIP}, "decoders=.* is not a decoder"),
    ],
)
def test_other_decoders_are_refused_with_what_is_understood(decoders: Any, message: str, datasets: Datasets) -> None:
    with pytest.raises(ConfigError, match=f"^{message}") as caught:
        ParserTfds(datasets.root, "shapes", decoders=decoders)
    is_known = "shapes:1.0.0" in str(caught.value)
    understood = (
        "What is understood is decoders={'image': tfds.decode.SkipDecoding()}, which is decode={'image': False}"
    )
    assert is_known or understood in str(caught.value)


def test_decode_that_contradicts_decoders_is_refused(datasets: Datasets) -> None:
    with pytest.raises(ConfigError, match="decodes 'image', and decoders= does not: leave out one of them"):
        ParserTfds(datasets.root, "shapes", decode={"image": True}, decoders={"image": SKIP})


def test_what_needs_the_pixels_is_refused(datasets: Datasets, cache: DecodedCache) -> None:
    with pytest.raises(ConfigError, match="cache= keeps decoded images, and decode gives 'image' as bytes"):
        ParserTfds(datasets.root, "shapes", cache=cache, **BYTES)
    also = EvalPreprocess(8, also=("mask",))
    with pytest.raises(ConfigError, match="decode gives 'mask' as bytes, and EvalPreprocess"):
        ParserTfds(datasets.root, "shapes", batch_size=4, preprocess=also, decode={"mask": False})
    with pytest.raises(ConfigError, match="class_map gives new labels, and decode gives 'label' as bytes"):
        ParserTfds(datasets.root, "tiny", class_map={"circle": 0}, decode={"label": False})


def test_pixels_are_no_bytes_of_a_file(tmp_path: Path) -> None:
    image = photograph(NAMES[0], (8, 8))
    for held in (image, np.asarray(image)):
        text = refusal(ParserMapStyle, dataset=[(held, 0)], names=("image", "label"), **BYTES)
        assert text == (
            "list: decode names 'image', and item 0 holds its pixels, not the bytes of a file. Let the dataset give "
            "the bytes, or leave it out of decode."
        )
    assert "which is int64 [], not stored as bytes" in refusal(
        ParserMapStyle, dataset=[(image, 0)], decode={"label": False}
    )
    with BetonWriter(tmp_path / "raw.beton", {"image": BetonImage("raw")}, 2, page_size=PAGE) as writer:
        for _ in range(2):
            writer.add((np.asarray(image),))
    text = refusal(partial(ParserBeton, tmp_path / "raw.beton"), target_key=None, **BYTES)
    assert "decode names 'image', of which 2 of 2 images are stored as pixels, not as the bytes of a file" in text


def test_an_item_that_is_not_bytes_is_named() -> None:
    rows = [(FILES[0], 0), (FILES[1], 1), (photograph(NAMES[0], (8, 8)), 2), (FILES[2], 3)]
    parser = ParserMapStyle(rows, names=("image", "label"), batch_size=4, **BYTES)
    with pytest.raises(CorruptRecordError, match="item 2 cannot be used"):
        next(parser.batches())


def test_members_of_a_mixture_agree(tmp_path: Path) -> None:
    case = tfds_case(tmp_path)
    mixture = ParserMixture({"a": case.make(**BYTES), "b": case.make()}, batch_size=4)
    text = refusal(mixture.check_fields, fields=["image"])
    assert "'image' is bytes, undecoded in the member 'a', and an image (image_mode='RGB') in 'b': members must" in text
    assert text.endswith("Give the parsers the same keys, image_mode, class_map and decode.")


# What reads parsers


def test_a_multi_loader_carries_the_bytes_over_sockets(tmp_path: Path) -> None:
    parser = tfds_case(tmp_path).make(batch_size=4, **BYTES)
    with MultiLoader(parser, num_workers=2, transport="zmq") as batches:
        assert [image for batch in batches for image in batch.image] == FILES


def test_an_export_is_the_same_whatever_comes_undecoded(tmp_path: Path) -> None:
    case = tfds_case(tmp_path)
    written = []
    for number, decode in enumerate((None, {"image": False})):
        path = tmp_path / f"{number}.beton"
        export_dataset(case.make(decode=decode), path, format="beton")
        written.append([(one.image, one.label) for one in ParserBeton(path, **BYTES)])
    assert written[0] == written[1] == list(zip(FILES, range(NUM_EXAMPLES), strict=True))


def test_targets_and_balanced_classes_need_no_images(tmp_path: Path) -> None:
    parser = tar_case(tmp_path).make(is_training=True, batch_size=4, **BYTES)
    assert sorted(parser.targets().tolist()) == list(range(NUM_EXAMPLES))
    for batch in parser.balanced().batches():
        assert batch.image == [FILES[label] for label in batch.label]


def test_check_decodes_what_a_recipe_leaves_undecoded(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('name = "pictures"\nbatch_size = 4\n[decode]\nimage = false\n')
    parser = open_parser(load_config(recipe), str(write_pictures(tmp_path / "tfds", FILES)))
    assert not parser.is_undecoded("image")
