"""Bind the manifest's inputs to the arguments of a model's forward, with advice if they do not fit.

Positional inputs are passed in the manifest's order, with any names; keyword inputs are passed by name.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from trtbuild.core.values.nearest import nearest
from trtbuild.errors import SourceError
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.frames import Frames


def bound_to_forward(
    module: torch.nn.Module, job: TraceJob, args: tuple[Any, ...], kwargs: dict[str, Any], frames: Frames
) -> inspect.BoundArguments:
    """Bind the inputs to forward's parameters. Raises SourceError if they do not fit."""
    signature = inspect.signature(module.forward)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        message = str(error)
    named = {name: p for name, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    positional = [entry.name for entry in job.inputs if not entry.keyword]
    by_position = [name for name, p in named.items() if p.kind is not p.KEYWORD_ONLY]
    bound_names = {*by_position[: len(positional)], *kwargs}
    unknown = next((name for name in kwargs if name not in named), None)
    passed_twice = next((name for name in kwargs if name in by_position[: len(positional)]), None)
    missing = [name for name, p in named.items() if p.default is p.empty and name not in bound_names]
    parameters_text = _shown(signature)
    definition = frames.definition(module.forward)
    takes = f"the model takes {parameters_text}" + (
        f" ({definition['file']}:{definition['line']})" if definition else ""
    )
    if unknown is not None:
        similar = nearest(unknown, named)
        input_name, text = unknown, f"forward has no argument {unknown!r}"
        hint = f"did you mean {similar!r}? {takes}" if similar else takes
    elif passed_twice is not None:
        input_name, text = (
            passed_twice,
            f"{passed_twice!r} is passed by name and also by position: positional inputs are bound in order",
        )
        hint = f"declare the positional inputs as they are in forward; {takes}"
    elif missing:
        input_name, text = "", f"forward needs {', '.join(map(repr, missing))}, which the manifest's inputs do not give"
        keyword = ": {keyword: true}" if named[missing[0]].kind is inspect.Parameter.KEYWORD_ONLY else ": {}"
        hint = f"add `{missing[0]}{keyword}` to inputs and its shapes to the profiles; {takes}"
    elif len(positional) > len(by_position):
        extra = positional[len(by_position) :]
        input_name = extra[0]
        text = f"the manifest has {len(positional)} positional inputs, and forward takes {len(by_position)}"
        hint = f"remove {', '.join(map(repr, extra))}, or write `keyword: true` for inputs that are passed by name; {takes}"
    else:
        input_name, text, hint = "", f"the manifest's inputs do not fit forward: {message}", takes
    raise SourceError(text, code="signature", hint=hint, **job.place(f"inputs.{input_name}", "inputs"))


def _shown(signature: inspect.Signature) -> str:
    """The parameters without annotations: ``(x, mask=None)``."""
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
