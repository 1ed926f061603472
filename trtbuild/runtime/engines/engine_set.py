"""The engines of one package, or of several ``.pt2`` files, on one GPU, and the kernels that are compiled for this GPU."""

from __future__ import annotations

from trtbuild.core.engines.execution import ContextOptions, Engine, KernelCache, Library
from trtbuild.core.partition.partitions import Partition
from trtbuild.runtime.engines.engine_part import EnginePart
from trtbuild.runtime.engines.runtime_cache import KernelFile
from trtbuild.runtime.engines.workspaces import Workspaces
from trtbuild.runtime.memory.device_memory import Memory


class EngineSet:
    """Creates parts from verified plans (serialized engines). `kernel_file` stores the kernels that TensorRT-RTX compiles.
    TensorRT does not compile kernels at run time."""

    def __init__(
        self,
        library: Library,
        memory: Memory,
        kernel_file: KernelFile | None = None,
        *,
        options: ContextOptions | None = None,
    ) -> None:
        self.library = library
        self.memory = memory
        self._options = options or ContextOptions()
        self._kernel_file = kernel_file
        self._kernel_cache: KernelCache | None = None
        #: The content of the kernel file, as far as this object has loaded or written it.
        self._stored_kernels: bytes | None = None
        self._engines: dict[str, Engine] = {}
        self._parts: list[EnginePart] = []
        self._workspaces = Workspaces(memory)

    def load(self, partition: Partition, plan: memoryview) -> None:
        """Create the engine of `partition` from `plan`. Raises EngineError."""
        with self.memory.on_device():
            engine = self.library.load_engine(plan)
            if not self._engines:  # all engines share the cache that the first engine creates
                self._kernel_cache = engine.create_kernel_cache()
                if self._kernel_cache is not None and self._kernel_file is not None:
                    stored_kernels = self._kernel_file.read()
                    if stored_kernels is not None and self._kernel_cache.load(stored_kernels):
                        self._stored_kernels = stored_kernels
            engine.kernels = self._kernel_cache
        self._engines[partition.name] = engine

    def part(self, partition: Partition, *, cuda_graphs: bool = False) -> EnginePart:
        """Return the loaded engine of `partition`, ready to run. Raises PackageDamaged if the two do not match."""
        library_graphs = cuda_graphs and self.library.captures_graphs
        options = ContextOptions(self._options.specialization, library_graphs=library_graphs)
        part = EnginePart(
            self.library,
            self._engines[partition.name],
            partition,
            self._workspaces,
            options=options,
            graphs=cuda_graphs,
        )
        self._parts.append(part)
        return part

    def store_kernels(self) -> None:
        """Store the kernels that were compiled so far. Those of a profile that has not run may be missing."""
        if self._kernel_cache is None or self._kernel_file is None:
            return
        with self.memory.on_device():
            content = self._kernel_cache.save()
        if content != self._stored_kernels and self._kernel_file.write(content) is not None:
            self._stored_kernels = content

    def close(self) -> None:
        """Store the kernels, and free all contexts and engines. No call may be running.

        Raises EngineError if the library cannot return the kernels. Contexts and engines are freed in any case.
        """
        try:
            self.store_kernels()
        finally:
            for part in self._parts:
                part.close()
            self._parts.clear()
            self._engines.clear()
            self._kernel_cache = None
