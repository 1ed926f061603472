"""``network:`` sources: record the TensorRT network that a function of the project defines.

Rules
1. The function is ``define(network, trt, **kwargs)``. It adds the manifest's inputs by their names, adds layers, and marks
   the outputs. Dynamic sizes are -1. Optimization profiles come from the manifest.
2. The function runs only in the process of the trace. Its calls are recorded, and engines are compiled from this recording.
   Its dependencies are discovered as for a ``python:`` model.
3. An error names a line of the function if one is known, otherwise a line of the manifest. The error about two tensors with
   one name always names the manifest.
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
from trtbuild.stages.trace.sources.declared_inputs import graph_interface, refuse_different_input, size_expression
from trtbuild.stages.trace.sources.python_source import import_source_object, refuse_kwargs, yaml_values
from trtbuild.stages.trace.sources.reading import SourceReader
from trtbuild.stages.trace.sources.source_graph import SourceGraph
from trtbuild.stages.trace.user_code.frames import Frames


class NetworkSource(SourceReader):
    """Reads a ``network:`` source."""

    def read(self) -> SourceGraph:
        """The recording of the network that the function of the source defines. Raises SourceError."""
        job, frames = self.job, self.frames
        target, place = job.source.target, job.place("source.network", "source")
        function = import_source_object(job, self.project, frames)
        if not callable(function):
            raise SourceError(
                f"{target} is a value of type {type(function).__name__}; it must be a function that takes a network",
                hint="write `def define(network, trt): …`",
                **place,
            )
        _refuse_signature(function, job, frames)
        kwargs = yaml_values(job.source.kwargs)
        by_name = {entry.name: (entry, shape) for entry, shape in zip(job.inputs, job.shapes.shapes, strict=True)}

        def check_input(name: str, dtype: str, sizes: Sequence[int]) -> None:
            line = _running_line(frames)
            if name not in by_name:
                raise SourceError(
                    f"{target} adds an input {name!r}, which the manifest does not declare",
                    code="network",
                    hint=f"the inputs of the manifest are: {', '.join(by_name) or 'none'}",
                    **(line or job.place("inputs", "source")),
                )
            entry, shape = by_name[name]
            refuse_different_input(entry, shape, dtype, [None if size < 0 else size for size in sizes], job, line)

        declared_inputs = [
            (entry.name, entry.dtype, tuple(f"d{a.symbol}" if isinstance(a, SymbolAxis) else a for a in shape))
            for entry, shape in by_name.values()
        ]
        try:
            recording = self.graph_functions.record(
                lambda network, trt: function(network, trt, **kwargs), declared_inputs, check_input
            )
        except TrtbuildError:
            raise
        except NotRecorded as error:
            place_found = frames.innermost_place(frames.user_frames(error.__traceback__))
            error_place = (
                {"file": place_found[0], "line": place_found[1]}
                if place_found
                else frames.definition_place(function) or place
            )
            raise SourceError(f"{target}: {error}", code="network", hint=_hint(str(error)), **error_place) from error
        except BaseException as error:
            frames.raise_from(
                error, f"{target} fails", code="network", fallback=frames.definition_place(function) or place
            )
        return self._source_graph(recording)

    def _source_graph(self, recording: Any) -> SourceGraph:
        """The recorded network, with the types of its inputs and outputs."""
        job = self.job
        outputs: list[tuple[str, str, list[Expression]]] = []
        data_sizes, used_names = 0, {entry.name for entry in job.inputs}
        for name, dtype, sizes in recording.outputs:
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
                if size >= 0:
                    shape.append(size)
                else:
                    shape.append(["data", data_sizes])
                    data_sizes += 1
            outputs.append((name, dtype, shape))
        weights = [(slot, torch.from_numpy(array)) for slot, array in enumerate(recording.weights)]
        weight_entries = [
            {"name": f"w{slot}", "dtype": str(array.dtype), "shape": list(array.shape), "persistent": True}
            for slot, array in enumerate(recording.weights)
        ]
        inputs = [
            TensorType(entry.dtype, tuple(size_expression(axis, job) for axis in shape))
            for entry, shape in zip(job.inputs, job.shapes.shapes, strict=True)
        ]
        output_types = [TensorType(dtype, tuple(shape)) for _, dtype, shape in outputs]
        blob_arguments = (recording.document, recording.layers, len(weights), inputs, output_types)
        return self.make_graph(blob_arguments, graph_interface(job, weight_entries, outputs), weights)


def _running_line(frames: Frames) -> dict[str, Any]:
    """``file=`` and ``line=`` of the user code that is running; empty if no user code is running."""
    line = frames.innermost_place([frame for frame in traceback.extract_stack() if frames.is_shown(frame.filename)])
    return {"file": line[0], "line": line[1]} if line else {}


def _hint(message: str) -> str | None:
    if message.startswith("the shape of output"):
        return (
            "TensorRT reports a wrong shape only when a shape is read. To find the layer, read "
            "`layer.get_output(0).shape` after each layer"
        )
    return None


def _refuse_signature(function: Callable[..., Any], job: TraceJob, frames: Frames) -> None:
    """Raise SourceError if the function does not take a network, TensorRT's module, and the manifest's kwargs."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a callable without a signature, or with an invalid `__signature__`
        return
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise SourceError(
            f"{job.source.target} takes {len(positional)} positional argument{'s' * (len(positional) != 1)}, but is "
            "called with a network and TensorRT's module",
            code="network",
            hint="write `def define(network, trt, …)`",
            **(frames.definition_place(function) or job.place("source.network", "source")),
        )
    refuse_kwargs(function, yaml_values(job.source.kwargs), job, leading=2)
