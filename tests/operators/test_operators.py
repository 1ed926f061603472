"""Each operator that Torch-TensorRT converts is tried. docs/aten-operators.md has the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.operators.page import PAGE, page, results_of_all_rows
from tests.operators.results import Result
from tests.operators.rows import CHUNKS


@pytest.fixture(scope="module")
def found() -> Mapping[str, Sequence[Result]]:
    return results_of_all_rows()


def test_the_numbers_of_every_row_agree_with_eager(found: Mapping[str, Sequence[Result]]) -> None:
    results = [result for chunk in found.values() for result in chunk]
    assert results
    assert [(result.row.operator, result.row.call, result.wrong) for result in results if result.wrong] == []


def test_the_page_is_current(found: Mapping[str, Sequence[Result]]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(found), "run `make docs`"


def test_rows_of_one_operator_differ_in_their_notes() -> None:
    names = [(row.operator, row.note) for rows in CHUNKS.values() for row in rows]
    assert sorted(names) == sorted(set(names))
