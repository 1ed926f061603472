"""A package, for a person: what goes in and out, in which ranges, and what each target's engines are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtbuild.cli import terminal
from trtbuild.cli.quantities import aligned, count, size

Document = dict[str, Any]


def inspected(found: Document) -> list[str]:
    """The index of a package."""
    index = found["index"]
    dims = [dim["name"] for dim in index["dims"]]
    lines = [f"{terminal.bold(found['path'])}: model {index['model']}, {index['precision']}"]
    for kind in ("inputs", "outputs"):
        lines += _section(
            kind, [(entry["name"], entry["dtype"], _shape(entry["shape"], dims)) for entry in index[kind]]
        )
    lines += _section("dims", [(dim["name"], _range(dim)) for dim in index["dims"]])
    shapes = [
        (profile["name"], name, *(f"{word} {_shape(shape[word], dims)}" for word in ("min", "opt", "max")))
        for profile in index["profiles"]
        for name, shape in profile["shapes"].items()
    ]
    lines += _section("profiles", shapes)
    for name, target in index["targets"].items():
        lines += _target(name, target, index["files"])
    return lines


def _section(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    return [title, *aligned([(f"  {row[0]}", *row[1:]) for row in rows])] if rows else []


def _range(dim: Document) -> str:
    steps = f", multiples of {dim['multiple_of']}" if dim["multiple_of"] > 1 else ""
    return f"{dim['min']} to {dim['max']}{steps}"


def _target(name: str, target: Document, files: Document) -> list[str]:
    parts = target["partitions"]["partitions"]
    sizes = {
        part["name"]: files[target["engines"][part["name"]]]["size"] for part in parts if part["kind"] == "tensorrt"
    }
    head = f"target {terminal.bold(name)}: SM {target['sm']}, {target['toolchain']} {target['version']}"
    rows = [
        (f"  {part['name']}", "engine", size(sizes[part["name"]]))
        if part["name"] in sizes
        else (f"  {part['name']}", "PyTorch", _reasons(part["reasons"]))
        for part in parts
    ]
    if len(sizes) > 1:
        rows.append(("  total", count(len(sizes), "engine"), size(sum(sizes.values()))))
    return [f"{head}, {target['platform']}", *aligned(rows)]


def _reasons(reasons: Document) -> str:
    return "; ".join(f"{operator}: {reason}" for operator, reason in reasons.items())


def _shape(shape: Sequence[Any], dims: Sequence[str]) -> str:
    return f"[{', '.join(_size(size, dims) for size in shape)}]"


def _size(size: Any, dims: Sequence[str]) -> str:
    if isinstance(size, int):
        return str(size)
    operator, *operands = size
    if operator == "sym":
        return dims[operands[0]] if operands[0] < len(dims) else f"s{operands[0]}"
    if operator == "mul" and len(operands) == 2 and isinstance(operands[0], int) and operands[1][0] == "sym":
        return str(dims[operands[1][1]])  # a dim that is a multiple: its size, not its unit
    return f"{operator}({', '.join(_size(operand, dims) for operand in operands)})"
