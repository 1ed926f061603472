"""``network:`` sources: record the TensorRT network that a function of the project defines.

Rules
1. The function is ``define(network, trt, **kwargs)``: it adds the manifest's inputs by their names and its layers, and
   marks the outputs. Dynamic sizes are -1. Optimization profiles come from the manifest.
2. It runs only here, in the trace's process. Its dependencies are discovered as for a ``python:`` model. Engines are
   compiled from the recording.
3. An error names the line of the function.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trtbuild.core.model.shapes import SymbolAxis
from trtbuild.core.partition.network_document import NotRecorded
from trtbuild.core.partition.partitions import TensorType
from trtbuild.core.values.expressions import Expression
from trtbuild.errors import SourceError, TrtbuildError
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.sources.declared_inputs import expression, interface_of, refuse_misfit
from trtbuild.stages.trace.sources.python_source import named, plain, refuse_kwargs
from trtbuild.stages.trace.sources.reading import SourceReader
from trtbuild.stages.trace.sources.source_graph import SourceGraph
from trtbuild.stages.trace.user_code.frames import Frames


class NetworkSource(SourceReader):
    def read(self) -> SourceGraph:
        """The network that the function of the source defines. Raises SourceError."""
        job, frames = self.job, self.frames
        target, place = job.source.target, job.place("source.network", "source")
        function = named(job, self.project, frames)
        if not callable(function):
            raise SourceError(
                f"{target} is a value of type {type(function).__name__}; it must be a function that takes a network",
                hint="write `def define(network, trt): …`",
                **place,
            )
        _refuse_signature(function, job, frames)
        kwargs = plain(job.source.kwargs)
        by_name = {entry.name: (entry, shape) for entry, shape in zip(job.inputs, job.shapes.shapes, strict=True)}

        def check(name: str, dtype: str, sizes: Sequence[int]) -> None:
            place = _line(frames)
            if name not in by_name:
                raise SourceError(
                    f"{target} adds an input {name!r}, which the manifest does not declare",
                    code="network",
                    hint=f"the inputs of the manifest are: {', '.join(by_name) or 'none'}",
                    **(place or job.place("inputs", "source")),
                )
            entry, shape = by_name[name]
            refuse_misfit(entry, shape, dtype, [None if size < 0 else size for size in sizes], job, place)

        declared = [
            (entry.name, entry.dtype, tuple(f"d{a.symbol}" if isinstance(a, SymbolAxis) else a for a in shape))
            for entry, shape in by_name.values()
        ]
        try:
            recorded = self.makers.record(lambda network, trt: function(network, trt, **kwargs), declared, check)
        except TrtbuildError:
            raise
        except NotRecorded as error:
            place_found = frames.deepest(frames.user(error.__traceback__))
            where = (
                {"file": place_found[0], "line": place_found[1]}
                if place_found
                else frames.definition(function) or place
            )
            raise SourceError(f"{target}: {error}", code="network", hint=_hint(str(error)), **where) from error
        except BaseException as error:
            frames.raise_from(error, f"{target} fails", code="network", fallback=frames.definition(function) or place)
        return self._source_graph(recorded)

    def _source_graph(self, recorded: Any) -> SourceGraph:
        """The recorded network, with the types of its inputs and outputs."""
        job = self.job
        outputs: list[tuple[str, str, list[Expression]]] = []
        data_sizes, used_names = 0, {entry.name for entry in job.inputs}
        for name, dtype, sizes in recorded.outputs:
            if name in used_names:
                raise SourceError(
                    f"output {name!r} of {job.source.target} has the name of another input or output",
                    code="network",
                    hint="give the tensor another name: tensor.name = …",
                    **job.place("source.network", "source"),
                )
            used_names.add(name)
            shape: list[Expression] = []
            for size in sizes:
                shape.append(size if size >= 0 else ["data", data_sizes])
                data_sizes += size < 0
            outputs.append((name, dtype, shape))
        weights = [(slot, torch.from_numpy(array)) for slot, array in enumerate(recorded.weights)]
        described = [
            {"name": f"w{slot}", "dtype": str(array.dtype), "shape": list(array.shape), "persistent": True}
            for slot, array in enumerate(recorded.weights)
        ]
        inputs = [
            TensorType(entry.dtype, tuple(expression(axis, job) for axis in shape))
            for entry, shape in zip(job.inputs, job.shapes.shapes, strict=True)
        ]
        types = [TensorType(dtype, tuple(shape)) for _, dtype, shape in outputs]
        parts = (recorded.document, recorded.layers, len(weights), inputs, types)
        return self.graph(parts, interface_of(job, described, outputs), weights)


def _line(frames: Frames) -> dict[str, Any]:
    """The line of user code that is running; empty if there is no such line."""
    found = frames.deepest([frame for frame in traceback.extract_stack() if frames.is_shown(frame.filename)])
    return {"file": found[0], "line": found[1]} if found else {}


def _hint(message: str) -> str | None:
    if message.startswith("the shape of output"):
        return "TensorRT computes shapes when they are read: to find the layer, read `layer.get_output(0).shape` after each"
    return None


def _refuse_signature(function: Callable[..., Any], job: TraceJob, frames: Frames) -> None:
    """Raise SourceError if the function does not take a network, TensorRT's module, and the manifest's kwargs."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a callable without a signature
        return
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise SourceError(
            f"{job.source.target} takes {len(positional)} positional argument{'s' * (len(positional) != 1)}, but is "
            "called with a network and TensorRT's module",
            code="network",
            hint="write `def define(network, trt, …)`",
            **(frames.definition(function) or job.place("source.network", "source")),
        )
    refuse_kwargs(function, plain(job.source.kwargs), job, leading=2)
