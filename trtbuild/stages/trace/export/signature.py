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
    given = {*by_position[: len(positional)], *kwargs}
    unknown = next((name for name in kwargs if name not in named), None)
    twice = next((name for name in kwargs if name in by_position[: len(positional)]), None)
    lacking = [name for name, p in named.items() if p.default is p.empty and name not in given]
    shown = _shown(signature)
    where = frames.definition(module.forward)
    takes = f"the model takes {shown}" + (f" ({where['file']}:{where['line']})" if where else "")
    if unknown is not None:
        like = nearest(unknown, named)
        about, text = unknown, f"forward has no argument {unknown!r}"
        hint = f"did you mean {like!r}? {takes}" if like else takes
    elif twice is not None:
        about, text = twice, f"{twice!r} is passed by name and also by position: positional inputs are bound in order"
        hint = f"declare the positional inputs as they are in forward; {takes}"
    elif lacking:
        about, text = "", f"forward needs {', '.join(map(repr, lacking))}, which the manifest's inputs do not give"
        keyword = ": {keyword: true}" if named[lacking[0]].kind is inspect.Parameter.KEYWORD_ONLY else ": {}"
        hint = f"add `{lacking[0]}{keyword}` to inputs and its shapes to the profiles; {takes}"
    elif len(positional) > len(by_position):
        extra = positional[len(by_position) :]
        about = extra[0]
        text = f"the manifest has {len(positional)} positional inputs, and forward takes {len(by_position)}"
        hint = f"remove {', '.join(map(repr, extra))}, or write `keyword: true` for inputs that are passed by name; {takes}"
    else:
        about, text, hint = "", f"the manifest's inputs do not fit forward: {message}", takes
    raise SourceError(text, code="signature", hint=hint, **job.place(f"inputs.{about}", "inputs"))


def _shown(signature: inspect.Signature) -> str:
    """The parameters without annotations: ``(x, mask=None)``."""
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
