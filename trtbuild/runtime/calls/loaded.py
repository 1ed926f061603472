"""An opened and verified package for one device: the result of `trtbuild.load`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from trtbuild.core.packages.package_index import (
    PackageIndex,
    PackedDim,
    PackedProfile,
    PackedTarget,
    PackedTensor,
    Tensors,
)
from trtbuild.core.packages.provenance import PROVENANCE_FILE, Provenance, parse
from trtbuild.core.partition.partitions import Partition
from trtbuild.errors import NoFittingTarget, PackageError
from trtbuild.runtime.calls.arguments import Arrays
from trtbuild.runtime.calls.module import Runner, as_torch_module
from trtbuild.runtime.calls.stitching import Part, Stitched, flowing_weights
from trtbuild.runtime.memory.device_memory import Memory
from trtbuild.runtime.packages.choice import no_reference_hint
from trtbuild.runtime.packages.package import Package


class Engines(Protocol):
    """Creates parts from plans, on one GPU. The driver layer provides the object, because the runtime does not import
    TensorRT."""

    memory: Memory

    def load(self, partition: Partition, plan: memoryview) -> None:
        """Create the engine of `partition` from the verified `plan`."""
        ...

    def part(self, partition: Partition, *, cuda_graphs: bool) -> Part:
        """Return the part that runs the loaded engine of `partition`."""
        ...

    def warmed(self) -> None:
        """Store the kernels that were compiled for this GPU, after every profile has run."""
        ...

    def close(self) -> None: ...


class Loaded:
    """An open package, for one device. Its files have been read and verified. The first call of `module()` creates the
    engines.

    `target` is the target whose engines run, or None on the CPU, where PyTorch computes the reference program.
    """

    def __init__(
        self,
        package: Package,
        target: PackedTarget | None,
        files: Mapping[str, memoryview],
        engines: Callable[[], Engines] | None,
        device: str,
    ) -> None:
        index = package.index
        self.package = package
        self.path = package.path
        self.device = device
        self.target = target
        self.inputs: tuple[PackedTensor, ...] = Tensors(index.inputs, index.dims)
        self.outputs: tuple[PackedTensor, ...] = Tensors(index.outputs, index.dims)
        self.dims: tuple[PackedDim, ...] = index.dims
        self.profiles: tuple[PackedProfile, ...] = index.profiles
        self.targets: Mapping[str, PackedTarget] = index.targets
        self._files: Mapping[str, memoryview] | None = files
        self._make_engines = engines
        self._engines: Engines | None = None
        #: The `Arrays` of the device, the parts that PyTorch computes, and the weights that parts read as values.
        self._ready: tuple[Arrays, Mapping[str, Part], Mapping[int, Any]] | None = None
        self._runners: dict[bool, Runner] = {}
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        """The model's name."""
        return self.package.index.model

    @property
    def is_reference(self) -> bool:
        """Whether PyTorch computes the whole model, on the CPU, without engines."""
        return self.target is None

    @property
    def provenance(self) -> Provenance:
        """The results of ``trtbuild verify`` for exactly these bytes."""
        return parse(self.package.beside(PROVENANCE_FILE), self.package.digest)

    def module(self, *, cuda_graphs: bool = False) -> Any:
        """Return the model: a ``torch.nn.Module`` if torch is installed, otherwise a callable. With `cuda_graphs` each
        engine's work is captured once for each set of shapes and then replayed. Raises PackageError, ToolchainMissing,
        EngineError."""
        runner = self.runner(cuda_graphs=cuda_graphs)
        if self.is_reference or _has_torch():
            return as_torch_module(runner)
        return runner

    def runner(self, *, cuda_graphs: bool = False) -> Runner:
        """Return the runner that `module` calls. It is created once."""
        with self._lock:
            with_graphs = cuda_graphs and not self.is_reference
            if with_graphs not in self._runners:
                self._runners[with_graphs] = self._make_runner(with_graphs)
            return self._runners[with_graphs]

    def warmup(self) -> None:
        """Run every profile at its opt, min and max shapes, with inputs of zeros. Then store the kernels that were compiled
        for this GPU. On the CPU this does nothing."""
        runner = self.runner()
        if self._engines is None:
            return
        memory = self._engines.memory
        with memory.on_device():
            stream = memory.stream()
            for bound in ("opt", "min", "max"):
                for profile in self.profiles:
                    arrays = {
                        entry.name: memory.filled(getattr(shape, bound), memory.dtype(entry.dtype), stream)
                        for entry, shape in zip(self.inputs, profile.shapes, strict=True)
                    }
                    runner.flat((), arrays)
            memory.synchronize(stream)
        self._engines.warmed()

    def close(self) -> None:
        """Free memory and engines. Modules of this package cannot be called afterwards."""
        with self._lock:
            for runner in self._runners.values():
                runner.close()
            if self._engines is not None:
                self._engines.close()
            self._runners, self._engines, self._files, self._ready = {}, None, None, None

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.target is None:
            library = self.package.index.reference_library
            return f"<trtbuild package {self.model!r} on the CPU: the reference program in {library}, no engine>"
        return f"<trtbuild package {self.model!r} on {self.device}: engines of target {self.target.name!r}>"

    # -- preparing

    def _make_runner(self, cuda_graphs: bool) -> Runner:
        if self._files is None:
            raise PackageError(f"the package of {self.model!r} is closed", hint="load it again")
        if self._ready is None:
            self._ready = self._on_the_cpu(self._files) if self.target is None else self._on_a_gpu(self._files)
            self._files = {}  # engines have copies, and tensors refer to their own bytes
        arrays, torch_parts, weights = self._ready
        target, parts = target_to_run(self.package.index, self.target), dict(torch_parts)
        if self._engines is not None:
            for partition in target.partitions.partitions:
                if partition.name not in parts:
                    parts[partition.name] = self._engines.part(partition, cuda_graphs=cuda_graphs)
        stitched = Stitched(target.partitions, parts, weights, len(self.inputs), arrays.packed)
        memory = self._engines.memory if self._engines is not None else None
        return Runner(self.package.index, stitched, arrays, memory, self.target.name if self.target else None)

    def _on_the_cpu(self, files: Mapping[str, memoryview]) -> tuple[Arrays, Mapping[str, Part], Mapping[int, Any]]:
        from trtbuild.runtime.calls.torch_arrays import HostArrays

        arrays = HostArrays()
        return arrays, *self._torch_parts(target_to_run(self.package.index, None), files, arrays, everything=True)

    def _on_a_gpu(self, files: Mapping[str, memoryview]) -> tuple[Arrays, Mapping[str, Part], Mapping[int, Any]]:
        target = self.target
        if target is None or self._make_engines is None:
            raise AssertionError("a target has engines")
        engines = self._make_engines()
        try:
            with engines.memory.on_device():
                ready = engines.memory, *self._torch_parts(target, files, engines.memory, everything=False)
                for partition in target.partitions.partitions:
                    if partition.kind == "tensorrt":
                        engines.load(partition, files[target.engines[partition.name]])
        except BaseException:
            engines.close()
            raise
        self._engines = engines
        return ready

    def _torch_parts(
        self, target: PackedTarget, files: Mapping[str, memoryview], arrays: Arrays, *, everything: bool
    ) -> tuple[dict[str, Part], Mapping[int, Any]]:
        """Create the parts that PyTorch computes: all parts, or only the PyTorch partitions. Also return the weights that
        parts read as values."""
        in_torch = [part for part in target.partitions.partitions if everything or part.kind == "torch"]
        flowing = flowing_weights(target.partitions)
        slots = flowing.union(*(part.weights for part in in_torch))
        if not in_torch and not slots:
            return {}, {}
        from trtbuild.runtime.calls.onnx_part import OnnxPart, is_onnx
        from trtbuild.runtime.calls.torch_part import Graph, TorchPart, require_torch, weight_tensors

        torch = require_torch(f"the package of {self.model!r} has parts that PyTorch computes")
        device = torch.device(arrays.device)
        index = self.package.index
        weights = weight_tensors({slot: index.weights[slot] for slot in slots}, files, device)
        engine_inputs = {
            source for part in target.partitions.partitions if part.kind == "tensorrt" for source, _ in part.inputs
        }
        graphs: dict[str, Graph] = {}
        parts: dict[str, Part] = {}
        for part in in_torch:
            path = target.programs[part.graph]
            if is_onnx(path):
                description = f"partition {part.name!r} of {self.model!r}"
                parts[part.name] = OnnxPart(files[path], [weights[slot] for slot in part.weights], description)
                continue
            if path not in graphs:
                graphs[path] = Graph(files[path], device, f"partition {part.name!r} of {self.model!r}")
            outputs = range(len(part.outputs))
            contiguous = [k for k in outputs if arrays.contiguous and f"{part.name}:{k}" in engine_inputs]
            returned = [k for k in outputs if f"{part.name}:{k}" in target.partitions.outputs]
            parts[part.name] = TorchPart(graphs[path], [weights[slot] for slot in part.weights], contiguous, returned)
        return parts, {slot: weights[slot] for slot in flowing}


def target_to_run(index: PackageIndex, target: PackedTarget | None) -> PackedTarget:
    """Return the target whose partitions run: `target`, or for None the target that needs no engines. Raises
    NoFittingTarget."""
    result = target or index.target_without_engines
    if result is None:
        raise NoFittingTarget(
            f"the package of {index.model!r} has no reference program, and engines do not run on a CPU",
            hint=no_reference_hint(),
        )
    return result


def needed_files(package: Package, target: PackedTarget | None) -> list[str]:
    """List the files that `target` needs to run, or for None the files that a run without engines needs. Raises
    NoFittingTarget."""
    index = package.index
    to_run = target_to_run(index, target)
    parts = [part for part in to_run.partitions.partitions if target is None or part.kind == "torch"]
    slots = flowing_weights(to_run.partitions).union(*(part.weights for part in parts))
    names = [to_run.programs[part.graph] for part in parts]
    names += [index.weights[slot].path for slot in sorted(slots)]
    names += list(target.engines.values()) if target is not None else []
    return list(dict.fromkeys(names))


def _has_torch() -> bool:
    try:
        import torch  # noqa: F401
    except (ImportError, OSError):
        return False
    return True
