"""The tables of docs/zoo.md: a run replaces the rows of its models, and removes rows of removed models."""

from __future__ import annotations

import pytest

from benchmarks.zoo.measuring import Row
from benchmarks.zoo.page import line, replace

EMPTY = """\
# Zoo
<!-- zoo: published -->
<!-- zoo: end of published -->
## Small
<!-- zoo: small -->
<!-- zoo: end of small -->
"""
ORDER = ["bert", "gru", "yolo"]


def row(model: str, **fields: object) -> Row:
    return Row(model=model, precision="float32", **fields)  # type: ignore[arg-type]


def right(model: str, seconds: float = 12.4) -> Row:
    """The row of a model whose results are right."""
    return row(model, engines=1, torch_partitions=2, status="right", error=3.14e-7, seconds=seconds)


def test_a_verified_model_has_its_numbers() -> None:
    assert line(right("bert")) == "| `bert` | float32 | 1 | 2 | right | 3.1e-07 | 12 |"


def test_a_model_that_is_not_built_has_the_reason() -> None:
    assert line(row("gru", problem="no | operator <lambda>")) == (
        "| `gru` | float32 |  |  | not built: no \\| operator &lt;lambda> |  |  |"
    )


def test_a_long_reason_is_cut() -> None:
    text = line(row("gru", problem="word " * 60))
    assert text.count("word") == 32 and "word… |" in text


def test_a_model_without_a_verification_is_not_verified() -> None:
    assert "| 1 | 0 | not verified |" in line(row("gru", engines=1, torch_partitions=0, seconds=1.0))


def test_rows_have_the_order_of_the_manifest_and_other_rows_stay() -> None:
    page = replace(EMPTY, "small", [right("yolo"), right("bert")], ORDER)
    page = replace(page, "small", [right("gru"), right("yolo", seconds=99)], ORDER)
    assert [text.split("`")[1] for text in page.splitlines() if text.startswith("| `")] == ORDER
    assert "| 99 |" in page and page.count("| 12 |") == 2


def test_the_sizes_have_separate_tables() -> None:
    page = replace(EMPTY, "published", [right("bert")], ORDER)
    assert page.index("| `bert`") < page.index("## Small")
    assert page.partition("## Small")[2] == EMPTY.partition("## Small")[2]


def test_rows_of_models_that_were_removed_are_removed() -> None:
    page = replace(EMPTY, "small", [right("bert"), right("gru")], ORDER)
    assert "`gru`" not in replace(page, "small", [], ["bert"])


def test_rejects_a_page_without_a_place_for_the_table() -> None:
    with pytest.raises(ValueError, match="no comments <!-- zoo: small -->"):
        replace("# Zoo\n", "small", [right("bert")], ORDER)
