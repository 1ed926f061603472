"""``python:`` sources: call a function or class of the project, which returns the module.

An error names the place to correct: the manifest if it names something that does not exist, the line of the user's code
that raises an error, or the callable if it does not return a module.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from trtbuild.core.values.nearest import nearest
from trtbuild.errors import SourceError
from trtbuild.stages.trace.export.checks import refuse_training_mode
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.quantization.ao_quantizers import replace_fake_quantizers
from trtbuild.stages.trace.quantization.evaluation_mode import in_evaluation_mode
from trtbuild.stages.trace.quantization.modelopt_quantizers import replace_modelopt_quantizers
from trtbuild.stages.trace.sources.reading import SourceReader
from trtbuild.stages.trace.user_code.advice import misspelt_module
from trtbuild.stages.trace.user_code.frames import Frames


class PythonSource(SourceReader):
    """Reads a ``python:`` source."""

    def read(self) -> torch.nn.Module:
        """The `torch.nn.Module` that the source names, or that the named callable returns. Raises SourceError."""
        job, project, frames = self.job, self.project, self.frames
        target, place = job.source.target, job.place("source.python", "source")
        source_object = import_source_object(job, project, frames)
        if isinstance(source_object, torch.nn.Module) and not job.source.kwargs:
            model: Any = source_object
        elif not callable(source_object):
            raise SourceError(
                f"{target} is {_kind(source_object)}; it must be a function or class that returns a torch.nn.Module",
                hint="name the function that builds the model, such as `def build(): return Net().eval()`",
                **place,
            )
        else:
            place = frames.definition_place(source_object) or place
            model = call_source(source_object, job, frames)
        if not isinstance(model, torch.nn.Module):
            raise SourceError(
                f"{target} returned {_kind(model)}; it must return a torch.nn.Module", hint=_return_hint(model), **place
            )
        model = in_evaluation_mode(model)
        refuse_training_mode(model, job, place)
        replace_modelopt_quantizers(model, job, place)
        replace_fake_quantizers(model, place)
        return model


def import_source_object(job: TraceJob, project: Path, frames: Frames) -> Any:
    """Import the object that the source's ``module:name`` names. Raises SourceError if the module cannot be imported, or
    does not have this name."""
    module_name, _, path = job.source.target.partition(":")
    place = job.place(f"source.{job.source.kind}", "source")
    try:
        source_object: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise SourceError(
                f"there is no module {module_name!r}",
                code="import",
                hint=_module_hint(module_name, path, job, project),
                **place,
            ) from None
        frames.raise_from(error, f"importing {module_name} fails", code="import", fallback=place)
    except BaseException as error:
        frames.raise_from(error, f"importing {module_name} fails", code="import", fallback=place)
    for name in path.split("."):
        if not hasattr(source_object, name):
            raise SourceError(
                f"module {module_name!r} has no {path!r}",
                code="import",
                hint=_name_hint(name, source_object, module_name, path),
                **place,
            )
        source_object = getattr(source_object, name)
    return source_object


def _module_hint(name: str, path: str, job: TraceJob, project: Path) -> str:
    if name.endswith(".py"):
        return f'modules are named without .py: write "{name.removesuffix(".py")}:{path}"'
    similar_name = misspelt_module(name, [project / root for root in job.source.roots])
    places = "the project" if job.source.roots == (".",) else ", ".join(f"{root}/" for root in job.source.roots)
    searched = f"it is searched in {places} and among the installed modules"
    return f"did you mean {similar_name!r}? {searched}" if similar_name else searched


def _name_hint(name: str, holder: Any, module_name: str, path: str) -> str:
    """A hint with the most similar name, and with the public callables of `holder` that the module itself defines."""
    defined = sorted(
        key
        for key, value in getattr(holder, "__dict__", {}).items()  # a dict or a number has no __dict__
        if not key.startswith("_") and callable(value) and getattr(value, "__module__", None) == module_name
    )
    similar_name = nearest(name, defined)
    prefix = path.rpartition(".")[0]
    subject = f"{module_name}:{prefix}" if prefix and hasattr(holder, "__qualname__") else "it"
    defined_text = (
        f"{subject} has: {', '.join(defined)}"
        if defined
        else f"{subject} has no function or class that is defined there"
    )
    return f"did you mean {similar_name!r}? {defined_text}" if similar_name else defined_text


def call_source(function: Callable[..., Any], job: TraceJob, frames: Frames) -> Any:
    """Call the source's callable with the kwargs of the job. Raises SourceError if the call fails."""
    kwargs = yaml_values(job.source.kwargs)
    refuse_kwargs(function, kwargs, job)
    is_on = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    # with this setting, torch.empty fills its memory, so a model that keeps such a tensor is the same in every process
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return function(**kwargs)
    except BaseException as error:
        kwargs_text = ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
        frames.raise_from(
            error,
            f"{job.source.target}({kwargs_text}) fails",
            code="source",
            fallback=job.place("source.kwargs", "source"),
        )
    finally:
        torch.use_deterministic_algorithms(is_on, warn_only=warns_only)


def refuse_kwargs(function: Callable[..., Any], kwargs: Mapping[str, Any], job: TraceJob, leading: int = 0) -> None:
    """Raise SourceError if the callable does not accept `leading` positional arguments and the manifest's kwargs."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a callable without a signature, or with an invalid `__signature__`
        return
    parameters = dict(list(signature.parameters.items())[leading:])
    try:
        signature.bind(*[None] * leading, **kwargs)
        return
    except TypeError as error:
        message = str(error)
    names = [name for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = next((name for name in kwargs if name not in names and not any_name), None)
    takes_text = f"it takes {signature.replace(return_annotation=inspect.Signature.empty)}"
    if unknown is not None:
        similar_name = nearest(unknown, names)
        problem = f"{job.source.target} takes no argument {unknown!r}"
        hint = f"did you mean {similar_name!r}? {takes_text}" if similar_name else takes_text
    else:
        needed = [name for name, p in parameters.items() if p.default is p.empty and name in names]
        missing_names = [name for name in needed if name not in kwargs]
        problem = f"{job.source.target} needs a value for {', '.join(map(repr, missing_names)) or message}"
        values_text = ", ".join(f"{name}: …" for name in missing_names)
        hint = f"write kwargs: {{{values_text}}} beside `{job.source.kind}:`; {takes_text}"
    raise SourceError(
        problem, code="source", hint=hint, **job.place("source.kwargs", f"source.{job.source.kind}", "source")
    )


def yaml_values(value: Any) -> Any:
    """Convert the mappings and sequences in a job's kwargs to dicts and lists, as a YAML reader returns them."""
    if isinstance(value, Mapping):
        return {key: yaml_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [yaml_values(item) for item in value]
    return value


def _kind(value: object) -> str:
    if value is None:
        return "nothing (None)"
    return f"the class {value.__qualname__}" if isinstance(value, type) else f"a value of type {type(value).__name__}"


def _return_hint(value: object) -> str:
    if value is None:
        return "add `return model` at its end"
    if isinstance(value, type) and issubclass(value, torch.nn.Module):
        return f"return an instance: `return {value.__name__}(…).eval()`"
    return "return the module alone" if isinstance(value, tuple) else "return the module itself"
