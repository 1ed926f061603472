"""The rows of a benchmark as text, and whether they meet their bounds."""

from __future__ import annotations

import json

import pytest

from benchmarks.figure import Check, Measurement, Ratio, Row, Value, line, table, to_json, verdict


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Ratio("null", Value("trtbuild", 0.05), Value("make", 0.2), bound=0.25), "met"),
        (Ratio("null", Value("trtbuild", 0.06), Value("make", 0.2), bound=0.25), "NOT MET"),
        (Ratio("null", Value("trtbuild", 0.06), Value("make", 0.2)), ""),
        (Ratio("chunks", Value("plain", 45, "B"), Value("cache", 10, "B"), bound=4.5, at_least=True), "met"),
        (Ratio("chunks", Value("plain", 44, "B"), Value("cache", 10, "B"), bound=4.5, at_least=True), "NOT MET"),
        (Measurement("plan", Value("trtbuild", 0.99), bound=1.0), "met"),
        (Measurement("plan", Value("trtbuild", 1.0), bound=1.0), "NOT MET"),
        (Measurement("plan", Value("doit", 5.0)), ""),
        (Check("one trace", True, "1"), "met"),
        (Check("one trace", False, "2"), "NOT MET"),
    ],
)
def test_a_row_is_met_only_within_its_bound(row: Row, expected: str) -> None:
    assert verdict(row) == expected
    assert line(row).endswith(expected)
    assert json.loads(json.dumps(to_json(row)))["met"] == row.met


def test_a_line_contains_both_numbers_the_ratio_and_the_bound() -> None:
    row = Ratio("null build", Value("trtbuild", 0.05), Value("make", 0.2), bound=0.5)
    assert line(row) == "  null build: trtbuild 50 ms; make 200 ms  →  0.250 ×  (≤ 0.5 ×)  met"


def test_the_table_contains_only_rows_with_a_bound() -> None:
    rows: list[tuple[str, Row]] = [
        ("plan", Measurement("trtbuild", Value("", 2.5), bound=1.0)),
        ("plan", Measurement("doit", Value("", 0.3))),
    ]
    assert table(rows) == "plan  trtbuild  2.50 s  < 1.00 s  NOT MET"
