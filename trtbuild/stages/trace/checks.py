"""What a traced program must not do, because export freezes or loses it in silence.

1. A module in training mode traces another model than the one that is deployed.
2. A mutated buffer or input is lost: engines write nothing back.
3. A random operator gives other numbers in every run, and in TensorRT other ones again.
4. Outputs are tensors; None and plain constants may stand in the output structure; sizes may not.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument

from trtbuild.errors import SourceError
from trtbuild.stages.trace.frames import Frames
from trtbuild.stages.trace.job import TraceJob

#: Arguments that switch the randomness of an operator off when they are False or 0.
_SWITCHES = ("train", "training", "dropout_p", "p", "dropout")
_NAMED = 4


def refuse_training_mode(module: torch.nn.Module, job: TraceJob) -> None:
    """Raise SourceError where any module of `module` is in training mode.

    Any at all: which of a stranger's modules behave differently while training cannot be known, and ``.eval()`` on
    the whole costs nothing.
    """
    names = [name for name, inner in module.named_modules() if inner.training]
    if not names:
        return
    if "" in names:
        what = f"the model ({type(module).__name__}) is in training mode"
    else:
        listed = ", ".join(f"{name} ({type(module.get_submodule(name)).__name__})" for name in names[:_NAMED])
        what = f"{len(names)} modules of the model are in training mode: {listed}" + (", …" if names[_NAMED:] else "")
    raise SourceError(
        what,
        code="training-mode",
        hint="return the module after `.eval()`; dropout and batch statistics of training are not what is deployed",
        **job.place("source"),
    )


def refuse_mutation(program: ExportedProgram, job: TraceJob) -> None:
    """Raise SourceError where the functionalized `program` writes to a buffer, a parameter or an input."""
    signature = program.graph_signature
    for spec in signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, getattr(OutputKind, "PARAMETER_MUTATION", None)):
            kind = "buffer" if spec.kind == OutputKind.BUFFER_MUTATION else "parameter"
            raise mutated(kind, str(spec.target), job)
        if spec.kind == OutputKind.USER_INPUT_MUTATION:
            raise mutated("input", str(spec.target), job)


def mutated(kind: str, name: str, job: TraceJob) -> SourceError:
    """The error for a write that an engine cannot do. `kind` is ``buffer``, ``parameter`` or ``input``."""
    if kind == "input":
        return SourceError(
            f"the model writes to its input {name!r}, and an engine leaves its inputs as they are",
            code="mutated-input",
            hint="work on a copy: x = x.clone()",
            **job.place(f"inputs.{name}"),
        )
    return SourceError(
        f"the model writes to its {kind} {name!r} when it is called, and an engine keeps no state between calls",
        code="mutated-buffer",
        hint="return the new state as an output and take the old one as an input, or freeze it for inference",
        **job.place("source"),
    )


def refuse_random(exported: ExportedProgram, job: TraceJob, frames: Frames) -> None:
    """Raise SourceError for the first operator that draws random numbers. `exported` still has its stack traces."""
    for node in calls(exported.graph_module):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
            continue
        if _switched_off(node, target):
            continue
        place = frames.in_stack_trace(node.meta.get("stack_trace"))
        where = {"file": place[0], "line": place[1]} if place else job.place("source")
        name = f"{target.namespace}.{target._opname}"
        raise SourceError(
            f"the model draws random numbers when it is called ({name})",
            code="random-operator",
            hint="pass the random tensor as an input, or switch it off: dropout needs training=self.training",
            **where,
        )


def refuse_odd_outputs(exported: ExportedProgram, job: TraceJob) -> None:
    """Raise SourceError where an output is a size or no output is a tensor."""
    tensors = 0
    for spec in exported.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT or isinstance(spec.arg, ConstantArgument):
            continue
        if isinstance(spec.arg, TensorArgument):
            tensors += 1
            continue
        raise SourceError(
            f"the model returns a size ({spec.arg.name}) that depends on its inputs; engines return tensors",
            code="output",
            hint="leave it out (the caller knows the shapes), or return a tensor",
            **job.place("source"),
        )
    if not tensors:
        raise SourceError(
            "the model returns no tensor", code="output", hint="return at least one tensor", **job.place("source")
        )


def calls(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Every call of a graph and of the graphs nested in it."""
    for inner in module.modules():
        if isinstance(inner, torch.fx.GraphModule):
            yield from (node for node in inner.graph.nodes if node.op == "call_function")


def _switched_off(node: torch.fx.Node, target: torch._ops.OpOverload) -> bool:
    for position, argument in enumerate(target._schema.arguments):
        if argument.name not in _SWITCHES:
            continue
        if argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        elif position < len(node.args):
            value = node.args[position]
        else:
            value = argument.default_value
        if isinstance(value, bool | int | float) and not value:
            return True
    return False
