"""Run one engine as a part of a package: choose the context for a call. `trtbuild.runtime.engines.runs` runs the context.

Rules
1. A thread has its own contexts, because threads may share a TensorRT engine, but not a context. It has a context for each
   optimization profile and stream that it uses. If it runs CUDA graphs, it has a context for each graph. So its calls on
   two streams can overlap.
2. The contexts of a thread that has ended are used by the next thread with the same profile and stream. Another stream
   could not use them, because a context's last work may still run on its stream when the thread ends.
3. Contexts do not contain activation memory: all engines of a thread and stream share one
   `trtbuild.runtime.engines.workspaces.Workspace`.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence

from trtbuild.core.engines.execution import Binding, ContextOptions, Engine, Library
from trtbuild.core.partition.partitions import Partition
from trtbuild.errors import PackageDamaged
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.engines.graphs import GraphRun
from trtbuild.runtime.engines.runs import Run
from trtbuild.runtime.engines.workspaces import Workspaces
from trtbuild.runtime.memory.device_memory import Array

#: The largest number of `Run` or `GraphRun` objects that an engine has for one thread. When it is reached, all of them are
#: freed, with their contexts. Otherwise a program that creates a stream for each call would need more and more memory.
_MOST_CONTEXTS = 32


class EnginePart:
    """One engine, ready to run: a `trtbuild.runtime.calls.stitching.Part`.

    The inputs and outputs of `partition` are the engine's ``i0…`` and ``o0…``. If `graphs` is True, the engine runs as CUDA
    graphs (`trtbuild.runtime.engines.graphs`). With `options.library_graphs`, `graphs` has no effect, because the library
    captures graphs itself. Raises PackageDamaged if engine and partition do not match.
    """

    def __init__(
        self,
        library: Library,
        engine: Engine,
        partition: Partition,
        workspaces: Workspaces,
        *,
        options: ContextOptions | None = None,
        graphs: bool = False,
    ) -> None:
        self.name = partition.name
        self.engine = engine
        self.options = options or ContextOptions()
        self.partition = partition
        self.library = library
        self.memory = workspaces.memory
        self.workspaces = workspaces
        self.graphs = graphs and not self.options.library_graphs
        by_name = {binding.name: binding for binding in engine.bindings}
        self.inputs = _numbered_bindings(
            by_name, "i", [type_.dtype for _, type_ in partition.inputs], partition.name, is_input=True
        )
        self.outputs = _numbered_bindings(
            by_name, "o", [type_.dtype for type_ in partition.outputs], partition.name, is_input=False
        )
        if len(by_name) != len(self.inputs) + len(self.outputs):
            raise PackageDamaged(
                f"the engine of {partition.name} has inputs or outputs that its partition does not have"
            )
        #: For each profile: the smallest and the largest shape of each input.
        self.ranges = [
            [_shape_range(engine, binding, profile) for binding in self.inputs]
            for profile in range(engine.profile_count)
        ]
        self._thread_local = threading.local()
        self._threads: weakref.WeakSet[_ThreadRuns] = weakref.WeakSet()
        #: (stream, profile) → runs of threads that have ended. No lock is needed, because append and pop are atomic.
        self._idle_runs: dict[tuple[int, int], deque[Run | GraphRun]] = {}

    def __call__(self, values: Sequence[Array], call: Call) -> Sequence[Array]:
        """Compute the outputs, as new tensors. Raises CallRefused and EngineError.

        The engine is not enqueued if the values are refused. Only errors about sizes that depend on data are raised
        after the engine is enqueued, because TensorRT reports such sizes while the engine runs.
        """
        memory = self.memory
        if not memory.is_device_current():
            with memory.on_device():
                return self._run(values, call)
        return self._run(values, call)

    def _run(self, values: Sequence[Array], call: Call) -> Sequence[Array]:
        try:
            runs: dict[tuple[int, int], Run | GraphRun] = self._thread_local.thread.runs
        except AttributeError:
            thread = self._thread_local.thread = _ThreadRuns(self._idle_runs)
            self._threads.add(thread)
            runs = thread.runs
        run = runs.get((call.stream, call.profile))
        if run is None:
            if len(runs) >= _MOST_CONTEXTS:
                runs.clear()
            run = runs[call.stream, call.profile] = self._take_idle_run(call) or self._new_run(call)
        return run(values, call)

    def _take_idle_run(self, call: Call) -> Run | GraphRun | None:
        try:
            run = self._idle_runs[call.stream, call.profile].pop()
        except (KeyError, IndexError):
            return None
        run.move_to_this_thread()
        return run

    def _new_run(self, call: Call) -> Run | GraphRun:
        return GraphRun(self) if self.graphs else Run(self, call)

    def memory_bytes(self) -> list[int]:
        """Return the activation memory of a context in bytes, for each profile."""
        return [self.engine.memory_bytes(profile) for profile in range(self.engine.profile_count)]

    def layer_times(self, values: Sequence[Array], call: Call) -> list[tuple[str, float]]:
        """Run twice, and return each layer with its time in milliseconds (``IProfiler``). Waits for the GPU."""
        times: list[tuple[str, float]] = []
        with self.memory.on_device():
            run = Run(self, call)
            run(values, call)  # the first run of a context is slower than later runs
            run.context.time_layers(lambda layer, milliseconds: times.append((layer, milliseconds)))
            run(values, call)
            self.memory.synchronize(run.stream)
            run.context.time_layers(None)
        return times

    def close(self) -> None:
        """Free all contexts, of all threads. All calls must have returned."""
        for thread in list(self._threads):
            thread.runs.clear()
        self._idle_runs.clear()


class _ThreadRuns:
    """The runs of one thread. When the thread ends, they are added to `idle_runs` (rule 2)."""

    __slots__ = ("__weakref__", "_idle_runs", "runs")

    def __init__(self, idle_runs: dict[tuple[int, int], deque[Run | GraphRun]]) -> None:
        self.runs: dict[tuple[int, int], Run | GraphRun] = {}  # by stream and profile
        self._idle_runs = idle_runs

    def __del__(self) -> None:
        for key, run in self.runs.items():
            self._idle_runs.setdefault(key, deque()).append(run)


def _numbered_bindings(
    bindings: dict[str, Binding], letter: str, dtypes: Sequence[str], partition: str, *, is_input: bool
) -> tuple[Binding, ...]:
    """Return the inputs ``i0…`` or the outputs ``o0…`` of a partition, in order. Raises PackageDamaged."""
    matching = []
    for number, dtype in enumerate(dtypes):
        binding = bindings.get(f"{letter}{number}")
        if binding is None or binding.is_input != is_input or binding.dtype != dtype or binding.on_host:
            actual = f"{binding.dtype}{' on the host' if binding.on_host else ''}" if binding else "nothing"
            raise PackageDamaged(
                f"{letter}{number} of the engine of {partition} is {actual}, but {dtype} in the package",
                hint="the package was made with another engine: build the package again",
            )
        matching.append(binding)
    return tuple(matching)


def _shape_range(engine: Engine, binding: Binding, profile: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if -1 not in binding.shape:
        return binding.shape, binding.shape
    smallest, _, largest = engine.profile_shapes(binding.name, profile)
    return smallest, largest
