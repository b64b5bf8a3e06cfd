"""Tables of figures as text and as data."""

from tfds_torch.bench.figures import Spread
from tfds_torch.bench.section import Column, Section

COLUMNS = [Column("name", "what"), Column("time", "s", "{:.2f}"), Column("size", "bytes")]


def made(*rows: dict[str, object]) -> Section:
    return Section("a", "b", "c", COLUMNS, rows)


def test_spreads_numbers_and_texts_are_written_in_their_columns_form() -> None:
    headings, rows = made({"name": "one", "time": Spread(1.0, 0.5, 2.0), "size": 1234}).table()
    assert headings == ["what", "s", "bytes"]
    assert rows == [["one", "1.00 (0.50 to 2.00)", "1,234"]]


def test_what_is_not_there_is_a_dash_and_no_zero() -> None:
    _, rows = made({"name": "one", "time": None}).table()
    assert rows == [["one", "-", "-"]]
    assert made({"name": "one", "time": None}).as_dict()["rows"] == [{"name": "one", "time": None}]
