"""Run an engine as CUDA graphs.

Rules
1. A graph reads and writes fixed addresses. So it has its own buffers: each call copies inputs into them and outputs out
   of them. The graph saves the launches of the engine's kernels, so it is faster for engines with many small kernels.
2. Each set of shapes has its own graph, buffers and context, because a context contains state that depends on the shapes
   (TensorRT developer guide, "CUDA graphs": one context per captured graph, and shared device memory).
3. A graph is captured after a normal run with the same shapes. In that run TensorRT prepares itself for new shapes.
4. An engine that cannot be captured runs normally, after a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtbuild.errors import EngineError
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.calls.callers import warn
from trtbuild.runtime.engines.runs import Run, RunnablePart
from trtbuild.runtime.memory.device_memory import Array, CapturedGraph

#: The largest number of graphs that an engine has for one thread, stream and profile. The oldest graph is freed first.
MOST_GRAPHS = 16


class GraphRun:
    """The runs of one engine, thread, stream and profile. There is a graph for each set of shapes."""

    def __init__(self, part: RunnablePart) -> None:
        self._part = part
        #: The sizes of the call and the shapes of the values → the graph for them.
        self._captured_runs: dict[tuple[Any, ...], _CapturedRun] = {}
        #: Runs the engine without a graph, if it cannot be captured (rule 4).
        self._plain_run: Run | None = None

    def __call__(self, values: Sequence[Array], call: Call) -> Sequence[Array]:
        if self._plain_run is not None:
            return self._plain_run(values, call)
        shapes = (call.sizes, *[value.shape for value in values])
        captured = self._captured_runs.get(shapes)
        if captured is not None:
            return captured(values, call)
        return self._capture(shapes, values, call)

    def move_to_this_thread(self) -> None:
        """Let the current thread use this object. Each graph keeps the activation memory with which it was captured."""
        if self._plain_run is not None:
            self._plain_run.move_to_this_thread()

    def _capture(self, shapes: tuple[Any, ...], values: Sequence[Array], call: Call) -> Sequence[Array]:
        run = Run(self._part, call)
        outputs = run(values, call)  # rule 3; this also checks the values
        if run.has_measured_outputs:
            self._give_up(run, "it has outputs whose size depends on data")
            return outputs
        if len(self._captured_runs) >= MOST_GRAPHS:
            self._part.memory.synchronize(call.stream)
            del self._captured_runs[next(iter(self._captured_runs))]
        try:
            self._captured_runs[shapes] = _CapturedRun(run, values, call)
        except EngineError as error:
            self._give_up(Run(self._part, call), error.text)
        return outputs

    def _give_up(self, run: Run, why: str) -> None:
        self._plain_run = run
        self._captured_runs.clear()
        warn(f"{self._part.name} runs without CUDA graphs: {why}")


class _CapturedRun:
    """One graph, and the buffers that it reads and writes."""

    def __init__(self, run: Run, values: Sequence[Array], call: Call) -> None:
        part = run.part
        memory, stream = part.memory, call.stream
        self._memory = memory
        self._run = run  # its context has the state that the graph uses
        self._inputs = [
            memory.empty(tuple(value.shape), memory.dtype(binding.dtype), stream)
            for value, binding in zip(values, part.inputs, strict=True)
        ]
        run.prepare(self._inputs, call)
        self._outputs = run.outputs()
        self._workspace = run.workspace.array  # not freed, even if the workspace replaces it by a larger array
        memory.synchronize(run.stream)  # waits for the normal run (rule 3), because the capture uses another stream
        self._graph: CapturedGraph = memory.capture(run.enqueue)

    def __call__(self, values: Sequence[Array], call: Call) -> Sequence[Array]:
        memory, stream = self._memory, call.stream
        for index, (value, target) in enumerate(zip(values, self._inputs, strict=True)):
            if value.dtype != target.dtype:
                raise self._run.dtype_error(index, value)
            source = value if value.is_contiguous() else memory.contiguous_copy(value, stream)
            memory.copy(source, target, stream)
        self._graph.launch(stream)
        outputs = []
        for output in self._outputs:
            array = memory.empty(tuple(output.shape), output.dtype, stream)
            memory.copy(output, array, stream)
            outputs.append(array)
        return outputs
