"""load_config: what a file may say, and how it is refused."""

from dataclasses import fields
from pathlib import Path

import pytest
from zygote import forked_instead_of_fresh

from tfds_torch import demo
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import EvalPreprocess, TrainPreprocess
from tfds_torch.parsers.config import Config, load_config
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds

EVERYTHING = """
name = "voc/2007:4.0.0"
split = "train+validation"
is_training = true
batch_size = 64
shuffle = false
repeats = 2
seed = 7
remainder = "drop"
epoch_size = 900
image_key = "picture"
target_key = ["cat", "dog"]
image_mode = "L"
class_map = { cat = 1, dog = 0 }
decode = { mask = false }

[read]
mode = "examples"
num_threads = 3
cycle_length = 4
read_buffer_bytes = 4096
shuffle_buffer = 100
prefetch_batches = 5
ram_budget_bytes = 1000000
block_records = 10
block_groups = 4
verify_checksums = false
on_error = "replace"
max_replaced = 5
jpeg_decoder = "pillow"

[preprocess]
kind = "train"
size = 48
scale = [0.5, 1]
ratio = [0.5, 2.0]
hflip = 0.25
interpolation = "random"
crop_padding = 3
fill = 7
also = ["mask"]
max_pixels = 1000000
boxes = { boxes = ["classes"] }
min_visible = 0.5

[loader]
num_workers = 6
"""
PREPROCESS = TrainPreprocess(
    *(48, (0.5, 1.0), (0.5, 2.0), 0.25, "random", 3, 7, ("mask",), 1_000_000),
    *({"boxes": ("classes",)}, 0.5),
)


@pytest.fixture(scope="session")
def demo_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of the embedded digits."""
    with forked_instead_of_fresh():
        return demo.prepare("digits", root=tmp_path_factory.mktemp("digits"), progress=False)


def write(directory: Path, text: str) -> Path:
    path = directory / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(directory: Path, text: str) -> str:
    path = write(directory, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(f"The config {str(path)!r}")
    assert "\n" not in message
    return message.removeprefix(f"The config {str(path)!r}")


def test_every_key_reaches_its_field(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, EVERYTHING))
    read = ReadOptions("examples", 3, 4, 4096, 100, 5, 1_000_000, 10, False, "replace", 5, "pillow", 4)
    assert config == Config(
        *("voc/2007:4.0.0", "train+validation", True, 64, False, 2, 7, "drop", "picture", ("cat", "dog"), "L"),
        *({"cat": 1, "dog": 0}, read, PREPROCESS, 6, 900),
        decode={"mask": False},
    )
    default = Config("x")
    assert all(
        getattr(config, field.name) != getattr(default, field.name)
        for field in fields(Config)
        if field.name not in ("mixture", "source", "windows", "fields", "cameras", "transform", "remote")
    )
    assert all(getattr(read, field.name) != getattr(default.read, field.name) for field in fields(ReadOptions))
    plain = TrainPreprocess(224)
    assert all(getattr(PREPROCESS, field.name) != getattr(plain, field.name) for field in fields(TrainPreprocess))


def test_what_a_file_leaves_out_has_the_defaults_of_the_parser(tmp_path: Path, demo_digits: Path) -> None:
    parser = load_config(write(tmp_path, "name = 'digits'")).make_parser(demo_digits)
    plain = ParserTfds(demo_digits, "digits")
    names = ("split", "is_training", "shuffle", "batch_size", "repeats", "seed", "remainder", "image_key", "target_key")
    assert [getattr(parser, name) for name in names] == [getattr(plain, name) for name in names]
    assert (parser.image_mode, parser.read) == (plain.image_mode, plain.read)
    assert parser.class_to_idx == plain.class_to_idx


def test_the_parser_is_the_one_that_the_file_describes(tmp_path: Path, demo_digits: Path) -> None:
    text = """name = "digits"\nsplit = "test[:100]"\nis_training = true\nbatch_size = 10\nseed = 3\nremainder = "drop"
shuffle = false\nimage_mode = "L"\n[read]\nshuffle_buffer = 50"""
    parser = load_config(write(tmp_path, text)).make_parser(demo_digits)
    assert (parser.split, parser.is_training, parser.batch_size, parser.seed) == ("test[:100]", True, 10, 3)
    assert (parser.remainder, parser.shuffle, parser.image_mode) == ("drop", False, "L")
    assert (parser.num_examples, parser.read.shuffle_buffer) == (100, 50)


def test_a_preprocess_reaches_the_parser(tmp_path: Path, demo_digits: Path) -> None:
    text = """name = "digits"\nbatch_size = 8\n[preprocess]\nkind = "eval"\nsize = [6, 8]\ncrop_pct = 1
