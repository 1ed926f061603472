"""Write a package's target as a ``.pt2`` file: a program of torch.export that calls engines.

Rules
1. Each engine is one call of ``trtbuild::engine``. `trtbuild.runtime.calls.operators` must have registered this operator.
   The engine's plan (its serialized form) is a uint8 buffer of the program. The ATen operators of PyTorch partitions are
   part of the program.
2. The program has the model's inputs and output structure, and the package's dims. Named tuples become tuples and
   dataclasses become dicts, because the file must open on machines without the model's code. Ints and floats stay
   numbers. A bool that depends on the inputs becomes a 0-d tensor, because torch.export.save cannot write such a bool
   (torch 2.13). A model that returns a text is refused.
3. With ``reference: true`` the file also has the program and the weights of each engine, so that the model runs on the CPU.
   An engine without a PyTorch program (a ``.pt2`` file of the package) has no such reference.
"""

from __future__ import annotations

import io
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from trtbuild.core.model.shapes import ShapePlan, Symbol, SymbolAxis
from trtbuild.core.model.spec import Profile
from trtbuild.core.packages.exported_file import INFO_FILE, ExportedFileInfo
from trtbuild.core.packages.package_index import PackageIndex, PackedTarget
from trtbuild.core.partition.engine_text import EngineText
from trtbuild.core.partition.partitions import Partition
from trtbuild.core.planning.expand import input_range
from trtbuild.core.values.encoding import from_json
from trtbuild.errors import ConversionRefused
from trtbuild.stages.program.functional import Program

#: Name of a package's file → its bytes.
ReadFile = Callable[[str], "bytes | bytearray | memoryview"]


def write_pt2(index: PackageIndex, target: str, read: ReadFile, about: str) -> bytes:
    """Return the bytes of the ``.pt2`` file for one target. `about` is a result of `about_text`. Raises ConversionRefused
    if the package cannot be written in this form."""
    _refuse_texts(index.output_tree, index)
    exported = export_package(index, index.targets[target], read)
    buffer = io.BytesIO()
    torch.export.save(exported, buffer, extra_files={INFO_FILE: about})
    return buffer.getvalue()


def _refuse_texts(tree: Mapping[str, Any], index: PackageIndex) -> None:
    """Raise ConversionRefused if the model returns a text: torch.export.save writes such a program, and torch.export.load
    cannot read it (torch 2.13)."""
    if tree["kind"] == "constant" and isinstance(tree["value"], str):
        raise ConversionRefused(
            f"the package of {index.model!r} cannot be written as a .pt2 file: the model returns the text "
            f"{tree['value']!r:.60}, and torch.export cannot read a program that returns a text",
            hint="load the package itself: trtbuild.load(path)",
        )
    for item in tree.get("items", ()):
        _refuse_texts(item, index)


def about_text(index: PackageIndex, target: str, digest: str) -> str:
    """The text of the extra file `INFO_FILE`. `digest` is that of the package's index."""
    return ExportedFileInfo(index.model, target, digest).to_text()


