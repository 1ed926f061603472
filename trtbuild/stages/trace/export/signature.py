"""Bind the manifest's inputs to the parameters of a model's forward, and give advice if they do not fit.

Positional inputs are passed in the manifest's order; their names do not matter. Keyword inputs are passed by name.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from trtbuild.core.values.nearest import nearest
from trtbuild.errors import SourceError
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.frames import Frames


def bind_to_forward(
    module: torch.nn.Module, job: TraceJob, args: tuple[Any, ...], kwargs: dict[str, Any], frames: Frames
) -> inspect.BoundArguments:
    """Bind the values `args` and `kwargs` of the inputs to the parameters of forward. Raises SourceError if they do not
    fit."""
    signature = inspect.signature(module.forward)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        message = str(error)
    parameters_by_name = {
        name: p for name, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    positional = [entry.name for entry in job.inputs if not entry.keyword]
    positional_parameters = [name for name, p in parameters_by_name.items() if p.kind is not p.KEYWORD_ONLY]
    bound_by_position = positional_parameters[: len(positional)]
    bound_names = {*bound_by_position, *kwargs}
    unknown = next((name for name in kwargs if name not in parameters_by_name), None)
    passed_twice = next((name for name in kwargs if name in bound_by_position), None)
    missing_names = [name for name, p in parameters_by_name.items() if p.default is p.empty and name not in bound_names]
    parameters_text = _parameters_text(signature)
    definition = frames.definition_place(module.forward)
    takes_text = f"the model takes {parameters_text}" + (
        f" ({definition['file']}:{definition['line']})" if definition else ""
    )
    if unknown is not None:
        similar_name = nearest(unknown, parameters_by_name)
        input_name, text = unknown, f"forward has no argument {unknown!r}"
        hint = f"did you mean {similar_name!r}? {takes_text}" if similar_name else takes_text
    elif passed_twice is not None:
        input_name, text = (
            passed_twice,
            f"{passed_twice!r} is passed by name and also by position: positional inputs are bound in order",
        )
        hint = f"declare the positional inputs as they are in forward; {takes_text}"
    elif missing_names:
        input_name, text = (
            "",
            f"forward needs {', '.join(map(repr, missing_names))}, which the manifest's inputs do not give",
        )
        keyword = (
            ": {keyword: true}"
            if parameters_by_name[missing_names[0]].kind is inspect.Parameter.KEYWORD_ONLY
            else ": {}"
        )
        hint = f"add `{missing_names[0]}{keyword}` to inputs and its shapes to the profiles; {takes_text}"
    elif len(positional) > len(positional_parameters):
        extra_names = positional[len(positional_parameters) :]
        input_name = extra_names[0]
        text = f"the manifest has {len(positional)} positional inputs, and forward takes {len(positional_parameters)}"
        hint = (
            f"remove {', '.join(map(repr, extra_names))}, or write `keyword: true` for inputs that are passed by name; "
            f"{takes_text}"
        )
    else:
        input_name, text, hint = "", f"the manifest's inputs do not fit forward: {message}", takes_text
    raise SourceError(text, code="signature", hint=hint, **job.place(f"inputs.{input_name}", "inputs"))


def _parameters_text(signature: inspect.Signature) -> str:
    """The parameters as text, without annotations: ``(x, mask=None)``."""
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
