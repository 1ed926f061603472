"""Cases of several operators: random statements that eager PyTorch can run at all points of the case.

A point is one choice of the dynamic sizes and of the inputs' values.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tests.fuzz.choosing import Chooser, NoSuitableValue, Value
from tests.fuzz.modules import NAMES, module_from_text
from tests.fuzz.pipeline import Axis, ModuleCase
from tests.fuzz.ranges import UnusableCase, check_usable, random_range
from tests.fuzz.statements import STATEMENTS
from trtbuild.core.model.spec import NamedDim
from trtbuild.core.model.verification import points_of_model
from trtbuild.stages.verify.inputs import random_inputs

#: Operators that a case may keep in PyTorch (`torch_executed_ops`), so that its model has several partitions.
_TORCH_EXECUTED = (
    "aten.add", "aten.mul", "aten.sub", "aten.neg", "aten.relu", "aten.softmax", "aten._softmax", "aten.view",
    "aten.permute", "aten.transpose", "aten.cat", "aten.slice", "aten.select", "aten.sum", "aten.mean", "aten.where",
    "aten.expand", "aten.unsqueeze", "aten.squeeze", "aten._to_copy", "aten.gt", "aten.linear", "aten.addmm",
    "aten.convolution", "aten.flip", "aten.sigmoid", "aten.clone", "aten.reshape", "aten.embedding", "aten.arange",
    "aten.any", "aten.amax", "aten.argmax", "aten.matmul", "aten.bmm",
)  # fmt: skip

#: The relative frequency of the dtypes of inputs.
_DTYPES = {"float32": 12, "float16": 2, "bfloat16": 2, "float64": 1, "int64": 2, "int32": 1, "bool": 1}

_WORD = re.compile(r"\w+")

#: The largest numbers of elements and of axes in a value, and the number of attempts to find a statement.
_MOST_ELEMENTS, _MOST_AXES, _ATTEMPTS = 30_000, 6, 120


def composition_case(seed: int) -> ModuleCase:
    """The case of a seed. Raises UnusableCase if there is no usable case."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    inputs, dims = _inputs(rng)
    without_statements = ModuleCase(nn.Identity(), inputs, dims)
    writer = _Writer(without_statements, rng)
    for _ in range(rng.randint(3, 12)):
        writer.write()
    result = _result(writer, rng)
    statements = _needed_statements(writer.statements, result)
    parts = {name: part for name, part in writer.parts.items() if f"self.{name}(" in "\n".join(statements)}
    granularity = ("model",)
    if parts and rng.random() < 0.4:
        granularity = (rng.choice([*parts, "m*"]),)  # the submodules of `parts` are named m0, m1, …
    torch_executed = rng.sample(_TORCH_EXECUTED, rng.randint(1, 4)) if rng.random() < 0.5 else []
    case = ModuleCase(
        module_from_text(statements, result, len(inputs), parts),
        inputs,
        dims,
        precision=rng.choices(["float32", "float16", "bfloat16"], [6, 2, 2])[0],
        granularity=granularity,
        torch_executed_ops=tuple(torch_executed),
    )
    check_usable(case)
    return case


def _inputs(rng: random.Random) -> tuple[list[tuple[str, list[Axis]]], tuple[NamedDim, ...]]:
    """Inputs (dtype and axes) that share axes, and named dims.

    Each letter stands for an axis: batch (B), sequence length (S), height (H), width (W), or channels (C). Channels are
    never dynamic.
    """
    units = {name: rng.choice([2, 4]) if rng.random() < 0.15 else 1 for name in "BSHW"}
    spans = {
        name: random_range(rng, size, units[name])
        for name, size in {"B": 2, "S": rng.choice([2, 3, 5]), "H": 4, "W": 4}.items()
    }
    if rng.random() < 0.3:  # two dims with the same range, whose sizes may differ
        spans["S"], units["S"] = spans["B"], units["B"]
    static = {name: rng.choice(span) for name, span in spans.items() if rng.random() < 0.3}
    channels = rng.choice([4, 4, 8])
    layouts = ["BC", "BSC", "BSC", "BCHW", "BCHW", "BS", "S", "BCS", "SB", "BSS", "HW"]
    inputs: list[tuple[str, list[Axis]]] = []
    places: dict[str, list[tuple[str, int]]] = {}
    for k in range(rng.choices([1, 2, 3], [6, 4, 1])[0]):
        axes: list[Axis] = []
        for number, letter in enumerate(rng.choice(layouts)):
            if letter == "C":
                axes.append(channels)
            elif letter in static:
                axes.append(static[letter])
            else:
                axes.append(spans[letter])
                places.setdefault(letter, []).append((f"x{k}", number))
        inputs.append((rng.choices(list(_DTYPES), list(_DTYPES.values()))[0], axes))
    # a dim is named if its size must be a multiple of 2 or 4, and usually also if several axes have its letter
    shares_dims = rng.random() < 0.9
    dims = [
        NamedDim(letter, tuple(axes_of_dim), units[letter])
        for letter, axes_of_dim in places.items()
        if units[letter] > 1 or (shares_dims and len(axes_of_dim) > 1)
    ]
    return inputs, tuple(dims)


