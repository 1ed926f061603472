"""A package as text: its inputs and outputs, its profiles, and the engines of each target."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import align_rows, count, size
from trtbuild.core.engines.engine_layers import Layer
from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.core.model.graph_kinds import NETWORK, ONNX
from trtbuild.core.model.state import StateTensor
from trtbuild.core.packages.package_index import PackageIndex, PackedDim, PackedTarget, PackedTensor, size_text
from trtbuild.core.packages.provenance import Provenance, Summary, summary
from trtbuild.core.values.expressions import Expression
from trtbuild.driver.inspection.documents import DeviceMemory, InspectedEngine, Inspection, Inspections, TargetLibrary

#: The largest number of operators that are named for the layers of a module.
MOST_OPERATORS = 6


def package_screen(*, layers: bool = False, trtexec: bool = False) -> Callable[[Inspection], list[str]]:
    """The function that returns the lines of a package.

    `layers` adds the layers of its engines, and `trtexec` the commands that build the same engines."""

    def lines(document: Inspection) -> list[str]:
        result = _index(document)
        if layers:
            result += _grouped_by_text(document.engines, _layers)
        if trtexec:
            result += _grouped_by_text(document.engines, _trtexec)
        return result

    return lines


def project_screen(*, layers: bool = False, trtexec: bool = False) -> Callable[[Inspections], list[str]]:
    """The function that returns the lines of all packages of a project, and a line for each model without a package."""
    lines_of_package = package_screen(layers=layers, trtexec=trtexec)

    def lines(document: Inspections) -> list[str]:
        result: list[str] = []
        for package in document.packages:
            result += [*([""] if result else []), *lines_of_package(package)]
        for entry in document.missing:
            hint = f" ({entry.hint})" if entry.hint else ""
            result += ["", f"{terminal.bold(entry.model)}: {entry.reason}{hint}"]
        return result

    return lines


def _index(document: Inspection) -> list[str]:
    index = document.package
    double = ", float64 is computed in float32" if index.truncates_double else ""
    types = index.precision
    if index.other_precisions:
        types += f" with modules in {' and '.join(index.other_precisions)}"
    if index.quantized:
        types += f", quantized to {', '.join(index.quantized)}"
    lines = [f"{terminal.bold(document.path)}: model {index.model}, {types}{double}{_reference(index)}"]
    for title, tensors in (("inputs", index.inputs), ("outputs", index.outputs)):
        lines += _section(title, [_tensor(entry, index.dims) for entry in tensors])
    lines += _section("state", [_state(entry, index) for entry in index.state])
    lines += _section("dims", [(dim.name, _range(dim)) for dim in index.dims])
    lines += _section("profiles", [*_profiles(index)])
    lines += _section("operators from outside PyTorch", [_custom_operator(operator) for operator in index.operators])
    for target in index.targets.values():
        library = next((entry for entry in document.libraries if entry.target == target.name), None)
        lines += _target(target, index, library)
    lines += _memory(document.memory, [profile.name for profile in index.profiles])
    return [*lines, *_provenance_lines(document.provenance, _ADVICE_TO_VERIFY.get(document.source, "trtbuild verify"))]


def _reference(index: PackageIndex) -> str:
    return ", with its reference program" if index.reference else ""


def _custom_operator(operator: CustomOperator) -> tuple[str, ...]:
    module = "" if operator.module is None else f"import {operator.module}"
    distribution = "" if operator.distribution is None else f"{operator.distribution} {operator.version or ''}".rstrip()
    return operator.qualified_name, module, distribution


def _tensor(entry: PackedTensor, dims: Sequence[PackedDim]) -> tuple[str, ...]:
    keyword = ("keyword",) if entry.keyword else ()
    value_range = (f"{entry.range[0]} to {entry.range[1]}",) if entry.range is not None else ()
    return (entry.name, entry.dtype, _shape(entry.shape, dims), *value_range, *keyword)


def _state(entry: StateTensor, index: PackageIndex) -> tuple[str, ...]:
    first = index.weights[entry.slot]
    return entry.name, first.dtype, _shape(first.shape, index.dims)


def _profiles(index: PackageIndex) -> Iterator[tuple[str, ...]]:
    """A row for each input of each profile. Inputs are in alphabetical order, as in the file of the index."""
    for profile in index.profiles:
        by_name = {entry.name: shape for entry, shape in zip(index.inputs, profile.shapes, strict=True)}
        for name, shape in sorted(by_name.items()):
            ends = (("min", shape.min), ("opt", shape.opt), ("max", shape.max))
            yield (profile.name, name, *(f"{word} {_shape(sizes, index.dims)}" for word, sizes in ends))


def _section(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    return [title, *align_rows([(f"  {row[0]}", *row[1:]) for row in rows])] if rows else []


def _range(dim: PackedDim) -> str:
    steps = f", multiples of {dim.multiple_of}" if dim.multiple_of > 1 else ""
    return f"{dim.min} to {dim.max}{steps}"


def _target(target: PackedTarget, index: PackageIndex, library: TargetLibrary | None) -> list[str]:
    partitions = target.partitions.partitions
    sizes = {
        partition.name: index.files[target.engines[partition.name]].size
        for partition in partitions
        if partition.kind == "tensorrt"
    }
    head = f"target {terminal.bold(target.name)}: SM {target.sm}, {target.toolchain} {target.version}"
    if target.version_compatible:
        head += ", version-compatible" + (" without the lean runtime" if target.exclude_lean_runtime else "")
    rows = [
        (f"  {partition.name}", "engine", size(sizes[partition.name]))
        if partition.name in sizes
        else (f"  {partition.name}", "PyTorch", _reasons(partition.reasons))
        for partition in partitions
    ]
    if len(sizes) > 1:
        rows.append(("  total", count(len(sizes), "engine"), size(sum(sizes.values()))))
    return [f"{head}, {target.platform}", *_library(target, library), *align_rows(rows)]


def _library(target: PackedTarget, library: TargetLibrary | None) -> Iterator[str]:
    """A line about the library that runs the engines here, unless the same version of this library built them."""
    if library is None or (library.library, library.version) == (target.toolchain, target.version):
        return
    if library.library is None:
        yield f"  no library here runs these engines: {library.because}"
    else:
        yield f"  runs here with {library.library} {library.version}"


def _reasons(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{operator}: {reason}" for operator, reason in reasons.items())


def _shape(shape: Sequence[Expression], dims: Sequence[PackedDim]) -> str:
    return f"[{', '.join(size_text(size, dims) for size in shape)}]"


def _memory(memory: DeviceMemory | None, profiles: Sequence[str]) -> Iterator[str]:
    """The GPU memory that TensorRT needs to run each engine, by profile."""
    if memory is None:
        return
    if memory.because is not None:
        yield f"device memory: {memory.because}"
        return
    yield f"device memory of a context, {memory.device}, target {memory.target}"
    rows = [("  profile", *profiles)] if len(profiles) > 1 else []
    rows += [(f"  {name}", *map(size, sizes)) for name, sizes in memory.contexts.items()]
    yield from align_rows(rows, right=range(1, len(profiles) + 1))


#: The name of a graph kind → the advice for a package that is not verified. Other kinds have the usual advice.
_ADVICE_TO_VERIFY: Mapping[str | None, str] = {
    ONNX.name: "run trtbuild verify on a GPU of a target (for an ONNX model, only engines are compared)",
    NETWORK.name: "its source is a TensorRT network, for which there is no other implementation to compare with",
}


def _provenance_lines(provenance: Provenance, advice: str) -> Iterator[str]:
    if provenance.void is not None:
        yield f"not verified: {provenance.void}"
    elif not provenance.verified:
        yield terminal.dim(f"not verified: {advice}")
    for entry in provenance.verified:
        yield _verification_line(summary(entry))


def _verification_line(entry: Summary) -> str:
    """``verified by onnxruntime: right @ada,blackwell, worst error 2.1e-07 within 1e-05 at 7 points, 2026-01-31T…``."""
    word = terminal.green("verified") if entry.status == "right" else terminal.yellow("verified")
    text = f"{word} by {entry.by}: {entry.status}"
    text += f" @{','.join(entry.targets)}" if entry.targets else ""
    if entry.error is not None and entry.tolerance is not None:
        text += f", worst error {entry.error:.1e} within {entry.tolerance:.0e} at {count(entry.points, 'point')}"
    return f"{text}, {entry.finished}" if entry.finished else text


def _grouped_by_text(
    engines: Sequence[InspectedEngine], lines_of: Callable[[InspectedEngine], list[str]]
) -> Iterator[str]:
    """A heading and the lines of each engine. Engines of one partition share a heading if their lines are equal."""
    targets_by_text: dict[tuple[str, ...], list[str]] = {}
    for engine in engines:
        targets_by_text.setdefault((engine.partition, *lines_of(engine)), []).append(engine.target)
    for (partition, *lines), targets in targets_by_text.items():
        yield f"engine {terminal.bold(partition)} @{','.join(targets)}"
        yield from (f"  {line}" for line in lines)


def _layers(engine: InspectedEngine) -> list[str]:
    """The types of the weights, and a row for consecutive layers of the same module."""
    if not engine.layers:
        return [_weights(engine), "the layers are not known"]
    rows = []
    for module, module_layers in groupby(engine.layers, key=lambda layer: layer.module):
        layers = list(module_layers)
        operators = list(dict.fromkeys(layer.operator for layer in layers if layer.operator))
        first, last = layers[0].name, layers[-1].name
        names = first if first == last else f"{first} … {last}"
        first_operators = ", ".join(map(_operator, operators[:MOST_OPERATORS]))
        more = f" and {len(operators) - MOST_OPERATORS} more" if len(operators) > MOST_OPERATORS else ""
        rows.append((_module(module), count(len(layers), "layer"), names, first_operators + more, _types(layers)))
    return [_weights(engine), *align_rows(rows)]


def _weights(engine: InspectedEngine) -> str:
    """``weights: 33.0 KiB, int8 32.0 KiB, float32 1.0 KiB``."""
    if engine.weights is None:
        return "types: unknown, because this plan does not name them"
    by_size = sorted(engine.weights.items(), key=lambda entry: -entry[1])
    return ", ".join(
        [f"weights: {size(sum(engine.weights.values()))}", *(f"{name} {size(number)}" for name, number in by_size)]
    )


def _types(layers: Sequence[Layer]) -> str:
    """The types that the kernels of layers read and write: ``float32, int8 → float32``. Empty if no type is known."""
    read_types = {name for layer in layers for name in layer.reads or ()}
    written_types = {name for layer in layers for name in layer.writes or ()}
    known = any(layer.reads is not None for layer in layers)
    return f"{', '.join(sorted(read_types))} → {', '.join(sorted(written_types))}" if known else ""


def _module(path: str | None) -> str:
    if path is None:
        return "(unknown)"
    return path or "(the model)"


def _operator(name: str) -> str:
    """``aten.linear.default`` → ``linear``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "aten" else name


def _trtexec(engine: InspectedEngine) -> list[str]:
    command = engine.trtexec
    if command is None:
        return ["the source of this engine is not in this cache"]
    lines = [command.tool, *(f"  {shlex.quote(argument)}" for argument in command.arguments)]
    lines = [*(f"{line} \\" for line in lines[:-1]), lines[-1]]
    return [*lines, *(terminal.dim(f"# {text}") for text in command.differs)]
