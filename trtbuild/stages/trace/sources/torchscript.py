"""``torchscript:`` sources, and scripts in memory: PyTorch's converter makes a graph, and torch.export traces the graph.

Rules
1. The converter is ``torch._export.converter.TS2EPConverter`` (torch 2.9 to 2.13). Its last step exports the graph with
   ``Dim.AUTO``, which drops guards. So this step is left out, and the graph is exported with the manifest's dims, like
   every other source that torch.export traces.
2. The result is a module (`make_script_module`). If it is called, it runs the script. If torch.export traces it, it runs
   the converted graph. So the proof compares the program with the script itself. The script gets the buffers of the module
   in each call, because the state of a model is an input there (`trtbuild.stages.trace.export.state`).
3. The converter changes the script that it converts, so it gets a copy. Weights have the script's names. The converter
   also makes buffers for tensors of the graph that are not weights. A weights file does not contain these buffers.
"""

from __future__ import annotations

import functools
import io
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree

from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import call_arguments, example_tensors
from trtbuild.stages.trace.export.checks import refuse_training_mode
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.sources.reading import SourceReader
from trtbuild.stages.trace.user_code.advice import PYTHON_SOURCE_HINT, value_advice
from trtbuild.stages.trace.user_code.frames import Frames

#: Operator of TorchScript → the word for it in a message.
_CONTROL_FLOW = {"Loop": "loop", "If": "branch"}


class _Argument(NamedTuple):
    """An argument of a script's forward. If it is `optional`, and None or nothing is passed, `default` is used."""

    name: str
    optional: bool
    default: Any


class TorchScriptSource(SourceReader):
    """Reads a ``torchscript:`` source."""

    def read(self) -> torch.nn.Module:
        """The module of `make_script_module` for the script in the file. Raises SourceError."""
        job, project, frames = self.job, self.project, self.frames
        return make_script_module(lambda: _load_script(job, project, frames), job, frames)


def module_of_script(script: torch.jit.ScriptModule, job: TraceJob, frames: Frames) -> torch.nn.Module:
    """The module that `make_script_module` makes from copies of `script`. Raises SourceError."""
    buffer = io.BytesIO()
    try:
        torch.jit.save(script, buffer)
    except Exception as error:
        frames.raise_from(
            error, f"torch.jit.save cannot copy {job.source.target}", code="source", fallback=job.place("source")
        )
    return make_script_module(lambda: torch.jit.load(io.BytesIO(buffer.getvalue()), map_location="cpu"), job, frames)


def make_script_module(load: Callable[[], torch.jit.ScriptModule], job: TraceJob, frames: Frames) -> torch.nn.Module:
    """A module that runs the script when it is called, and the converted graph when it is exported. `load` returns a new
    copy of the script at each call. Raises SourceError."""
    script = load()
    if not hasattr(script, "forward"):
        raise SourceError(
            f"{job.source.target} has no method forward",
            hint="save the module that is to be called: torch.jit.save(torch.jit.script(model.eval()), path)",
            **job.place("source"),
        )
    refuse_training_mode(script, job)
    arguments = _forward_arguments(script)
    values = _example_values(arguments, job)
    graph = _convert(load(), values, job, frames)
    called = load() if job.state else script  # a call changes the state, and the package contains the first one
    return _make_module(graph, script, arguments, _output_structure(called, values, job, frames))


def _load_script(job: TraceJob, project: Path, frames: Frames) -> torch.jit.ScriptModule:
    place = job.place("source")
    path = project / job.source.target
    if not path.is_file():
        raise SourceError(f"{job.source.target} does not exist", code="source", **place)
    try:
        script: torch.jit.ScriptModule = torch.jit.load(path, map_location="cpu")
        return script
    except Exception as error:
        frames.raise_from(
            error,
            f"torch.jit.load cannot read {job.source.target}",
            code="source",
            hint="write it with `torch.jit.save(torch.jit.script(model.eval()), path)`, or with torch.jit.trace",
            fallback=place,
        )