def export_package(index: PackageIndex, target: PackedTarget, read: ReadFile) -> ExportedProgram:
    """Export the program. Raises ConversionRefused if the package cannot be written in this form."""
    shapes = shape_plan(index)
    module = _PartitionedModel(index, target, shapes, read)
    args, kwargs, dynamic = _example(index, shapes)
    try:
        with torch.no_grad():
            exported = torch.export.export(
                module,
                args,
                kwargs,
                dynamic_shapes=dynamic,
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
    except Exception as error:
        raise ConversionRefused(
            f"the package of {index.model!r} cannot be written as a .pt2 file: {type(error).__name__}: {error}",
            hint="load the package itself: trtbuild.load(path)",
        ) from error
    exported._example_inputs = None  # they may be large, and nothing reads them
    return exported


def shape_plan(index: PackageIndex) -> ShapePlan:
    """The symbols of a package's dims, and the shapes of the inputs in these symbols."""
    symbols = []
    for dim in index.dims:
        example = min(max(2 * dim.multiple_of, dim.min), dim.max)
        symbols.append(Symbol(dim.name, dim.min, dim.max, example, dim.multiple_of))
    return ShapePlan(tuple(symbols), tuple(tuple(_axis(size) for size in entry.shape) for entry in index.inputs))


def _axis(size: Any) -> int | SymbolAxis:
    """Convert the size of an axis. The trace allows a number, a symbol, or a multiple of a symbol."""
    if isinstance(size, int):
        return size
    if size[0] == "sym":
        return SymbolAxis(int(size[1]))
    if size[0] == "mul":
        for part in size[1:]:
            if not isinstance(part, int) and part[0] == "sym":
                return SymbolAxis(int(part[1]))
    raise ConversionRefused(f"an input has the size {size!r}, which torch.export cannot express as a dim")


class _PartitionedModel(torch.nn.Module):
    """A module that runs the partitions of a model. Its `forward` has the model's signature."""

    def __init__(self, index: PackageIndex, target: PackedTarget, shapes: ShapePlan, read: ReadFile) -> None:
        super().__init__()
        self._index, self._target, self._shapes = index, target, shapes
        graphs = {part.graph for part in target.partitions.partitions if part.kind == "torch"}
        self._programs = {graph: Program.from_bytes(bytes(read(target.programs[graph]))) for graph in graphs}
        self.register_buffer("no_reference", torch.zeros(1, dtype=torch.uint8))  # torch warns about empty buffers
        for slot, weight in index.weights.items():
            dtype = getattr(torch, weight.dtype)
            data = bytearray(read(weight.path))
            value = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            self.register_buffer(f"weight_{slot}", value.reshape(weight.shape))
        #: Partition → the text about its engine (`engine_text`).
        self._texts: dict[str, str] = {}
        #: SHA-256 of a file → its buffer. Partitions with the same engine share one buffer.
        self._file_buffers: dict[str, str] = {}
        #: Partition → the buffer of its engine's plan.
        self._plans: dict[str, str] = {}
        #: Partition → the buffer of its engine's program (rule 3).
        self._references: dict[str, str] = {}
        for part in target.partitions.partitions:
            if part.kind != "tensorrt":
                self._register_constants(part)
                continue
            self._plans[part.name] = self._register_file("plan", target.engines[part.name], read)
            program_digest = None
            path = target.programs.get(part.graph, "")
            if index.reference and path.endswith(".pt2"):
                program_digest = index.files[path].sha256
                self._references[part.name] = self._register_file("reference", path, read)
            self._texts[part.name] = engine_text(index, target, part, shapes, program_digest).to_text()
        self.forward = _make_forward(index, self._run)

    def _register_file(self, kind: str, path: str, read: ReadFile) -> str:
        """Register a file of the package as a buffer, unless a buffer has its bytes. Returns the name of the buffer."""
        digest = self._index.files[path].sha256
        if digest not in self._file_buffers:
            self._file_buffers[digest] = f"{kind}_{len(self._file_buffers)}"
            self.register_buffer(self._file_buffers[digest], _byte_tensor(read(path)))
        return self._file_buffers[digest]

    def _register_constants(self, part: Partition) -> None:
        program = self._programs[part.graph]
        for number, value in enumerate(program.constants.values()):
            self.register_buffer(f"constant_{part.graph[:16]}_{number}", value, persistent=True)

    def _run(self, inputs: Sequence[torch.Tensor]) -> Any:
        values: dict[str, torch.Tensor] = {f"input:{k}": value for k, value in enumerate(inputs)}
        values |= {f"weight:{slot}": getattr(self, f"weight_{slot}") for slot in self._index.weights}
        sizes = self._sizes(inputs)
        for part in self._target.partitions.partitions:
            arguments = [values[source] for source, _ in part.inputs]
            results = (
                self._run_engine(part, arguments, sizes)
                if part.kind == "tensorrt"
                else self._run_torch(part, arguments)
            )
            values |= {f"{part.name}:{k}": value for k, value in enumerate(results)}
        return _build_outputs(self._index.output_tree, [values[source] for source in self._target.partitions.outputs])

    def _sizes(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """The value of each symbol, from the first axis that has the symbol: the size of this axis, divided by
        `multiple_of`."""
        sizes: dict[int, Any] = {}
        for value, axes in zip(inputs, self._shapes.shapes, strict=True):
            for number, axis in enumerate(axes):
                if isinstance(axis, SymbolAxis) and axis.symbol not in sizes:
                    sizes[axis.symbol] = value.shape[number] // self._shapes.symbols[axis.symbol].multiple_of
        return [sizes[number] for number in range(len(self._shapes.symbols))]

    def _run_engine(self, part: Partition, arguments: list[torch.Tensor], sizes: list[Any]) -> Sequence[torch.Tensor]:
        reference = self._references.get(part.name)
        weights = [getattr(self, f"weight_{slot}") for slot in part.weights] if reference is not None else []
        results: Sequence[torch.Tensor] = torch.ops.trtbuild.engine(
            [value.contiguous() for value in arguments],
            weights,
            getattr(self, self._plans[part.name]),
            self.no_reference if reference is None else getattr(self, reference),
            sizes,
            self._texts[part.name],
        )
        return results

    def _run_torch(self, part: Partition, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        program = self._programs[part.graph]
        constants = {
            name: getattr(self, f"constant_{part.graph[:16]}_{number}") for number, name in enumerate(program.constants)
        }
        weights = [getattr(self, f"weight_{slot}") for slot in part.weights]
        values = dict(zip(program.weight_nodes, weights, strict=True)) | dict(
            zip(program.input_nodes, inputs, strict=True)
        )
        arguments = [values[node] if node in values else constants[node.name] for node in program.placeholders]
        results: Sequence[torch.Tensor] = program.exported.graph_module(*arguments)
        return results


def engine_text(
    index: PackageIndex, target: PackedTarget, part: Partition, shapes: ShapePlan, reference: str | None
) -> EngineText:
    """The text of the ``.pt2`` file about the engine of `part`. `reference` is the digest of the partition's program; None
    if the file does not have this program."""
    inputs = [entry.name for entry in index.inputs]
    profiles = [Profile(p.name, tuple(zip(inputs, p.shapes, strict=True))) for p in index.profiles]
    return EngineText(
        model=index.model,
        partition=part.name,
        inputs=tuple(type_ for _, type_ in part.inputs),
        outputs=part.outputs,
        profiles=tuple(
            tuple(input_range(type_.shape, shapes, profile) for _, type_ in part.inputs) for profile in profiles
        ),
        profile_names=tuple(profile.name for profile in profiles),
        target=target.name,
        sm=target.sm,
        sms=target.sms,
        toolchain=target.toolchain,
        version=target.version,
        version_compatible=target.runs_on_later_versions,
        compatibility=target.compatibility,
        platform=target.platform,
        plan=index.files[target.engines[part.name]].sha256,
        reference=reference,
    )


def _byte_tensor(data: bytes | bytearray | memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


# -- the model's signature and outputs -------------------------------------------------------------------------------


def _make_forward(index: PackageIndex, run: Callable[[Sequence[torch.Tensor]], Any]) -> Callable[..., Any]:
    """Create a function whose parameters have the names of the model's inputs."""
    names = [entry.name for entry in index.inputs]
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
        raise ConversionRefused(f"an input has a name that is not an identifier: {names}")
    positional = [entry.name for entry in index.inputs if not entry.keyword]
    keywords = [entry.name for entry in index.inputs if entry.keyword]
    parameters = ", ".join([*positional, *(["*"] if keywords else []), *keywords])
    namespace: dict[str, Any] = {"_run_": run}
    # torch.export names inputs after parameters, and only `exec` can create parameters with these names
    exec(f"def forward({parameters}):\n    return _run_(({', '.join(names)},))", namespace)
    forward: Callable[..., Any] = namespace["forward"]
    return forward


def _example(index: PackageIndex, shapes: ShapePlan) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """Return example arguments (positional, keyword), and the dims of each argument."""
    dims = []
    for number, symbol in enumerate(shapes.symbols):
        unit = symbol.multiple_of
        name = symbol.name if symbol.name.isidentifier() and not keyword.iskeyword(symbol.name) else f"dim_{number}"
        dim = Dim(name, min=symbol.min // unit, max=symbol.max // unit)
        dims.append(unit * dim if unit > 1 else dim)
    args, kwargs, dynamic = [], {}, {}
    for entry, axes, sizes in zip(index.inputs, shapes.shapes, shapes.example_shapes, strict=True):
        value = torch.zeros(sizes, dtype=getattr(torch, entry.dtype))
        if entry.keyword:
            kwargs[entry.name] = value
        else:
            args.append(value)
        dynamic[entry.name] = {k: dims[axis.symbol] for k, axis in enumerate(axes) if isinstance(axis, SymbolAxis)}
    return tuple(args), kwargs, dynamic


def _build_outputs(tree: Mapping[str, Any], outputs: Sequence[torch.Tensor]) -> Any:
    """Put outputs into the model's output structure (rule 2)."""
    kind = tree["kind"]
    if kind == "tensor":
        return outputs[tree["index"]]
    if kind == "number":
        output = outputs[tree["index"]]
        return output if tree["type"] == "bool" else output.item()
    if kind == "none":
        return None
    if kind == "constant":
        return from_json(tree["value"])
    items = [_build_outputs(item, outputs) for item in tree["items"]]
    if kind == "list":
        return items
    if kind in ("tuple", "namedtuple"):
        return tuple(items)
    return dict(zip(tree["keys"], items, strict=True))