class _Writer:
    """Writes statements, and runs each at all points of `case`. A statement that fails at a point is dropped."""

    def __init__(self, case: ModuleCase, rng: random.Random) -> None:
        self._rng = rng
        self._module = nn.Module()
        self.parts: dict[str, nn.Module] = {}
        self.statements: list[str] = []
        model, shapes = case.model, case.shapes
        entries = [(entry.name, entry.dtype) for entry in model.inputs]
        self._namespaces: list[dict[str, Any]] = []  # the values of all names, for each point
        for point in points_of_model(model, shapes):
            sizes = shapes.input_shapes(point.sizes)
            # integers are 0 or 1
            arguments = random_inputs(entries, sizes, point, ends=[2] * len(entries), ranges={})
            values = {f"x{k}": value for k, value in enumerate(arguments)}
            self._namespaces.append({**NAMES, "self": self._module, **values})
        self._opt_index = next((k for k, point in enumerate(points_of_model(model, shapes)) if point.which == "opt"), 0)
        self.values = [Value(f"x{k}", self._namespaces[self._opt_index][f"x{k}"]) for k in range(len(entries))]

    def write(self) -> None:
        """Add one statement. Raises UnusableCase if no working statement is found."""
        for _ in range(_ATTEMPTS):
            parts_before = dict(self.parts)
            try:
                text = self._rng.choice(STATEMENTS)(Chooser(self._rng, self.values, self.parts))
                for name, part in self.parts.items():
                    setattr(self._module, name, part.eval())
                results = self._run(text)
            except (
                NoSuitableValue,
                ArithmeticError,
                LookupError,
                RuntimeError,
                TypeError,
                ValueError,
                NotImplementedError,
            ):
                self.parts.clear()
                self.parts.update(parts_before)
                continue
            name = f"y{len(self.statements)}"
            for namespace, value in zip(self._namespaces, results, strict=True):
                namespace[name] = value
            self.statements.append(f"{name} = {text}")
            self.values.append(Value(name, results[self._opt_index]))
            return
        raise UnusableCase("statements: no statement was found that works at all points")

    def _run(self, text: str) -> list[torch.Tensor]:
        """The statement's value at each point. Raises the statement's errors, or NoSuitableValue for unusable values."""
        results = []
        for namespace in self._namespaces:
            with torch.no_grad():
                value = eval(text, namespace)
            if (
                not isinstance(value, torch.Tensor)
                or value.numel() > _MOST_ELEMENTS
                or value.dim() > _MOST_AXES
                or value.is_complex()
            ):
                raise NoSuitableValue
            if value.is_floating_point() and value.numel() and float(value.float().abs().max()) > 1e4:
                raise NoSuitableValue  # the largest float16 is 65504
            results.append(value)
        if len({value.dim() for value in results}) > 1 or not any(value.numel() for value in results):
            raise NoSuitableValue
        return results


def _result(writer: _Writer, rng: random.Random) -> str:
    """The expression that the module returns.

    It has all values that no statement reads (``unread``), or the last value: alone (``last``), twice (``twice``), with the
    first input (``input``), or with other values (``several``).
    """
    values: Sequence[str] = [str(value) for value in writer.values]
    last = values[-1]
    kind = rng.choices(["last", "unread", "several", "twice", "input"], [5, 5, 2, 1, 1])[0]
    if kind == "last":
        return last
    if kind == "unread":
        read = set(_WORD.findall(" ".join(text.partition(" = ")[2] for text in writer.statements)))
        return f"({', '.join(value for value in values if value not in read)},)"
    if kind == "several":
        return f"({', '.join(dict.fromkeys([last, *rng.sample(values[:-1], min(2, len(values) - 1))]))},)"
    return f"({last}, {last})" if kind == "twice" else f"({last}, x0)"


def _needed_statements(statements: Sequence[str], result: str) -> list[str]:
    names_read, needed = set(_WORD.findall(result)), []
    for text in reversed(statements):
        name, _, expression = text.partition(" = ")
        if name in names_read:
            names_read |= set(_WORD.findall(expression))
            needed.append(text)
    return needed[::-1]
