"""The report for machines: the same figures as are printed, in a form that stays."""

import os
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from jsonschema import Draft202012Validator

from check.machine import Checked, Checker, FakeCheck, Reported
from check.report_file import SCHEMA, load
from tfds_torch.check import command, json_report
from tfds_torch.check.arguments import parse_arguments
from tfds_torch.check.command import save_output
from tfds_torch.check.findings import Findings
from tfds_torch.check.json_report import make_report
from tfds_torch.check.ledger import EpochCounts
from tfds_torch.check.verdict import CappedList, NotJudged, Promise
from tfds_torch.errors import ConfigError, ShardError
from tfds_torch.images.decoders import jpeg


def save(path: Path, findings: Findings, exit_code: int = 0) -> dict[str, Any]:
    save_output("--json", path, findings, make_report(findings, ["--json", str(path)], time.time(), exit_code))
    return load(path)


# The form.


def objects(schema: Any, where: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields every part of a schema that describes an object with given keys."""
    if isinstance(schema, dict):
        if "properties" in schema and isinstance(schema["properties"], dict):
            yield where, schema
        for key, inner in schema.items():
            yield from objects(inner, f"{where}.{key}")
    elif isinstance(schema, list):
        for number, inner in enumerate(schema):
            yield from objects(inner, f"{where}[{number}]")


def test_the_schema_is_one_and_leaves_nothing_open() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    found = dict(objects(SCHEMA))
    assert len(found) >= 12
    for where, schema in found.items():
        if where.endswith("machine.properties.packages"):
            continue
        assert schema["additionalProperties"] is False, where
        assert sorted(schema["required"]) == sorted(schema["properties"]), where


def test_every_key_is_documented() -> None:
    """By its name, in the text that stands above the code."""
    described = set(re.findall(r"\w+", json_report.__doc__ or ""))
    names = {name for where, schema in objects(SCHEMA) for name in schema["properties"] if "packages" not in where}
    known_by_example = {"label", "smallest", "median", "largest", "mean_pixels", "num_missing", "num_twice"}
    known_by_example |= {"num_unknown", "whole_s", "pid", "pss_bytes"}
    assert names - described <= known_by_example


def test_a_check_that_knows_nothing_has_every_key(tmp_path: Path) -> None:
    report = save(tmp_path / "r.json", Findings(error=ConfigError("no such thing")), 2)
    assert list(report) == list(SCHEMA["required"])
    assert report["error"] == {"type": "ConfigError", "message": "no such thing"}
    assert (report["dataset"], report["plan"], report["images"], report["reading"]) == (None, None, None, None)
    assert [report[key] for key in ("epochs", "labels", "throughput", "promises", "not_judged", "advice")] == [[]] * 6
    assert report["exit_code"] == 2


def test_what_was_not_judged_is_said(tmp_path: Path) -> None:
    report = save(tmp_path / "r.json", Findings(not_judged=[NotJudged("a promise", "a reason")]))
    assert report["not_judged"] == [{"name": "a promise", "reason": "a reason"}]


def test_of_many_ids_the_number_and_the_first_hundred_are_given(tmp_path: Path) -> None:
    ids = [f"x__{number}" for number in range(101)]
    counts = EpochCounts((3, 3), CappedList(ids), CappedList(ids[:100]), CappedList(ids[:99]), 10, 2)
    with mock.patch.object(Findings, "counts", {0: counts}):
        (epoch,) = save(tmp_path / "r.json", Findings())["epochs"]
    assert epoch == {
        "epoch": 0,
        "num_batches": [3, 3],
        "num_valid": 10,
        "num_padded": 2,
        "num_missing": 101,
        "num_twice": 100,
        "num_unknown": 99,
        "missing": ids[:100],
        "twice": ids[:100],
        "unknown": ids[:99],
        "members": [],
    }


@pytest.mark.parametrize("text", ["\x1b[31mred\x07", "\x7f\x9b", "\u202ex\u2028", "猫 ñ", '"\\/', "\udc80", "a\nb\r\0"])
def test_any_text_is_kept_and_harmless(tmp_path: Path, text: str) -> None:
    findings = Findings(
        promises=[Promise("p", False, text)], advice=[text], error=ShardError(text), images_path=Path(f"/{text}")
    )
    report = save(tmp_path / "r.json", findings, 1)
    assert report["promises"] == [{"name": "p", "kept": False, "detail": text}]
    assert (report["advice"], report["error"]["message"]) == ([text], text)


def test_what_is_no_number_is_no_report(tmp_path: Path, fake: FakeCheck) -> None:
    """Rather none than one that a parser of JSON stumbles over."""
    path = tmp_path / "r.json"
    path.write_text("old")
    findings = Findings(promises=[Promise("p", float("nan"), "")])  # type: ignore[arg-type]
    report = make_report(findings, [], time.time(), 0)
    with pytest.raises(ValueError, match="JSON"):
        save_output("--json", path, findings, report)
    assert (os.listdir(tmp_path), path.read_text()) == (["r.json"], "old")


# The file.


# Every way in which a check ends.


def figures(report: dict[str, Any]) -> tuple[int, str | None]:
    """Returns the exit code and the type of the error."""
    return report["exit_code"], report["error"] and report["error"]["type"]


def assert_says_what_was_printed(report: dict[str, Any], checked: Checked) -> None:
    """Every number that is printed is in the report, as far as it was printed whole."""
    assert report["exit_code"] == checked.code
    pipelines = [
        {
            "rank": str(pipeline["rank"]),
            "worker": "-" if report["plan"]["num_workers"] == 0 else str(pipeline["worker"]),
            "batches": str(pipeline["num_batches"]),
            "examples": str(pipeline["num_examples"]),
            "fill": str(pipeline["num_fill"]),
        }
        for pipeline in report["plan"]["pipelines"]
    ]
    assert pipelines == [{key: row[key] for key in pipelines[0]} for row in checked.plan]
    for epoch, row in zip(report["epochs"], checked.ledger, strict=True):
        shown = {name: str(epoch[f"num_{name}"]) for name in ("valid", "padded", "missing", "twice", "unknown")}
        assert {**shown, "epoch": str(epoch["epoch"]), "batches": row["batches"]} == row
        assert row["batches"].split()[0] == str(epoch["num_batches"][0])
        for name in ("missing", "twice", "unknown"):
            assert len(epoch[name]) == min(100, epoch[f"num_{name}"])
    assert {promise["name"]: promise["kept"] for promise in report["promises"]} == {
        name: kept for name, (kept, _) in checked.promises.items()
    }
    for promise in report["promises"]:
        detail = checked.promises[promise["name"]][1]
        assert re.sub(r"\s", "", detail) == re.sub(r"\s", "", promise["detail"])
    assert {count["name"]: count["num_examples"] for count in report["labels"]} == checked.labels
    for rank, row in zip(report["throughput"], checked.throughput, strict=True):
        later = rank["later_first_batch_s"]
        assert row == {
            "rank": str(rank["rank"]),
            "first batch s": f"{rank['first_batch_s']:.2f}",
            "later first batch s": "-" if later is None else f"{later:.2f}",
            "examples/s": f"{rank['examples_per_s']:.0f}",
            "tail s": f"{rank['tail_s']:.3f}",
        }
        assert [epoch["num_batches"] for epoch in rank["epochs"]] == [report["plan"]["num_batches"]] * len(
            rank["epochs"]
        )
        assert all(epoch["first_batch_s"] <= epoch["whole_s"] for epoch in rank["epochs"])
        assert len(rank["epochs"]) == len(report["epochs"])
    reading, speed = report["reading"], report["throughput"][0]
    how = f"Read by {reading['loader']}, whole batches, preprocess={reading['preprocess']} ("
    stages = f"Stages of {speed['num_batches']} batches of rank 0 in {speed['timed_s']:.2f} s, "
    everything = re.sub(r"\s", "", checked.output)
    for text in (how, stages):
        assert re.sub(r"\s", "", text) in everything
    per_rank = [sum(epoch["num_batches"] for epoch in rank["epochs"]) for rank in report["throughput"]]
    assert report["num_batches_read"] == sum(per_rank)
    assert report["is_interrupted"] is False
    assert [re.sub(r"\s", "", text) for text in report["advice"]] == [
        re.sub(r"\s", "", text) for text in checked.advice
    ]
    assert report["dataset"]["name"] in checked.output
    assert report["dataset"]["data_dir"] in checked.output


def test_a_check_that_keeps_every_promise(checker: Checker, two_ranks: Reported) -> None:
    checked, report = two_ranks.checked, load(two_ranks.json)
    assert figures(report) == (0, None)
    assert_says_what_was_printed(report, checked)
    assert report["command"] == two_ranks.line
    dataset, plan = report["dataset"], report["plan"]
    assert (dataset["name"], dataset["split"], dataset["is_fake"]) == ("digits:1.0.0", "train", False)
    assert (dataset["num_examples"], dataset["num_shards"]) == (1437, 1)
    assert dataset["class_names"] == [str(digit) for digit in range(10)]
    assert dataset["features"] == {
        "image": {"dtype": "uint8", "shape": [8, 8, 1]},
        "label": {"dtype": "int64", "shape": []},
    }
    assert dataset["image_sizes"] == {
        "num_images": 18,
        "smallest": [8, 8],
        "median": [8, 8],
        "largest": [8, 8],
        "mean_pixels": 64.0,
    }
    assert {key: plan[key] for key in plan if key not in ("pipelines", "schedule")} == {
        "is_training": True,
        "shuffle": True,
        "seed": 42,
        "remainder": "wrap",
        "read_mode": "index",
        "jpeg_decoder": jpeg.describe("auto"),
        "batch_size": 32,
        "num_batches": 23,
        "num_replicas": 2,
        "num_workers": 0,
    }
    assert sum(count["num_examples"] for count in report["labels"]) == 1437
    assert report["images"] is None
    assert [rank["rank"] for rank in report["throughput"]] == [0, 1]
    assert report["is_torchrun"] is False
    processes = [rank["processes"] for rank in report["throughput"]]
    assert [members[0]["pid"] for members in processes] == [checker.pid] * 2
    heaviest = max(processes, key=lambda members: sum(process["pss_bytes"] for process in members))
    assert f"this process {heaviest[0]['pss_bytes'] / 1e6:,.0f}" in checked.output
    assert datetime.fromisoformat(report["started"]).utcoffset() == timedelta(0)


def test_a_check_of_made_up_content(fake: FakeCheck) -> None:
    report = load(fake.json)
    assert figures(report) == (0, None)
    assert_says_what_was_printed(report, fake.checked)
    assert report["dataset"]["is_fake"]
    assert report["images"] == str(fake.images)
    assert report["dataset"]["num_shards"] == 4


def test_a_check_that_breaks_a_promise(broken: Reported) -> None:
    checked, report = broken.checked, load(broken.json)
    assert figures(report) == (1, None)
    assert_says_what_was_printed(report, checked)
    assert [promise["name"] for promise in report["promises"] if not promise["kept"]] == list(checked.broken)
    (epoch,) = report["epochs"]
    assert epoch["missing"] == ["digits-test.tfrecord-00000-of-00001__1"]
    assert epoch["twice"] == ["digits-test.tfrecord-00000-of-00001__0"]


def test_a_damaged_shard(damaged: Reported) -> None:
    checked, report = damaged.checked, load(damaged.json)
    assert figures(report) == (1, "ShardError")
    assert checked.code == 1
    assert f"BROKEN: {report['error']['message']}" == checked.errors.strip()
    assert "digits-test.tfrecord-00000-of-00001" in report["error"]["message"]
    assert report["dataset"]["num_examples"] == 360
    assert report["plan"]["num_batches"] == 12
    assert [report[key] for key in ("epochs", "labels", "throughput", "promises", "advice")] == [[]] * 5


def test_a_wrong_split(checker: Checker, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    checked = checker.check("--split", "trian\x1b", "--workers", "0", "--json", path)
    report = load(path)
    assert figures(report) == (2, "ConfigError")
    assert checked.code == 2
    assert "Did you mean 'train'?" in report["error"]["message"]
    assert (report["dataset"], report["plan"]) == (None, None)


def test_a_dataset_that_is_not_there(checker: Checker, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    checker.check("--name", "cifar10", "--root", tmp_path, "--json", path)
    report = load(path)
    assert figures(report) == (2, "DatasetNotFoundError")
    assert "--fake" in report["error"]["message"]


@pytest.mark.parametrize(
    "arguments", [["--workers", "-1"], ["--config", "nowhere.toml"], ["--fake", "0"], ["--images", "sheet.jpg"]]
)
def test_arguments_that_cannot_be(checker: Checker, tmp_path: Path, arguments: list[str]) -> None:
    """The report of an earlier check must not pass for this one's."""
    path = tmp_path / "r.json"
    path.write_text("earlier")
    checked = checker.check(*arguments, "--json", path)
    assert checked.code == 2
    assert figures(load(path)) == (2, "ConfigError")


def test_ctrl_c_before_anything_was_looked_at(tmp_path: Path) -> None:
    """While torch and TFDS were loaded: the report of an earlier check must not pass for this one's."""
    path = tmp_path / "r.json"
    path.write_text("earlier")
    flags = parse_arguments(["--json", str(path), "--name", "nowhere"])
    assert command.run(flags, ["--name", "nowhere"], is_interrupted=True) == 130
    report = load(path)
    assert figures(report) == (130, None)
    assert (report["is_interrupted"], report["dataset"], report["num_batches_read"]) == (True, None, 0)