fill = [1, 2, 3]\ncrop_mode = "border"\ninterpolation = "bicubic" """
    config = load_config(write(tmp_path, text))
    wanted = EvalPreprocess((6, 8), 1, "bicubic", "border", (1, 2, 3))
    assert config.preprocess == wanted
    assert config.make_parser(demo_digits).preprocess == wanted
    assert load_config(write(tmp_path, "name = 'digits'")).make_parser(demo_digits).preprocess is None


EVEN = {str(digit): digit % 2 for digit in range(10)}


def test_a_class_map_may_be_a_table_of_the_file(tmp_path: Path, demo_digits: Path) -> None:
    table = ", ".join(f"{name} = {label}" for name, label in EVEN.items())
    for text in (f"class_map = {{ {table} }}", "[class_map]\n" + table.replace(", ", "\n")):
        parser = load_config(write(tmp_path, f"name = 'digits'\n{text}")).make_parser(demo_digits)
        assert parser.class_to_idx == EVEN


def test_a_class_map_is_looked_up_in_the_folder_of_the_config(tmp_path: Path, demo_digits: Path) -> None:
    (tmp_path / "maps").mkdir()
    file = tmp_path / "maps" / "reversed.txt"
    file.write_text("\n".join(map(str, range(9, -1, -1))))
    for path in ("maps/reversed.txt", file):
        parser = load_config(write(tmp_path, f"name = 'digits'\nclass_map = '{path}'")).make_parser(demo_digits)
        assert parser.class_to_idx == {str(digit): 9 - digit for digit in range(10)}
        assert parser.class_names == list("9876543210")


def test_a_target_key_may_be_a_list(tmp_path: Path, demo_digits: Path) -> None:
    config = load_config(write(tmp_path, "name = 'digits'\ntarget_key = ['label']"))
    assert config.make_parser(demo_digits).class_names == ["label"]
    for text in ("'label,image'", "['label', 'image']"):
        several = load_config(write(tmp_path, f"name = 'digits'\ntarget_key = {text}"))
        with pytest.raises(ConfigError, match="the target field 'image' is not a scalar number"):
            several.make_parser(demo_digits)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 'x'\nbach_size = 3", ": unknown key 'bach_size'. Did you mean 'batch_size'? The keys are: batch_size"),
        ("name = 'x'\n[raed]\nmode = 'files'", ": unknown key 'raed'. Did you mean 'read'? The keys are: "),
        ("[read]\nmod = 'files'", ": unknown key 'mod' in [read]. Did you mean 'mode'? The keys in [read] are: "),
        ("[loader]\nworkers = 2", ": unknown key 'workers' in [loader]. Did you mean 'num_workers'?"),
        ("name = 'x'\nnum_workers = 3", ": unknown key 'num_workers'. It belongs to [loader]."),
        ("[read]\nbatch_size = 3", ": unknown key 'batch_size' in [read]. It belongs to the top of the file."),
        ("[read]\nread = 3", ": unknown key 'read' in [read]."),
        ("root = '/'", ": unknown key 'root'."),
        (
            "[preprocess]\nkind = 'train'\nsise = 3",
            ": unknown key 'sise' in [preprocess]. Did you mean 'size'? The keys",
        ),
        ("name = 'x'\ncrop_pct = 0.9", ": unknown key 'crop_pct'. It belongs to [preprocess]."),
        ("[preprocess]\nseed = 3", ": unknown key 'seed' in [preprocess]. It belongs to the top of the file."),
        (
            "[preprocess]\nkind = 'train'\nsize = 8\ncrop_pct = 0.9",
            ": [preprocess] kind = 'train' has no 'crop_pct': it belongs to kind = 'eval'.",
        ),
        (
            "[preprocess]\nkind = 'eval'\nsize = 8\nscale = [0.1, 1]",
            ": [preprocess] kind = 'eval' has no 'scale': it belongs to kind = 'train'.",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_right_one(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text).startswith(message)


WRONG_TYPES = [
    ("name = 3", ": name = 3 must be a string."),
    ("name = 'x'\nbatch_size = '256'", ": batch_size = '256' must be an integer."),
    ("name = 'x'\nbatch_size = true", ": batch_size = true must be an integer."),
    ("name = 'x'\nbatch_size = 2.0", ": batch_size = 2.0 must be an integer."),
    ("name = 'x'\nis_training = 1", ": is_training = 1 must be true or false."),
    ("name = 'x'\nshuffle = 'yes'", ": shuffle = 'yes' must be true or false."),
    ("name = 'x'\nsplit = ['train']", ": split = ['train'] must be a string."),
    ("name = 'x'\nsplit = 1979-05-27", ": split = datetime.date(1979, 5, 27) must be a string."),
    (f"name = 'x'\nseed = '{'9' * 1000}'", f": seed = '{'9' * 39}... must be an integer."),
    ("name = 'x'\ntarget_key = 3", ": target_key = 3 must be a string or a list of strings."),
    ("name = 'x'\ntarget_key = ['a', 3]", ": target_key = ['a', 3] must be a string or a list of strings."),
    ("name = 'x'\nclass_map = 3", ": class_map = 3 must be a string or a table of labels by class name."),
    ("name = 'x'\nclass_map = ['a']", ": class_map = ['a'] must be a string or a table of labels by class name."),
    ("name = 'x'\nclass_map = {}", ": class_map is empty: it needs a label for every class."),
    ("name = 'x'\nclass_map = { a = -1 }", ": class_map maps 'a' to -1: labels are integers >= 0."),
    ("name = 'x'\nclass_map = { a = '1' }", ": class_map maps 'a' to '1': labels are integers >= 0."),
    (
        "name = 'x'\nclass_map = '../a.txt'",
        ": class_map = '../a.txt' leads out of the config's folder by '..'.",
    ),
    ("name = 'x'\n[read]\nnum_threads = 1.5", ": [read] num_threads = 1.5 must be an integer."),
    ("name = 'x'\n[loader]\nnum_workers = '2'", ": [loader] num_workers = '2' must be an integer."),
    ("name = 'x'\nread = 3", ": read = 3 must be a table: a line [read], and its keys below it."),
    (
        "name = 'x'\npreprocess = 224",
        ": preprocess = 224 must be a table: a line [preprocess], and its keys below it.",
    ),
    ("name = 'x'\n[[loader]]", ": loader = [{}] must be a table: a line [loader], and its keys below it."),
]


def test_a_value_of_the_wrong_type_is_refused(tmp_path: Path) -> None:
    wrong = [(text, said) for text, message in WRONG_TYPES if (said := refusal(tmp_path, text)) != message]
    assert not wrong, str(wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " does not say what it is for: it needs a line kind = 'train' or 'eval'."),
        ("kind = 'trian'", " kind = 'trian' must be 'train' or 'eval'. Did you mean 'train'?"),
        ("kind = ['train']", " kind = ['train'] must be 'train' or 'eval'. Did you mean 'train'?"),
        ("kind = 'train'", " needs size: the pixels of a side, or [height, width]."),
        ("kind = 'eval'\nsize = '224'", " size = '224' must be an integer or a list of integers."),
        ("kind = 'eval'\nsize = [224, true]", " size = [224, True] must be an integer or a list of integers."),
        ("kind = 'eval'\nsize = [224, 0]", " size = [224, 0] must be in 1..16384."),
        ("kind = 'eval'\nsize = 16385", " size = 16385 must be in 1..16384."),
        ("kind = 'eval'\nsize = 8\nfill = 256", " fill = 256 must be in 0..255."),
        ("kind = 'eval'\nsize = 8\nalso = 'mask'", " also = 'mask' must be a list of strings."),
        ("kind = 'eval'\nsize = 8\ncrop_pct = true", " crop_pct = true must be a number."),
        ("kind = 'train'\nsize = 8\nscale = [0.1, 'all']", " scale = [0.1, 'all'] must be a list of numbers."),
        (
            "kind = 'train'\nsize = 8\nscale = [0.1, 1, 1]",
            " TrainPreprocess: scale=(0.1, 1, 1) must be two numbers with 0 < least <= greatest <= 1.",
        ),
        ("kind = 'train'\nsize = 8\nhflip = nan", " TrainPreprocess: hflip=nan must be a probability, 0 to 1."),
        (
            "kind = 'eval'\nsize = 8\ncrop_mode = 'centre'",
            " EvalPreprocess: unknown crop_mode 'centre': choose one of 'center', 'squash', 'border'. Did you mean "
            "'center'?",
        ),
    ],
)
def test_a_preprocess_that_cannot_be_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, f"name = 'x'\n[preprocess]\n{text}") == f": [preprocess]{message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_size = 0", ": batch_size = 0 must be in 1..65536."),
        ("batch_size = 65537", ": batch_size = 65537 must be in 1..65536."),
        ("seed = -1", f": seed = -1 must be in 0..{2**63 - 1}."),
        ("repeats = 10001", ": repeats = 10001 must be in 0..10000."),
        ("[loader]\nnum_workers = -1", ": [loader] num_workers = -1 must be in 0..1024."),
        ("[loader]\nnum_workers = 1025", ": [loader] num_workers = 1025 must be in 0..1024."),
        ("[read]\nshuffle_buffer = 100000001", ": [read] shuffle_buffer = 100000001 must be in 1..100000000."),
        ("[read]\nread_buffer_bytes = 1073741825", ": [read] read_buffer_bytes = 1073741825 must be in 1..1073741824."),
        (
            "[read]\nmode = 'fils'",
            ": Unknown read mode 'fils': the modes are auto, index, files, examples. Did you mean 'fi",
        ),
    ],
)
def test_sizes_are_bounded(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, f"name = 'x'\n{text}").startswith(message)


def test_the_bounds_themselves_are_allowed(tmp_path: Path) -> None:
    text = "name = 'x'\nbatch_size = {}\nseed = {}\nrepeats = {}\n[loader]\nnum_workers = {}"
    for numbers in ((1, 0, 0, 0), (65536, 2**63 - 1, 10_000, 1024)):
        config = load_config(write(tmp_path, text.format(*numbers)))
        assert (config.batch_size, config.seed, config.repeats, config.num_workers) == numbers


def test_every_number_has_a_bound(tmp_path: Path) -> None:
    """A key that is added later cannot be forgotten."""
    lines = EVERYTHING.splitlines()
    numbers = [number for number, line in enumerate(lines) if line.rpartition(" = ")[2].isdigit()]
    assert len(numbers) == 18
    for number in numbers:
        key = lines[number].partition(" = ")[0]
        broken = [*lines[:number], f"{key} = {2**63}", *lines[number + 1 :]]
        assert f"{key} = {2**63} must be in " in refusal(tmp_path, "\n".join(broken))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " does not say which dataset it is about: it needs a line such as name = 'cifar10', or"),
        ("a =", " is not valid TOML: Invalid value"),
        ("name = 'x'\nname = 'y'", " is not valid TOML: Cannot overwrite a value"),
        ("a = " + "[" * 3000, " is nested too deeply."),
        (f"# {'x' * 2**16}", " is larger than 64 KiB: that is not a config."),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text).startswith(message)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("cifr10.toml", "does not exist. Did you mean 'cifar10.toml'? In that folder are: cifar10.toml, mnist.toml."),
        ("nowhere/x.toml", "does not exist. That folder holds no .toml file."),
        ("", "cannot be read: [Errno 21] Is a directory"),
        ("a\0b", "cannot be read: embedded null byte."),
        ("../cifar10.toml", "leads out of its folder by '..'. Give the path of a config without '..'."),
        ("x/../../../etc/passwd", "leads out of its folder by '..'"),
        ("cifar10.toml/..", "leads out of its folder by '..'"),
    ],
)
def test_a_path_that_leads_to_no_config_is_refused(tmp_path: Path, path: str, message: str) -> None:
    for name in ("cifar10.toml", "mnist.toml"):
        (tmp_path / name).write_text("name = 'x'")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / path)
    assert message in str(caught.value)


CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


def test_the_recipes_are_there() -> None:
    assert [path.stem for path in CONFIGS] == [
        *("cifar10", "digits", "digits_mixture", "episodes_mixture", "imagenet2012_eval", "imagenet2012_train")
    ]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_recipe_can_be_read_and_its_header_tells_command_and_outcome(path: Path) -> None:
    config = load_config(path)
    datasets = [config.name] if config.mixture is None else [one.name for one in config.mixture.members]
    assert all(path.stem.startswith(name.partition("/")[0]) for name in datasets)
    assert config.batch_size is not None
    header = path.read_text().partition("\n\n")[0]
    command = f"# Command:   python -m tfds_torch.check --config configs/{path.name}"
    for line in (command, "# Expected:  exit code 0, all promises kept"):
        assert line in header
    assert "examples/s" not in header, "a figure that no report holds"
    kind = TrainPreprocess if config.is_training else EvalPreprocess
    assert isinstance(config.preprocess, kind) or path.stem.startswith(("digits", "episodes"))


def test_the_digits_recipe_reads_the_digits(demo_digits: Path) -> None:
    (path,) = (path for path in CONFIGS if path.stem == "digits")
    parser = load_config(path).make_parser(demo_digits)
    assert (parser.num_examples, parser.batch_size, parser.is_training) == (1437, 32, True)
