"""Reject models that torch.export would change without an error, such as those with active dropout, random
operators or writes to buffers.

1. A module in training mode is rejected, because it does not compute the same as the deployed model.
2. A write to a parameter, an input or a buffer outside the manifest's `state` is rejected, because engines write nothing
   back. The write would be lost.
3. A random operator is rejected, because each run gives other numbers, and TensorRT draws other numbers than PyTorch.
4. At least one output must be a tensor. The output structure may also contain numbers (sizes, for example), None and
   plain constants.
5. A resize that always gives more elements is rejected, because the new elements are uninitialized memory.
6. An output tensor must be dense, in main memory and not quantized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument
from torch.fx.experimental.symbolic_shapes import statically_known_true

from trtbuild.errors import SourceError
from trtbuild.stages.trace.export.leaves import RETURNED_ARGUMENTS
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.frames import Frames

#: Names of arguments. If such an argument is False or 0, the operator is not random.
_RANDOMNESS_SWITCHES = ("train", "training", "dropout_p", "p", "dropout")
#: A message lists at most this many names of modules.
_MOST_NAMES = 4


def refuse_training_mode(module: torch.nn.Module, job: TraceJob, place: Mapping[str, Any] | None = None) -> None:
    """Raise SourceError if any module of `module` is in training mode.

    Every module counts, because trtbuild does not know which modules behave differently in training. `place` is the file
    and line of the function that creates the module.
    """
    # modules of torch.jit.freeze lack the attribute `training`: freeze takes only modules in evaluation mode
    names = [name for name, submodule in module.named_modules() if getattr(submodule, "training", False)]
    if not names:
        return
    if "" in names:
        problem = f"the model ({type(module).__name__}) is in training mode"
    else:
        listed = ", ".join(f"{name} ({type(module.get_submodule(name)).__name__})" for name in names[:_MOST_NAMES])
        count = "a module" if len(names) == 1 else f"{len(names)} modules"
        problem = f"{count} of the model {'is' if len(names) == 1 else 'are'} in training mode: {listed}"
        problem += ", …" if names[_MOST_NAMES:] else ""
    hint = "call `.eval()` on the model and return it: dropout and batch statistics of training are not deployed"
    if isinstance(module, torch.fx.GraphModule) and "eval" in vars(module):  # torch.export lets `eval` raise an error
        problem += ", as is every .module() of an exported program"
        hint = "name the file of torch.export.save instead: `source: {exported_program: FILE}`"
    raise SourceError(
        problem,
        code="training-mode",
        hint=hint,
        **(place or job.place("source")),
    )


def refuse_mutation(
    program: ExportedProgram, job: TraceJob, raw: ExportedProgram | None = None, frames: Frames | None = None
) -> None:
    """Raise SourceError if the functionalized `program` writes to a buffer, a parameter or an input (rule 2).

    The stack traces of `raw`, the program of torch.export, show the place of the write.
    """
    signature = program.graph_signature
    for spec in signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, getattr(OutputKind, "PARAMETER_MUTATION", None)):
            kind = "buffer" if spec.kind == OutputKind.BUFFER_MUTATION else "parameter"
            raise mutation_error(kind, str(spec.target), job, _place_of_write(str(spec.target), raw, frames))
        if spec.kind == OutputKind.USER_INPUT_MUTATION:
            raise mutation_error("input", str(spec.target), job, _place_of_write(str(spec.target), raw, frames))


def mutation_error(kind: str, name: str, job: TraceJob, place: Mapping[str, Any] | None = None) -> SourceError:
    """The error for a write that an engine cannot do. `kind` is ``buffer``, ``parameter`` or ``input``. `place` is the
    file and line of the write, if they are known."""
    if kind == "input":
        return SourceError(
            f"the model writes to its input {name!r}, but an engine cannot change its inputs",
            code="mutated-input",
            hint="work on a copy: x = x.clone()",
            **(place or job.place(f"inputs.{name}")),
        )
    if kind == "buffer":
        hint = (
            f"if later calls need its value, write `state: [{name}]` in the manifest, or do not write to it in forward"
        )
    else:
        hint = "register it as a buffer and name it in the manifest's `state`, or do not write to it in forward"
    return SourceError(
        f"the model writes to its {kind} {name!r} when it is called, but an engine keeps no state between calls",
        code="mutated-buffer",
        hint=hint,
        **(place or job.place("source")),
    )


def _place_of_write(name: str, raw: ExportedProgram | None, frames: Frames | None) -> dict[str, Any]:
    """The file and line of the first write to the input, buffer or parameter `name`; empty if they are not known."""
    if raw is None or frames is None:
        return {}
    specs = raw.graph_signature.input_specs
    views = {spec.arg.name for spec in specs if name in (spec.target, spec.arg.name)}
    for node in raw.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or not node.all_input_nodes:
            continue
        read_node = node.all_input_nodes[0]
        if read_node.name not in views:
            continue
        if node.target._schema.is_mutable:
            place = frames.place_in_stack_trace(node.meta.get("stack_trace"))
            return {"file": place[0], "line": place[1]} if place else {}
        if node.target.is_view:
            views.add(node.name)
    return {}


def refuse_random_operators(exported: ExportedProgram, job: TraceJob, frames: Frames) -> None:
    """Raise SourceError for the first operator that draws random numbers. `exported` still has its stack traces."""
    for node in call_nodes(exported.graph_module):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
            continue
        if is_switched_off(target, node.args, node.kwargs):
            continue
        place = frames.place_in_stack_trace(node.meta.get("stack_trace"))
        where = {"file": place[0], "line": place[1]} if place else job.place("source")
        name = f"{target.namespace}.{target._opname}"
        dropout = "dropout" in target._opname
        raise SourceError(
            f"the model draws random numbers when it is called ({name})",
            code="random-operator",
            hint="switch it off outside of training: `F.dropout(x, training=self.training)`"
            if dropout
            else "make the numbers outside and pass them as an input, or leave them out for inference",
            **where,
        )


def refuse_growing_resize(exported: ExportedProgram, job: TraceJob, frames: Frames) -> None:
    """Raise SourceError for the first ``resize_`` that gives more elements at all sizes of the inputs. `exported` still has
    its stack traces."""
    aten = torch.ops.aten
    for node in call_nodes(exported.graph_module):
        if node.target not in (aten.resize_.default, aten.resize.default):
            continue
        before, after = node.args[0].meta["val"], node.meta["val"]
        if not statically_known_true(after.numel() > before.numel()):
            continue
        place = frames.place_in_stack_trace(node.meta.get("stack_trace"))
        where = {"file": place[0], "line": place[1]} if place else job.place("source")
        raise SourceError(
            f"the model resizes a tensor of {before.numel()} elements to {after.numel()} (aten.resize_): the values of the "
            "new elements are not defined",
            code="resized",
            hint="use torch.nn.functional.pad, or write to a tensor of torch.zeros",
            **where,
        )


def refuse_output_kinds(exported: ExportedProgram, job: TraceJob, place: Mapping[str, Any] | None = None) -> None:
    """Raise SourceError under rule 4. `place` is the file and line of the model's forward."""
    user_outputs = [spec for spec in exported.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    for number, spec in enumerate(user_outputs):
        if not isinstance(spec.arg, RETURNED_ARGUMENTS):
            raise SourceError(
                f"output {number} of the model is neither a tensor nor a number, but torch.export's "
                f"{type(spec.arg).__name__}",
                code="output",
                hint="return tensors and numbers, in tuples, lists, dicts or registered dataclasses",
                **(place or job.place("source")),
            )
    if any(isinstance(spec.arg, TensorArgument) for spec in user_outputs):
        return
    if any(not isinstance(spec.arg, ConstantArgument) for spec in user_outputs):
        raise SourceError(
            "the model returns numbers that depend on its inputs, and no tensor",
            code="output",
            hint="return a tensor, too, or remove the model from the manifest: the caller can compute sizes itself",
            **(place or job.place("source")),
        )
    raise SourceError(
        "the model returns no tensor",
        code="output",
        hint="return at least one tensor; is there a `return` at the end of forward?",
        **(place or job.place("source")),
    )


def refuse_output_storage(number: int, value: torch.Tensor, job: TraceJob) -> None:
    """Raise SourceError for output `number` under rule 6."""
    if value.device.type == "cpu" and value.layout is torch.strided and not value.is_quantized:
        return
    if value.layout is not torch.strided:
        kind = f"a tensor of the layout {str(value.layout).removeprefix('torch.')}"
    else:
        kind = "a quantized tensor" if value.is_quantized else f"on the device {value.device}"
    raise SourceError(
        f"output {number} of the model is {kind}",
        code="output",
        hint="return dense tensors on the CPU, where the inputs are",
        **job.place("source"),
    )


def call_nodes(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Yield every call of a graph and of the graphs nested in it."""
    for submodule in module.modules():
        if isinstance(submodule, torch.fx.GraphModule):
            yield from (node for node in submodule.graph.nodes if node.op == "call_function")


def is_switched_off(target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument makes a random operator deterministic (`_RANDOMNESS_SWITCHES`)."""
    for position, argument in enumerate(target._schema.arguments):
        if argument.name not in _RANDOMNESS_SWITCHES:
            continue
        if argument.name in kwargs:
            value = kwargs[argument.name]
        elif position < len(args):
            value = args[position]
        else:
            value = argument.default_value
        if isinstance(value, bool | int | float) and not value:
            return True
    return False