def _forward_arguments(script: torch.jit.ScriptModule) -> list[_Argument]:
    schema = script.forward.schema
    return [
        _Argument(
            argument.name,
            argument.has_default_value(),
            argument.default_value if argument.has_default_value() else None,
        )
        for argument in schema.arguments[1:]  # without self
    ]


def _example_values(arguments: list[_Argument], job: TraceJob) -> tuple[Any, ...]:
    """The values of `arguments` for the example inputs. Raises SourceError if the script cannot take the manifest's
    inputs."""
    positional, keyword = call_arguments(job.inputs, example_tensors(job.inputs, job.shapes.example_shapes))
    names = [argument.name for argument in arguments]
    passed_values = dict(zip(names, positional, strict=False)) | keyword
    missing_names = [
        argument.name for argument in arguments if not argument.optional and argument.name not in passed_values
    ]
    unknown_names = [name for name in keyword if name not in names or name in names[: len(positional)]]
    if len(positional) > len(names) or missing_names or unknown_names:
        declared = [entry.name + " (keyword)" * entry.keyword for entry in job.inputs]
        raise SourceError(
            f"{job.source.target} takes ({', '.join(names)}); the manifest declares {', '.join(declared)}",
            code="signature",
            hint="positional inputs are passed in order; `keyword: true` passes an input by its name",
            **job.place("inputs", *(f"inputs.{entry.name}" for entry in job.inputs)),
        )
    return tuple(passed_values.get(argument.name, argument.default) for argument in arguments)


def _convert(
    script: torch.jit.ScriptModule, values: tuple[Any, ...], job: TraceJob, frames: Frames
) -> torch.fx.GraphModule:
    from torch._export.converter import TS2EPConverter

    class Converter(TS2EPConverter):
        """Ends before the converter's own export (rule 1)."""

        graph: torch.fx.GraphModule

        def retrace_as_exported_program(self, gm: torch.fx.GraphModule, name_to_constant: Any) -> Any:
            self.graph = gm
            return SimpleNamespace(state_dict=dict(script.state_dict()))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            converter = Converter(script, values)
            converter.convert()
    except Exception as error:
        _raise_control_flow(error, script, job)
        frames.raise_from(
            error,
            f"PyTorch's converter from TorchScript cannot convert {job.source.target}",
            code="export",
            hint=PYTHON_SOURCE_HINT,
            fallback=job.place("source"),
        )
    return converter.graph


def _raise_control_flow(error: Exception, script: torch.jit.ScriptModule, job: TraceJob) -> None:
    """Raise SourceError if `error` is about a loop or a branch. The message lists the lines of all loops (or branches) of
    the script, as far as they are known."""
    match = re.search(r"failed for node prim::(Loop|If)\b", str(error))
    if match is None:
        return
    graph = script.inlined_graph
    lines = [_line_of(node) for node in graph.findAllNodes(f"prim::{match[1]}", recurse=True)]
    shown = "; ".join(dict.fromkeys(line for line in lines if line))
    reason = str(error.__cause__ or "").strip().partition("\n")[0]
    raise SourceError(
        f"{job.source.target} has a {_CONTROL_FLOW[match[1]]} that PyTorch's converter from TorchScript cannot convert"
        + (f": {shown}" if shown else "")
        + (f" ({reason})" if reason else ""),
        code="export",
        hint=PYTHON_SOURCE_HINT,
        **job.place("source"),
    ) from error


def _line_of(node: Any) -> str:
    """The file and line of a node of a script (``net.py:12``); empty if they are not known."""
    match = re.search(r'File "([^"]+)", line (\d+)', node.sourceRange())
    return f"{Path(match[1]).name}:{match[2]}" if match else ""


def _output_structure(
    script: torch.jit.ScriptModule, values: tuple[Any, ...], job: TraceJob, frames: Frames
) -> pytree.TreeSpec:
    """The structure of the script's outputs. It comes from a run of the script, because the converted graph has lists
    instead of tuples."""
    try:
        with torch.no_grad():
            result = script(*values)
    except Exception as error:
        shapes = ", ".join(
            f"{entry.name} {list(shape)}" for entry, shape in zip(job.inputs, job.shapes.example_shapes, strict=True)
        )
        frames.raise_from(
            error,
            f"the model itself fails at the example shapes: {shapes}",
            code="eager",
            hint=value_advice(error, job.inputs)
            or "these shapes are the opt of the first profile (sizes that torch.export cannot trace, such as 1, are "
            "replaced by larger ones): correct the profiles, or the model",
            fallback=job.place("source"),
        )
    return pytree.tree_flatten(result)[1]


