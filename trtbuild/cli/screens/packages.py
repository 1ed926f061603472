"""A package as text: inputs and outputs, ranges of shapes, and the engines of each target."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import aligned, count, size
from trtbuild.core.model.graph_kinds import NETWORK, ONNX
from trtbuild.core.values.expressions import expression_text

Document = dict[str, Any]

#: The largest number of operators that are named for the layers of a module.
MOST_OPERATORS = 6


def inspected(*, layers: bool = False, trtexec: bool = False) -> Callable[[Document], list[str]]:
    """The function that shows the index of a package and, if required, the layers and trtexec commands of its engines."""

    def lines(found: Document) -> list[str]:
        result = _index(found)
        if layers:
            result += _each(found["engines"], _layers)
        if trtexec:
            result += _each(found["engines"], _trtexec)
        return result

    return lines


def _index(found: Document) -> list[str]:
    index = found["index"]
    dims = index["dims"]
    lines = [f"{terminal.bold(found['path'])}: model {index['model']}, {index['precision']}{_reference(index)}"]
    for kind in ("inputs", "outputs"):
        lines += _section(kind, [_tensor(entry, dims) for entry in index[kind]])
    lines += _section("dims", [(dim["name"], _range(dim)) for dim in dims])
    shapes = [
        (profile["name"], name, *(f"{word} {_shape(shape[word], dims)}" for word in ("min", "opt", "max")))
        for profile in index["profiles"]
        for name, shape in profile["shapes"].items()
    ]
    lines += _section("profiles", shapes)
    for name, target in index["targets"].items():
        lines += _target(name, target, index["files"])
    lines += _memory(found.get("memory"), [profile["name"] for profile in index["profiles"]])
    return [*lines, *_provenance(found.get("provenance"), _NOT_VERIFIED.get(found.get("source"), "trtbuild verify"))]


def _reference(index: Document) -> str:
    return ", with its reference program" if index.get("reference") else ""


def _tensor(entry: Document, dims: Sequence[Document]) -> tuple[str, ...]:
    by_name = ("keyword",) if entry.get("keyword") else ()
    values = entry.get("range")
    within = (f"{values[0]} to {values[1]}",) if values else ()
    return (entry["name"], entry["dtype"], _shape(entry["shape"], dims), *within, *by_name)


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


def _shape(shape: Sequence[Any], dims: Sequence[Document]) -> str:
    names, units = [dim["name"] for dim in dims], [dim["multiple_of"] for dim in dims]
    return f"[{', '.join(expression_text(size, names, units) for size in shape)}]"


# -- other parts of a package


def _memory(found: Document | None, profiles: Sequence[str]) -> Iterator[str]:
    """The device memory of one execution context: a row for each engine, a column for each profile."""
    if found is None:
        return
    if found["because"] is not None:
        yield f"device memory: {found['because']}"
        return
    yield f"device memory of a context, {found['device']}, target {found['target']}"
    rows = [("  profile", *profiles)] if len(profiles) > 1 else []
    rows += [(f"  {name}", *map(size, sizes)) for name, sizes in found["contexts"].items()]
    yield from aligned(rows, right=range(1, len(profiles) + 1))


#: The advice for a package that is not verified, by the kind of the model's source.
_NOT_VERIFIED: Mapping[str | None, str] = {
    ONNX.name: "trtbuild verify, on a GPU of a target: for an ONNX model, only engines are compared",
    NETWORK.name: "its source is a TensorRT network, for which there is no other implementation to compare with",
}


def _provenance(found: Document | None, otherwise: str) -> Iterator[str]:
    if found is None:
        return
    if found["void"] is not None:
        yield f"not verified: {found['void']}"
    elif not found["verified"]:
        yield terminal.dim(f"not verified: {otherwise}")
    for entry in found["verified"]:
        yield _verified(entry)


def _verified(entry: Document) -> str:
    """``verified by onnxruntime: right @ada,blackwell, worst error 2.1e-07 within 1e-05 at 7 points, 2026-01-31T…``."""
    results = [*entry.get("partitions", ()), *([entry["whole"]] if entry.get("whole") else [])]
    errors = [result["error"] for result in results if result.get("error") is not None]
    word = terminal.green("verified") if entry.get("status") == "right" else terminal.yellow("verified")
    text = f"{word} by {entry.get('by', 'an unknown program')}: {entry.get('status', 'unknown')}"
    targets = ",".join(entry.get("targets", ()))
    text += f" @{targets}" if targets else ""
    if errors:
        text += (
            f", worst error {max(errors):.1e} within {entry['tolerance']:.0e} at {count(len(entry['points']), 'point')}"
        )
    return f"{text}, {entry['finished']}" if entry.get("finished") else text


def _each(engines: Sequence[Document], make: Callable[[Document], list[str]]) -> Iterator[str]:
    """For each engine a heading and lines. Engines that differ only in their target have a common heading."""
    targets_by_text: dict[tuple[str, ...], list[str]] = {}
    for engine in engines:
        targets_by_text.setdefault((engine["partition"], *make(engine)), []).append(engine["target"])
    for (partition, *lines), targets in targets_by_text.items():
        yield f"engine {terminal.bold(partition)} @{','.join(targets)}"
        yield from (f"  {line}" for line in lines)


def _layers(engine: Document) -> list[str]:
    """One row for each sequence of layers that come from the same module."""
    if not engine["layers"]:
        return ["the layers are not known"]
    rows = []
    for module, of_module in groupby(engine["layers"], key=lambda layer: layer["module"]):
        layers = list(of_module)
        operators = list(dict.fromkeys(layer["operator"] for layer in layers if layer["operator"]))
        first, last = layers[0]["name"], layers[-1]["name"]
        names = first if first == last else f"{first} … {last}"
        named = ", ".join(map(_operator, operators[:MOST_OPERATORS]))
        more = f" and {len(operators) - MOST_OPERATORS} more" if len(operators) > MOST_OPERATORS else ""
        rows.append((_module(module), count(len(layers), "layer"), names, named + more))
    return aligned(rows)


def _module(path: str | None) -> str:
    if path is None:
        return "(unknown)"
    return path or "(the model)"


def _operator(name: str) -> str:
    """``aten.linear.default`` → ``linear``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "aten" else name


def _trtexec(engine: Document) -> list[str]:
    found: Mapping[str, Any] | None = engine["trtexec"]
    if found is None:
        return ["the source of this engine is not in this cache"]
    lines = [found["tool"], *(f"  {shlex.quote(argument)}" for argument in found["arguments"])]
    lines = [*(f"{line} \\" for line in lines[:-1]), lines[-1]]
    return [*lines, *(terminal.dim(f"# {text}") for text in found["differs"])]
