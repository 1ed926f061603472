"""Builds each row (a call of an operator) up to the conversion, to find its result: ``engine``, ``PyTorch`` or ``refused``.

A call that TensorRT's parser rejects stays in PyTorch. The converted rows are compared with eager PyTorch.

Rules
1. Rows are outputs of one model, except those in `ALONE`, because one large model is built faster than many small models.
2. The result of a row is ``engine`` if the row's output depends on no call that stays in PyTorch. Otherwise the result
   is ``PyTorch``, with the reason of the last such call.
3. If a model with several rows is refused, or differs from eager PyTorch, each of its rows is tried alone. A row is also
   tried alone if its reason is a message of the parser, which may be about another row.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tests.fuzz.comparing import differences
from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import Built, ModuleCase, build
from tests.operators.rows import ALONE, B, Row
from tests.operators.sharing import share_inputs
from trtbuild.core.model.spec import NamedDim
from trtbuild.core.partition.partitions import Partition
from trtbuild.errors import TrtbuildError
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.text import target_name


@dataclass(frozen=True)
class Result:
    """The result of a row. `kind` is ``engine``, ``PyTorch`` or ``refused``.

    `wrong` lists the differences from eager PyTorch, and the partitions that were not compared. It must be empty.
    """

    row: Row
    kind: str
    reason: str = ""
    wrong: tuple[str, ...] = ()


def results(rows: Sequence[Row]) -> list[Result]:
    together = [row for row in rows if (row.operator, row.note) not in ALONE]
    found = {result.row: result for result in _results_of_one_model(together)}
    return [found[row] if row in found else _results_of_one_model([row])[0] for row in rows]


def _results_of_one_model(rows: Sequence[Row]) -> list[Result]:
    case = _case(rows)
    try:
        built = build(case, engines=False)
    except TrtbuildError as error:
        if len(rows) > 1:
            return [result for row in rows for result in _results_of_one_model([row])]
        return [Result(rows[0], "refused", _short([error.text]))]
    comparison = differences(case, built, count=0)
    wrong = (*comparison.differences, *comparison.unchecked)
    if wrong and len(rows) > 1:
        return [result for row in rows for result in _results_of_one_model([row])]
    torch_calls = _TorchCalls(built)
    found, first_output = [], 0
    for row, count in zip(rows, _output_counts(case), strict=True):
        reasons = [
            reason for number in range(first_output, first_output + count) for reason in torch_calls.reasons(number)
        ]
        first_output += count
        if reasons and "_NODE" in reasons[0] and len(rows) > 1:  # perhaps the parser's message is about another row
            found += _results_of_one_model([row])
        else:
            found.append(Result(row, "PyTorch" if reasons else "engine", _short(reasons), wrong))
    return found


def _short(reasons: Sequence[str]) -> str:
    """The first reason as one short line, or an empty string if there are no reasons."""
    if not reasons:
        return ""
    lines = reasons[0].partition(";")[0].splitlines()
    text = lines[1] if len(lines) > 1 and lines[0].startswith("the model itself fails") else lines[0]
    text = re.sub(r"\bn\d+: ", "", text).replace(": UNSUPPORTED_NODE: false", " is not in TensorRT's parser")
    return textwrap.shorten(text, 170, placeholder=" …")


def _case(rows: Sequence[Row]) -> ModuleCase:
    """A case whose module computes all rows. Rows share inputs of the same type and shape."""
    functions = {f"op{number}": row.function for number, row in enumerate(rows)}
    specs, texts = share_inputs(rows, list(functions))
    # all axes of size `B` are one dim
    at = tuple((f"x{k}", axis) for k, (_, axes) in enumerate(specs) for axis, size in enumerate(axes) if size is B)
    module = module_from_text([], f"({', '.join(texts)},)", len(specs), names=functions)
    return ModuleCase(module, specs, dims=(NamedDim("b", at),) if len(at) > 1 else ())


def _output_counts(case: ModuleCase) -> Iterator[int]:
    # a dynamic axis is (min, opt, max)
    inputs = [
        torch.ones([axis if isinstance(axis, int) else axis[1] for axis in axes]).to(getattr(torch, dtype))
        for dtype, axes in case.inputs
    ]
    with torch.no_grad():
        for value in case.module(*inputs):
            yield len(value) if isinstance(value, tuple | list) else 1


class _TorchCalls:
    """Finds the calls in PyTorch that an output of the model depends on."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._parts = {part.name: part for part in built.partitions.partitions}
        self._programs = {
            name: Program.from_bytes(built.store.get_bytes(built.programs[part.graph]))
            for name, part in self._parts.items()
        }

    def reasons(self, output: int) -> list[str]:
        """The reasons of the calls in PyTorch that an output depends on. Calls near the output come first."""
        found: list[str] = []
        self._collect(self._built.partitions.outputs[output], found)
        return list(dict.fromkeys(found))

    def _collect(self, source: str, found: list[str]) -> None:
        """Add the reasons for the value `source`. ``p0:1`` is output 1 of partition p0."""
        name, _, number = source.rpartition(":")
        if name not in self._parts:
            return  # an input or a weight
        part, program = self._parts[name], self._programs[name]
        inputs = dict(zip(program.input_nodes, (text for text, _ in part.inputs), strict=True))
        pending, visited = [program.output_nodes[int(number)]], set()
        while pending:
            node = pending.pop()
            if node in visited:
                continue
            visited.add(node)
            if node in inputs:
                self._collect(inputs[node], found)
            if part.kind == "torch" and node.op == "call_function":
                found.extend(_reason(part, target_name(node.target)))
            pending += node.all_input_nodes


def _reason(part: Partition, operator: str) -> Iterator[str]:
    if operator in part.reasons:
        text = part.reasons[operator]
        yield text if operator in text else f"{operator}: {text}"