def _make_module(
    graph: torch.fx.GraphModule, script: torch.jit.ScriptModule, arguments: list[_Argument], spec: pytree.TreeSpec
) -> torch.nn.Module:
    """Make a module with the script's weights and arguments (rule 2). `spec` is the structure of its outputs.

    The module is not a GraphModule, because torch.export interprets the graph of a GraphModule instead of calling it.
    """
    run_graph = type(graph).forward

    def run(module: torch.nn.Module, passed_values: Mapping[str, Any]) -> Any:
        values = [
            argument.default
            if argument.optional and passed_values[argument.name] is None
            else passed_values[argument.name]
            for argument in arguments
        ]
        if not torch.compiler.is_exporting():
            return _run_script(script, module, values)
        return pytree.tree_unflatten(pytree.tree_leaves(run_graph(module, *values)), spec)

    module: torch.nn.Module = type("TorchScript", (torch.nn.Module,), {"forward": _make_forward(arguments, run)})()
    for name, child in graph.named_children():
        module.add_module(name, child)
    script_weights = script.state_dict(keep_vars=True)
    lifted = [*graph.named_buffers(remove_duplicate=False), *graph.named_parameters(remove_duplicate=False)]
    # weights that the graph does not read are registered, too, because a weights file contains them
    for name, value in {**dict(lifted), **script_weights}.items():
        path, _, leaf = name.rpartition(".")
        holder = _submodule_at(module, path)
        if hasattr(holder, leaf):
            delattr(holder, leaf)
        holder.register_buffer(leaf, value.detach(), persistent=name in script_weights)
    return module.eval()


def _run_script(script: torch.jit.ScriptModule, module: torch.nn.Module, values: list[Any]) -> Any:
    """Run the script with the buffers of `module`, which are not its own in a call that takes the state as inputs."""
    places = []
    for name, _ in script.named_buffers():
        path, _, leaf = name.rpartition(".")
        owner = functools.reduce(getattr, path.split(".") if path else (), script)
        places.append((owner, module.get_submodule(path), leaf))
    for owner, holder, leaf in places:
        if getattr(owner, leaf).data_ptr() != getattr(holder, leaf).data_ptr():
            setattr(owner, leaf, getattr(holder, leaf))
    result = script(*values)
    for owner, holder, leaf in places:  # the script may have assigned a new tensor
        if getattr(owner, leaf).data_ptr() != getattr(holder, leaf).data_ptr():
            setattr(holder, leaf, getattr(owner, leaf))
    return result


def _submodule_at(module: torch.nn.Module, path: str) -> torch.nn.Module:
    """The submodule at a dotted path. It is created if it does not exist."""
    for name in path.split(".") if path else ():
        if name not in module._modules:
            module.add_module(name, torch.nn.Module())
        module = module.get_submodule(name)
    return module


def _make_forward(
    arguments: list[_Argument], run: Callable[[torch.nn.Module, Mapping[str, Any]], Any]
) -> Callable[..., Any]:
    """Make a forward method with the script's signature. The names of a script's parameters are identifiers, so they can
    be part of the code."""
    parameters = ", ".join(argument.name + "=None" * argument.optional for argument in arguments)
    argument_items = ", ".join(f"{argument.name!r}: {argument.name}" for argument in arguments)
    name = "_run"
    while any(argument.name == name for argument in arguments):
        name += "_"
    namespace: dict[str, Any] = {name: run}
    exec(
        compile(
            f"def forward(self, {parameters}):\n    return {name}(self, {{{argument_items}}})\n",
            "<torchscript>",
            "exec",
        ),
        namespace,
    )
    forward: Callable[..., Any] = namespace["forward"]
    return forward
