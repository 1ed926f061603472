"""The kinds of modules that `compile` and `trace` accept, and the inputs of a module.

Rules
1. The values of `ir` are Torch-TensorRT's, without those in `_OTHER_IR_HINTS`. None and ``"default"`` allow all kinds of
   modules.
2. ``ir="ts"`` or ``"torchscript"`` is for a module of TorchScript. An ``nn.Module`` is scripted first, as in
   Torch-TensorRT.
3. ``ir="dynamo"`` is for an ``nn.Module`` or an ``ExportedProgram``, ``ir="exported_program"`` for an ``ExportedProgram``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal

from trtbuild.driver.in_program.arguments.described import ModuleInputs
from trtbuild.driver.in_program.arguments.exported import describe_program
from trtbuild.driver.in_program.arguments.inputs import describe_inputs
from trtbuild.errors import SourceError, UsageError

Kind = Literal["module", "program", "script"]

#: Value of `ir` → the kinds of modules that it allows.
_KINDS_BY_IR: Mapping[str, tuple[Kind, ...]] = {
    "default": ("module", "program", "script"),
    "dynamo": ("module", "program"),
    "exported_program": ("program",),
    "ts": ("module", "script"),
    "torchscript": ("module", "script"),
}
#: Values of `ir` that only Torch-TensorRT has → what to write instead.
_OTHER_IR_HINTS: Mapping[str, str] = {
    "torch_compile": 'write torch.compile(module, backend="trtbuild", options={…})',
    "fx": "leave ir out: torch.export traces the module",
}
_KIND_NAMES: Mapping[Kind, str] = {
    "module": "an nn.Module",
    "program": "an ExportedProgram",
    "script": "a module of TorchScript",
}
#: Kind of a module → the hint if `ir` does not allow this kind.
_IR_HINTS: Mapping[Kind, str] = {
    "module": "leave ir out, or give the ExportedProgram that trtbuild.trace(module, inputs) returns",
    "program": 'leave ir out, or write ir="dynamo"',
    "script": 'leave ir out, or write ir="ts"',
}


def positional_inputs(inputs: Any, arg_inputs: Any) -> Any:
    """Return `inputs` or `arg_inputs`: two names of one argument. Raises UsageError if both are given."""
    if inputs is not None and arg_inputs is not None:
        raise UsageError(
            "inputs and arg_inputs are two names of one argument, and both are given", hint="leave one out"
        )
    return arg_inputs if inputs is None else inputs


def module_to_trace(module: Any, ir: Any) -> Any:
    """Return the module to trace: `module`, or the result of scripting it (rule 2). Raises UsageError, SourceError."""
    kind = _kind_of(module)
    if ir is None:
        ir = "default"
    if isinstance(ir, str) and ir in _OTHER_IR_HINTS:
        raise UsageError(f"trtbuild has no ir={ir!r}", hint=_OTHER_IR_HINTS[ir])
    if not isinstance(ir, str) or ir not in _KINDS_BY_IR:
        raise UsageError(
            f"ir must be one of {', '.join(map(repr, _KINDS_BY_IR))}, not {ir!r:.60}", hint="or leave it out"
        )
    if kind not in _KINDS_BY_IR[ir]:
        raise UsageError(f"ir={ir!r} is not for {_KIND_NAMES[kind]}", hint=_IR_HINTS[kind])
    if kind == "module" and ir in ("ts", "torchscript"):
        return _script(module)
    return module


def class_name_of(module: Any) -> str:
    """Return the name of a module's class. For TorchScript, this is the class that was scripted or traced."""
    original = getattr(module, "original_name", None) if _kind_of(module) == "script" else None
    return original if isinstance(original, str) and original else type(module).__name__


def describe_module(
    module: Any, inputs: Any, kwarg_inputs: Any, dims: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ModuleInputs:
    """Return the inputs of a module. Raises UsageError, SourceError."""
    kind = _kind_of(module)
    if kind == "program":
        return describe_program(module, inputs, kwarg_inputs, dims, dynamic_shapes)
    arguments = _script_argument_names(module) if kind == "script" else _argument_names(module)
    return describe_inputs(inputs, kwarg_inputs, arguments=arguments, dims=dims, dynamic_shapes=dynamic_shapes)


def _kind_of(module: Any) -> Kind:
    name = type(module).__name__
    if name == "ExportedProgram":
        return "program"
    if name == "ScriptFunction":
        raise UsageError("a function of TorchScript cannot be compiled", hint="script the nn.Module that calls it")
    if not callable(getattr(module, "forward", None)):
        raise UsageError(f"a {name} cannot be compiled", hint="give an nn.Module, or the result of torch.export.export")
    import torch

    from trtbuild.stages.trace.quantization.evaluation_mode import is_quantized

    if isinstance(module, torch.jit.ScriptModule):
        return "script"
    # the result of `ExportedProgram.module()` has an attribute `eval`: a function that raises an error
    is_exported = isinstance(module, torch.fx.GraphModule) and "eval" in vars(module)
    if is_exported and not is_quantized(module):
        raise UsageError(
            "the result of .module() of an exported program cannot be compiled",
            hint="give the program itself: the result of torch.export.export or torch.export.load",
        )
    return "module"


def _script(module: Any) -> Any:
    import torch

    try:
        return torch.jit.script(module)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise SourceError(
            f"torch.jit.script cannot script {type(module).__name__}: {type(error).__name__}: {reason}",
            code="source",
            hint='leave ir="ts" out: torch.export traces the module',
        ) from error


def _argument_names(module: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [entry.name for entry in inspect.signature(module.forward).parameters.values() if entry.kind in kinds]


def _script_argument_names(script: Any) -> list[str]:
    """Return the names of the positional arguments of a module of TorchScript, without ``self``."""
    return [entry.name for entry in script.forward.schema.arguments[1:] if not entry.kwarg_only]
