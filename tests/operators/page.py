"""Writes docs/aten-operators.md, which lists the result of each `Row` (a call of an operator)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.operators.results import Result, results
from tests.operators.rows import CHUNKS

PAGE = Path(__file__).parents[2] / "docs" / "aten-operators.md"

_HEAD = """\
# Operators

<!-- Generated from tests/operators by `make docs`; a test compares the two. Change the rows, not this file. -->

This page lists the operators that Torch-TensorRT has converters for, and what trtbuild does with each.

| result | meaning |
|---|---|
| engine | The call becomes part of an engine. |
| PyTorch | The call stays in PyTorch, between engines. The rest of the model is not affected. |
| refused | The build stops with an error. |

A test tries each row with TensorRT-RTX, and most of them with a dynamic batch. The parser's answer decides. onnxruntime
computes the converted ONNX, and the numbers agree with eager PyTorch. An operator that is an engine here may stay in
PyTorch with other arguments. `trtbuild inspect MODEL` shows the result for your model, with the reasons.
"""


def results_of_all_rows() -> Mapping[str, Sequence[Result]]:
    """Heading of the page → results of its rows."""
    return {heading: results(rows) for heading, rows in CHUNKS.items()}


def page(found: Mapping[str, Sequence[Result]]) -> str:
    count = Counter(result.kind for chunk in found.values() for result in chunk)
    lines = [
        _HEAD,
        f"{count['engine']} rows are engines, {count['PyTorch']} stay in PyTorch, {count['refused']} are refused.\n",
    ]
    for heading, chunk in found.items():
        lines += [f"## {heading}\n", *_table(chunk), ""]
    return "\n".join(lines[:-1]) + "\n"


def _table(chunk: Sequence[Result]) -> Iterator[str]:
    """The lines of a table. A private operator, such as ``aten._softmax``, is sorted beside the public one."""
    yield "| operator | call | result | reason |"
    yield "|---|---|---|---|"
    for result in sorted(
        chunk, key=lambda result: (result.row.operator.lstrip("_").replace("._", "."), result.row.note)
    ):
        reason = result.reason.replace("|", "\\|")
        yield f"| `{result.row.operator}` | {result.row.note} | {result.kind} | {reason} |"
