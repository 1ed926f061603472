"""Puts several rows (calls of operators, `rows.Row`) into one model, whose inputs they share."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.operators.rows import Row, Spec


def share_inputs(rows: Sequence[Row], functions: Sequence[str]) -> tuple[list[Spec], list[str]]:
    """The inputs x0, x1, … of a model that computes all rows, and the text of each row's call.

    Rows share inputs of the same type and shape. In the text of a call, the row's name in `functions` replaces ``op``.
    """
    inputs: list[Spec] = []
    calls = []
    for row, function in zip(rows, functions, strict=True):
        unused = list(range(len(inputs)))  # inputs of the model that this row does not use yet
        names = []  # the model's input for each input of the row
        for spec in row.inputs:
            place = next((place for place in unused if inputs[place] == spec), None)
            if place is None:
                place = len(inputs)
                inputs.append(spec)
            else:
                unused.remove(place)
            names.append(f"x{place}")
        text = re.sub(r"\bx(\d)\b", lambda match: names[int(match[1])], row.call)  # noqa: B023
        calls.append(re.sub(r"\bop\(", f"{function}(", text))
    return inputs, calls
