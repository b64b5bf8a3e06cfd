"""load_config: what a file may say, and how it is refused."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tfds_torch import EvalPreprocess, ReadOptions, RemoteOptions, TrainPreprocess, Windows
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.recipe_file import load_config
from tfds_torch.parsers.recipes import Config, MemberConfig, Part, TransformConfig

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
shrink = false
resize = ["cover", 50, 60]
place = "center"
vflip = 0.5
[loader]
num_workers = 6
"""
READ = ReadOptions("examples", 3, 4, 4096, 100, 5, 1_000_000, 10, False, "replace", 5, "pillow", 4)
PREPROCESS = TrainPreprocess(
    *(48, (0.5, 1.0), (0.5, 2.0), 0.25, "random", 3, 7, ("mask",), 1_000_000),
    *({"boxes": ("classes",)}, 0.5, False, ("cover", 50, 60), "center", 0.5),
)
WINDOWS = """
name = "bridge_like"
fields = { image_primary = "observation/image_0" }
[windows]
sequence = "steps"
offsets = { image_primary = [-1, 0], action = "0:16" }
stride = 2
pad = "zero"
whole = true
texts = ["language_instruction"]
[preprocess.image]
kind = "train"
size = 6
[preprocess.image_primary]
kind = "eval"
size = [8, 10]
fill = [1, 2, 3]
[[transform]]
function = "own:halve"
reads = ["action"]
gives = ["half"]
threads = true
version = "2"
"""
MIXTURE = """
is_training = true
temperature = 2
stop = "all_exhausted"
[[mixture]]
member = "bridge"
name = "bridge/big:1.0.0"
root = "/data/robots"
split = "train[:90%]"
weight = 0.7
image_key = "picture"
target_key = false
class_map = { cat = 1, dog = 0 }
fields = { x = "y" }
missing = "none"
[mixture.read]
on_error = "replace"
[mixture.windows]
stride = 3
[[mixture.transform]]
function = "own:halve"
reads = ["action"]
[[mixture]]
name = "droid:2.0.0"
weight = 3
[[schedule]]
start = 2_000
weights = { bridge = 0.5, droid = 0.5 }
[[schedule]]
start = 3_000
weights = "sizes"
"""
REMOTE = """
name = "a"
[remote]
cache_dir = "~/scratch"
max_bytes = 200_000_000
ahead_bytes = 10
connections = 8
timeout_s = 5
storage_options = { azure_storage_account_name = "photos", skip_signature = true }
"""
HALVE = TransformConfig("own:halve", ("action",))


def write(directory: Path, text: str) -> Path:
    path = directory / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(f"The config {str(path)!r}: ")
    assert "\n" not in message
    return message.removeprefix(f"The config {str(path)!r}: ")


FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "name alone": ("name = 'x'", {"name": "x"}),
    "everything": (
        EVERYTHING,
        {
            "name": "voc/2007:4.0.0",
            "split": "train+validation",
            "is_training": True,
            "batch_size": 64,
            "shuffle": False,
            "repeats": 2,
            "seed": 7,
            "remainder": "drop",
            "epoch_size": 900,
            "num_workers": 6,
            "image_key": "picture",
            "target_key": ("cat", "dog"),
            "image_mode": "L",
            "decode": {"mask": False},
            "class_map": {"cat": 1, "dog": 0},
            "read": READ,
            "preprocess": PREPROCESS,
        },
    ),
    "windows": (
        WINDOWS,
        {
            "name": "bridge_like",
            "fields": {"image_primary": "observation/image_0"},
            "windows": Windows(
                "steps", {"image_primary": [-1, 0], "action": range(16)}, 2, "zero", True, ("language_instruction",)
            ),
            "preprocess": TrainPreprocess(6),
            "cameras": {"image_primary": EvalPreprocess((8, 10), fill=(1, 2, 3))},
            "transform": (TransformConfig("own:halve", ("action",), ("half",), True, "2"),),
        },
    ),
    "remote": (REMOTE, {"name": "a", "remote": RemoteOptions("~/scratch", 200_000_000, None, 10, 8, 5)}),
    "source": ("source = 'own:rows'\nimage_key = false", {"name": "own:rows", "source": "own:rows", "image_key": None}),
    "tars": ("name = 'a.tar'\nmissing = 'skip'", {"name": "a.tar", "missing": "skip"}),
    "class map": ("name = 'x'\n[class_map]\na = 1\nb = 0", {"name": "x", "class_map": {"a": 1, "b": 0}}),
    "mixture": (
        MIXTURE,
        {
            "name": "mixture",
            "is_training": True,
            "temperature": 2,
            "stop": "all_exhausted",
            "mixture": (
                MemberConfig(
                    name="bridge/big:1.0.0",
                    member="bridge",
                    root="/data/robots",
                    split="train[:90%]",
                    weight=0.7,
                    image_key="picture",
                    target_key=None,
                    class_map={"cat": 1, "dog": 0},
                    fields={"x": "y"},
                    missing="none",
                    read=ReadOptions(on_error="replace"),
                    windows=Windows(stride=3),
                    transform=(HALVE,),
                ),
                MemberConfig(name="droid:2.0.0", weight=3),
            ),
            "schedule": (Part(2_000, {"bridge": 0.5, "droid": 0.5}), Part(3_000, "sizes")),
        },
    ),
    "least numbers": ("name = 'x'\nbatch_size = 1\nseed = 0", {"name": "x", "batch_size": 1, "seed": 0}),
    "most": (f"name = 'x'\nseed = {2**63 - 1}\n[loader]\nnum_workers = 1024", {"seed": 2**63 - 1, "num_workers": 1024}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read(tmp_path: Path, name: str) -> None:
    text, given = FILES[name]
    assert load_config(write(tmp_path, text)) == Config(**{"name": "x", **given})


def test_every_key_is_in_one_of_the_files() -> None:
    """A key that is added later cannot be forgotten."""
    found, default = [Config(**{"name": "x", **given}) for _, given in FILES.values()], Config()
    reads = {
        name for name in Config.__struct_fields__ if all(getattr(one, name) == getattr(default, name) for one in found)
    }
    assert reads == {"weights"}
    for full, plain in ((READ, ReadOptions()), (PREPROCESS, TrainPreprocess(224))):
        of_recipes = [one.name for one in fields(full) if one.compare]  # A recipe has no Compose.
        assert all(getattr(full, name) != getattr(plain, name) for name in of_recipes)
    member = FILES["mixture"][1]["mixture"][0]
    same = [key for key, value in structs.asdict(member).items() if value == getattr(MemberConfig(), key)]
    assert same == ["source"]


def test_a_mixture_has_the_weights_of_its_members_or_by_sizes_or_none(tmp_path: Path) -> None:
    mixing = load_config(write(tmp_path, MIXTURE)).mixing({})
    parts = [(0, {"bridge": 0.7, "droid": 3}), (2_000, {"bridge": 0.5, "droid": 0.5}), (3_000, "sizes")]
    assert mixing == {"weights": parts, "temperature": 2, "stop": "all_exhausted"}
    two = '[[mixture]]\nname = "a"\n[[mixture]]\nname = "b"\n'
    assert load_config(write(tmp_path, two)).mixing({}) == {}
    by_sizes = load_config(write(tmp_path, f'is_training = true\nweights = "sizes"\n{two}'))
    assert by_sizes.mixing({}) == {"weights": "sizes"}


@pytest.mark.parametrize(
    ("name", "member"),
    [
        *(("cifar10", "cifar10"), ("voc/2007:4.0.0", "voc"), ("/data/a.beton", "a"), ("x/b-{000..009}.tar", "b")),
        *(("x/b-{0..3}.tar::y/c-{0..5}.tar", "b"), ("b.tar::c.tar", "b")),
    ],
)
def test_a_member_without_a_name_has_that_of_its_dataset(name: str, member: str) -> None:
    assert MemberConfig(name=name).member_name == member


X, TRAIN, CAMERA = "name = 'x'\n", "name = 'x'\n[preprocess]\nkind = 'train'\n", "name = 'x'\n[preprocess.wrist]\n"
TWO = "is_training = true\n[[mixture]]\nname = 'a'\nweight = 1\n[[mixture]]\nname = 'b'\nweight = 1\n"
REFUSED = [
    # Keys.
    (f"{X}bach_size = 3", "unknown key 'bach_size'. Did you mean 'batch_size'? The keys are: batch_size, class_map"),
    (f"{X}[raed]\nmode = 'files'", "unknown key 'raed'. Did you mean 'read'? The keys are: "),
    (f"{X}[read]\nmod = 'files'", "unknown key 'mod' in [read]. Did you mean 'mode'? The keys in [read] are: "),
    ("[loader]\nworkers = 2", "unknown key 'workers' in [loader]. Did you mean 'num_workers'?"),
    (f"{X}num_workers = 3", "unknown key 'num_workers'. It belongs to [loader]."),
    (f"{X}[read]\nbatch_size = 3", "unknown key 'batch_size' in [read]. It belongs to the top of the file."),
    (f"{X}cameras = {{}}", "unknown key 'cameras'."),
    (f"{X}'a`b' = 3", "unknown key 'a`b"),
    (f"{TRAIN}sise = 3", "unknown key 'sise' in [preprocess]. Did you mean 'size'?"),
    (
        f"{TRAIN}size = 8\ncrop_pct = 0.9",
        "unknown key 'crop_pct' in [preprocess]. It belongs to [preprocess] of kind = 'eval",
    ),
    (f"{X}[windows]\nstrid = 2", "unknown key 'strid' in [windows]. Did you mean 'stride'?"),
    (f"{X}[remote]\ncache = '/tmp'", "unknown key 'cache' in [remote]. Did you mean 'cache_dir'?"),
    (f"{X}[[transform]]\nfuntcion = 'a:b'", "unknown key 'funtcion' in [[transform]]. Did you mean 'function'?"),
    (f"{TWO}[mixture.read]\nmade = 'index'", "unknown key 'made' in [mixture.read]. Did you mean 'mode'?"),
    (f"{TWO}[[mixture.transform]]\nread = []", "unknown key 'read' in [[mixture.transform]]. It belongs to the top"),
    (f"{X}{TWO}", "unknown key 'name'. It belongs to [[mixture]]."),
    ("[[mixture]]\nnane = 'a'", "unknown key 'nane' in [[mixture]]. Did you mean 'name'?"),
    ("[[mixture]]\nbatch_size = 3", "unknown key 'batch_size' in [[mixture]]. It belongs to the top of the file."),
    (
        "batch_size = 3",
        "it must name one dataset, by a line like name = 'cifar10', or, without name and split, source",
    ),
    (f"{X}source = 'a:b'", "it must name one dataset"),
    ("[[mixture]]\nmember = 'a'", "[[mixture]] must name one dataset"),
    ("[[mixture]]\nsource = 'a:b'\nsplit = 'test'", "[[mixture]] must name one dataset"),
    (TRAIN, "[preprocess] needs a line size = ..."),
    (f"{X}[[transform]]\nreads = ['a']", "[[transform]] needs a line function = ..."),
    (f"{TWO}[[schedule]]\nstart = 1", "[[schedule]] needs a line weights = ..."),
    # Types and bounds.
    ("name = 3", "name = 3 is not valid: expected `str`, got `int`."),
    (f"{X}split = 1979-05-27", "split = datetime.date(1979, 5, 27) is not valid: expected `str`, got `date`."),
    (f"{X}seed = '{'9' * 1000}'", f"seed = '{'9' * 39}... is not valid: expected `int`, got `str`."),
    (f"{X}batch_size = true", "batch_size = true is not valid: expected `int`, got `bool`."),
    (f"{X}batch_size = 2.0", "batch_size = 2.0 is not valid: expected `int`, got `float`."),
    (f"{X}is_training = 1", "is_training = 1 is not valid: expected `bool`, got `int`."),
    (f"{X}image_key = true", "image_key = true is not valid: expected `str`, got `bool`."),
    (f"{X}target_key = ['a', 3]", "target_key = ['a', 3] is not valid: expected `str`, got `int`."),
    (f"{X}fields = {{ x = 1 }}", "fields = {'x': 1} is not valid: expected `str`, got `int`."),
    (f"{X}read = 3", "read = 3 is not valid: expected `table`, got `int`."),
    (f"{X}[[loader]]", "loader = [{}] is not valid: expected `table`, got `list`."),
    (f"{X}transform = 'a:b'", "transform = 'a:b' is not valid: expected `list`, got `str`."),
    ("[mixture]\nname = 'a'", "mixture = {'name': 'a'} is not valid: expected `list`, got `table`."),
    ("mixture = [3]", "mixture = [3] is not valid: expected `table`, got `int`."),
    ("[[mixture]]\nname = 'a'\nweight = true", "[[mixture]] weight = true is not valid: expected `float`, got `bool`."),
    (f"{X}batch_size = 0", "batch_size = 0 is not valid: expected `int` >= 1."),
    (f"{X}batch_size = 65537", "batch_size = 65537 is not valid: expected `int` <= 65536."),
    (f"{X}seed = {2**80}", f"seed = {2**80} is not valid: expected `int` <= {2**63 - 1}."),
    (f"{X}repeats = 10001", "repeats = 10001 is not valid: expected `int` <= 10000."),
    (f"{X}epoch_size = 0", "epoch_size = 0 is not valid: expected `int` >= 1."),
    (f"{X}[loader]\nnum_workers = 1025", "[loader] num_workers = 1025 is not valid: expected `int` <= 1024."),
    (f"{TWO}[[schedule]]\nstart = -1\nweights = 'sizes'", "[[schedule]] start = -1 is not valid: expected `int` >= 1."),
    # What constructors and class maps check.
    (f"{X}[read]\nmode = 'fils'", "[read] Unknown read mode 'fils': the modes are auto, index, files, examples. Did"),
    (f"{X}[read]\nnum_threads = 1.5", "[read] ReadOptions: num_threads=1.5 must be an integer >= 1."),
    (f"{TRAIN}size = '224'", "[preprocess] TrainPreprocess: size='224' must be an integer >= 1."),
    (f"{TRAIN}size = 8\nhflip = nan", "[preprocess] TrainPreprocess: hflip=nan must be a probability, 0 to 1."),
    (f"{X}[windows]\nstride = 0", "[windows] Windows: stride=0 must be an integer in 1..2147483648."),
    (
        f"{X}[windows]\noffsets = {{ a = '16' }}",
        "[windows] Windows: the offsets of 'a', '16', must be a list of integers",
    ),
    (f"{X}[windows]\noffsets = [1]", "[windows] Windows: offsets=(1,) must be a dictionary"),
    (f"{TWO}[mixture.windows]\npad = 'no'", "[mixture.windows] Windows: pad='no' must be 'edge' or 'zero'."),
    (f"{X}[remote]\nmax_bytes = '9 GB'", "[remote] RemoteOptions: max_bytes='9 GB' must be an integer >= 1."),
    (f"{X}[remote]\nstorage_options = {{ regoin = 'eu' }}", "[remote] RemoteOptions: unknown storage option 'regoin'"),
    (f"{X}class_map = {{}}", "class_map is empty: it needs a label for every class."),
    (f"{X}class_map = {{ a = -1 }}", "class_map maps 'a' to -1: labels are integers >= 0."),
    (f"{X}class_map = '../a.txt'", "class_map = '../a.txt' leads out of the config's folder by '..'."),
    ("[[mixture]]\nname = 'a'\nclass_map = '../a.txt'", "[[mixture]] class_map = '../a.txt' leads out of the"),
    # What does not go together.
    (f"{X}[preprocess]", "[preprocess] needs a line kind = 'train' or kind = 'eval'."),
    (
        f"{X}[preprocess]\nkind = 'trian'",
        "[preprocess] needs a line kind = 'train' or kind = 'eval'. Did you mean 'train'",
    ),
    (f"{CAMERA}kind = 'eval'\nsize = 8", "[preprocess.wrist] is for a camera of windows, and there are none: give a"),
    (f"{CAMERA}size = 8\n[windows]", "[preprocess.wrist] needs a line kind = 'train' or kind = 'eval'."),
    (f"{CAMERA}kind = 'eval'\nsiez = 8\n[windows]", "unknown key 'siez' in [preprocess.wrist]. Did you mean 'size'?"),
    ("source = 'a:b'\n[remote]", "[remote] has no effect on a dataset of your own: its function opens it."),
    (f"{X}stop = 'all_exhausted'", "stop is for mixtures only: give the datasets of one, each below [[mixture]]."),
    (f"{X}[[schedule]]\nstart = 1\nweights = 'sizes'", "schedule is for mixtures only"),
    ("mixture = []", "mixture = [] must be a list of tables: a line [[mixture]] before the keys of each."),
    (TWO.replace("'b'", "'a'"), "2 entries [[mixture]] are called 'a': give each its own name, by a line like"),
    (TWO.replace("weight = 1\n", "", 1), "[[mixture]] 'b' has a weight: give each member one (0 leaves it out), or"),
    ("temperature = 2\n[[mixture]]\nname = 'a'", "temperature has no effect without weights: give each [[mixture]] a"),
    (TWO.replace("true", "false"), "weights are for training only: give is_training = true, or leave out the weights;"),
    # No TOML.
    ("a =", "it cannot be read as TOML: Invalid value"),
    ("name = 'x'\nname = 'y'", "it cannot be read as TOML: Cannot overwrite a value"),
    ("a = " + "[" * 3000, "it cannot be read as TOML: "),
    (f"# {'x' * 2**16}", "it is larger than 64 KiB: that is not a config."),
]


def test_a_file_that_cannot_be_is_refused(tmp_path: Path) -> None:
    wrong = [
        (text, said) for text, message in REFUSED if not (said := refusal(write(tmp_path, text))).startswith(message)
    ]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("option", ["secret = 'xyzzy'", "aws_access_key_id = 'xyzzy'", "headers = { A = 'xyzzy' }"])
def test_secrets_are_refused_and_not_shown(tmp_path: Path, option: str) -> None:
    found = refusal(write(tmp_path, f"{X}[remote]\nstorage_options = {{ {option} }}"))
    assert "is a secret, or may hold one" in found
    assert "xyzzy" not in found


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "cifr10.toml",
            "it does not exist. Did you mean 'cifar10.toml'? In that folder are: cifar10.toml, mnist.toml.",
        ),
        ("nowhere/x.toml", "it does not exist. That folder holds no .toml file."),
        ("", "it cannot be read as TOML: [Errno 21] Is a directory"),
        ("a\0b", "it cannot be read as TOML: embedded null byte."),
        ("latin.toml", "it cannot be read as TOML: 'utf-8' codec can't decode byte 0xff"),
        ("../cifar10.toml", "it leads out of its folder by '..'. Give the path of a config without '..'."),
        ("cifar10.toml/..", "it leads out of its folder by '..'"),
    ],
)
def test_a_path_that_leads_to_no_recipe_is_refused(tmp_path: Path, path: str, message: str) -> None:
    for name in ("cifar10.toml", "mnist.toml"):
        (tmp_path / name).write_text("name = 'x'")
    if path == "latin.toml":
        (tmp_path / path).write_bytes(b"name = '\xff'")
    assert refusal(tmp_path / path).startswith(message)
