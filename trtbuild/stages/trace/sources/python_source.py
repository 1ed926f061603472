"""``python:`` sources: call a callable of the project, which returns the module.

An error names the place to correct: the callable if it does not return a module, the manifest if it names something that
does not exist.
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
from trtbuild.stages.trace.quantization.evaluation_mode import in_evaluation_mode
from trtbuild.stages.trace.sources.reading import SourceReader
from trtbuild.stages.trace.user_code.advice import misspelt_module
from trtbuild.stages.trace.user_code.frames import Frames


class PythonSource(SourceReader):
    def read(self) -> torch.nn.Module:
        """The module that the callable of the source returns. Raises SourceError."""
        job, project, frames = self.job, self.project, self.frames
        target, place = job.source.target, job.place("source.python", "source")
        source_object = named(job, project, frames)
        if isinstance(source_object, torch.nn.Module) and not job.source.kwargs:
            model: Any = source_object
        elif not callable(source_object):
            raise SourceError(
                f"{target} is {_kind(source_object)}; it must be a function or class that returns a torch.nn.Module",
                hint="name the function that builds the model, such as `def build(): return Net().eval()`",
                **place,
            )
        else:
            place = frames.definition(source_object) or place
            model = _call(source_object, job, frames)
        if not isinstance(model, torch.nn.Module):
            raise SourceError(
                f"{target} returned {_kind(model)}; it must return a torch.nn.Module", hint=_return_hint(model), **place
            )
        model = in_evaluation_mode(model)
        refuse_training_mode(model, job, place)
        return model


def named(job: TraceJob, project: Path, frames: Frames) -> Any:
    """Import the object that the source's ``module:name`` names."""
    module_name, _, path = job.source.target.partition(":")
    place = job.place(f"source.{job.source.kind}", "source")
    try:
        found: Any = importlib.import_module(module_name)
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
        if not hasattr(found, name):
            raise SourceError(
                f"module {module_name!r} has no {path!r}",
                code="import",
                hint=_name_hint(name, found, module_name, path),
                **place,
            )
        found = getattr(found, name)
    return found


def _module_hint(name: str, path: str, job: TraceJob, project: Path) -> str:
    if name.endswith(".py"):
        return f'modules are named without .py: write "{name.removesuffix(".py")}:{path}"'
    similar = misspelt_module(name, [project / root for root in job.source.roots])
    places = "the project" if job.source.roots == (".",) else ", ".join(f"{root}/" for root in job.source.roots)
    searched = f"it is searched in {places} and among the installed modules"
    return f"did you mean {similar!r}? {searched}" if similar else searched


def _name_hint(name: str, holder: Any, module_name: str, path: str) -> str:
    """A hint with similar names. It lists only names that the module defines itself."""
    defined = sorted(
        key
        for key, value in vars(holder).items()
        if key[0] != "_" and callable(value) and getattr(value, "__module__", None) == module_name
    )
    similar = nearest(name, defined)
    prefix = path.rpartition(".")[0]
    sentence_start = f"{module_name}:{prefix} has" if prefix and hasattr(holder, "__qualname__") else "it has"
    listed = (
        f"{sentence_start}: {', '.join(defined)}"
        if defined
        else f"{sentence_start} no function or class that is defined there"
    )
    return f"did you mean {similar!r}? {listed}" if similar else listed


def _call(function: Callable[..., Any], job: TraceJob, frames: Frames) -> Any:
    kwargs = plain(job.source.kwargs)
    refuse_kwargs(function, kwargs, job)
    # torch then fills uninitialized memory, so torch.empty is the same in every process
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
        torch.use_deterministic_algorithms(False)


def refuse_kwargs(function: Callable[..., Any], kwargs: Mapping[str, Any], job: TraceJob, leading: int = 0) -> None:
    """Raise SourceError if the callable does not take the manifest's kwargs after its first `leading` arguments."""
    try:
        signature = inspect.signature(function)
        parameters = dict(list(signature.parameters.items())[leading:])
        signature.bind(*[None] * leading, **kwargs)
        return
    except ValueError:  # a callable without a signature
        return
    except TypeError as error:
        message = str(error)
    names = [name for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = next((name for name in kwargs if name not in names and not any_name), None)
    takes = f"it takes {signature.replace(return_annotation=inspect.Signature.empty)}"
    if unknown is not None:
        similar_name = nearest(unknown, names)
        text = f"{job.source.target} takes no argument {unknown!r}"
        hint = f"did you mean {similar_name!r}? {takes}" if similar_name else takes
    else:
        needed = [name for name, p in parameters.items() if p.default is p.empty and name in names]
        missing = [name for name in needed if name not in kwargs]
        text = f"{job.source.target} needs a value for {', '.join(map(repr, missing)) or message}"
        hint = f"write kwargs: {{{', '.join(f'{name}: …' for name in missing)}}} beside `{job.source.kind}:`; {takes}"
    raise SourceError(
        text, code="source", hint=hint, **job.place("source.kwargs", f"source.{job.source.kind}", "source")
    )


def plain(value: Any) -> Any:
    """Convert mappings and sequences of a job to the dicts and lists of a YAML reader."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
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
