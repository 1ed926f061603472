"""An open package for one device: the result of `trtbuild.load`."""

from __future__ import annotations

import contextlib
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
from trtbuild.runtime.calls.arguments import ArrayOperations
from trtbuild.runtime.calls.module import Runner, as_torch_module
from trtbuild.runtime.calls.state import State, StateLayout
from trtbuild.runtime.calls.stitching import Part, StitchedParts, value_weight_slots
from trtbuild.runtime.memory.device_memory import Memory
from trtbuild.runtime.packages.choice import no_reference_hint
from trtbuild.runtime.packages.package import Package


class PackageEngines(Protocol):
    """Creates engines on one GPU from plans (serialized engines). The driver layer implements this class, because the
    runtime does not import TensorRT."""

    memory: Memory

    def load(self, partition: Partition, plan: memoryview) -> None:
        """Create the engine of `partition` from the verified `plan`."""
        ...

    def part(self, partition: Partition, *, cuda_graphs: bool) -> Part:
        """Return a callable that runs the loaded engine of `partition`."""
        ...

    def store_kernels(self) -> None:
        """Store the kernels that TensorRT-RTX has compiled for this GPU."""
        ...

    def close(self) -> None: ...


class Loaded:
    """An open package, for one device. Its files have been read, and verified unless `trtbuild.load` got ``verify=False``.
    The first call of `module()`, `runner()` or `warmup()` creates the engines.

    `target` is the target whose engines run. On the CPU it is None, because PyTorch or onnxruntime computes the reference
    program there.
    """

    def __init__(
        self,
        package: Package,
        target: PackedTarget | None,
        files: Mapping[str, memoryview],
        create_engines: Callable[[], PackageEngines] | None,
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
        self._create_engines = create_engines
        self._engines: PackageEngines | None = None
        #: The objects that all runners share: the operations on arrays, partition → the part that PyTorch or onnxruntime
        #: computes, and slot (a weight's number) → value weight. A value weight is one that a part reads like an input,
        #: that the model returns, or with which a state begins.
        self._shared_by_runners: tuple[ArrayOperations, Mapping[str, Part], Mapping[int, Any]] | None = None
        self._runners: dict[bool, Runner] = {}
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        """The model's name."""
        return self.package.index.model

    @property
    def quantized(self) -> tuple[str, ...]:
        """The quantized types of the engines' networks, such as ``("int8",)``. Empty for a model without quantizers, and
        for a package of an early version of trtbuild, which did not record them."""
        return self.package.index.quantized

    @property
    def is_reference(self) -> bool:
        """Whether the reference program computes the whole model, on the CPU, without engines."""
        return self.target is None

    @property
    def provenance(self) -> Provenance:
        """The results of ``trtbuild verify`` for the exact bytes of this package."""
        return parse(self.package.read_unlisted(PROVENANCE_FILE), self.package.digest)

    def module(self, *, cuda_graphs: bool = False) -> Any:
        """Return the model: a ``torch.nn.Module`` if torch is installed, otherwise a callable. With `cuda_graphs`, each
        engine is captured as a CUDA graph for each set of shapes, and then replayed. Raises PackageError,
        ToolchainMissing, EngineError."""
        runner = self.runner(cuda_graphs=cuda_graphs)
        if self.is_reference or _has_torch():
            return as_torch_module(runner)
        return runner

    def runner(self, *, cuda_graphs: bool = False) -> Runner:
        """Return the runner that `module` calls. Calls with the same `cuda_graphs` return the same runner."""
        with self._lock:
            uses_graphs = cuda_graphs and not self.is_reference
            if uses_graphs not in self._runners:
                self._runners[uses_graphs] = self._create_runner(uses_graphs)
            return self._runners[uses_graphs]

    def warmup(self) -> None:
        """Run every profile at its opt, min and max shapes, with zeros. Then store the kernels that TensorRT-RTX has
        compiled for this GPU. On the CPU, do nothing."""
        runner = self.runner()
        if self._engines is None:
            return
        if self.package.index.state:
            runner = runner.session(advances=False)  # so that the state of `module()` does not change
        memory = self._engines.memory
        with memory.on_device():
            stream = memory.stream()
            for point in ("opt", "min", "max"):
                for profile in self.profiles:
                    arrays = {
                        entry.name: memory.zeros(getattr(shape, point), memory.dtype(entry.dtype), stream)
                        for entry, shape in zip(self.inputs, profile.shapes, strict=True)
                    }
                    runner.flat_outputs((), arrays)
            memory.synchronize(stream)
        self._engines.store_kernels()

    def close(self) -> None:
        """Free memory and engines. The modules of this package cannot be called afterwards."""
        with self._lock:
            engines = self._engines
            for runner in self._runners.values():
                runner.close()
            self._runners, self._engines, self._files, self._shared_by_runners = {}, None, None, None
            if engines is not None:
                engines.close()

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

    def _create_runner(self, cuda_graphs: bool) -> Runner:
        if self._files is None:
            raise PackageError(f"the package of {self.model!r} is closed", hint="load it again")
        if self._shared_by_runners is None:
            self._shared_by_runners = (
                self._load_on_cpu(self._files) if self.target is None else self._load_on_gpu(self._files)
            )
            self._files = {}  # engines have copied their plans, and each tensor keeps its file's bytes alive
        arrays, torch_parts, weights = self._shared_by_runners
        target, parts = target_to_run(self.package.index, self.target), dict(torch_parts)
        if self._engines is not None:
            for partition in target.partitions.partitions:
                if partition.name not in parts:
                    parts[partition.name] = self._engines.part(partition, cuda_graphs=cuda_graphs)
        index = self.package.index
        input_count = len(index.inputs) + len(index.state)
        stitched = StitchedParts(target.partitions, parts, weights, input_count, arrays.contiguous_copy)
        memory = self._engines.memory if self._engines is not None else None
        state = self._create_state(target, arrays, memory, weights, bool(torch_parts)) if index.state else None
        return Runner(index, stitched, arrays, memory, self.target.name if self.target else None, state)

    def _create_state(
        self,
        target: PackedTarget,
        arrays: ArrayOperations,
        memory: Memory | None,
        weights: Mapping[int, Any],
        has_views: bool,
    ) -> State:
        index = self.package.index
        first_values = [weights[entry.slot] for entry in index.state]
        layout = StateLayout.of(index, target.partitions, first_values, has_views=has_views)
        wait = None if memory is None else lambda reader, writer: memory.wait(reader=reader, writer=writer)
        return State(layout, arrays, wait)

    def _load_on_cpu(
        self, files: Mapping[str, memoryview]
    ) -> tuple[ArrayOperations, Mapping[str, Part], Mapping[int, Any]]:
        from trtbuild.runtime.calls.torch_arrays import HostArrayOperations

        arrays = HostArrayOperations()
        return arrays, *self._create_torch_parts(
            target_to_run(self.package.index, None), files, arrays, all_partitions=True
        )

    def _load_on_gpu(
        self, files: Mapping[str, memoryview]
    ) -> tuple[ArrayOperations, Mapping[str, Part], Mapping[int, Any]]:
        target = self.target
        if target is None or self._create_engines is None:
            raise AssertionError("there is a target, but no function that creates engines")
        engines = self._create_engines()
        try:
            with engines.memory.on_device():
                parts_and_weights = self._create_torch_parts(target, files, engines.memory, all_partitions=False)
                shared = engines.memory, *parts_and_weights
                for partition in target.partitions.partitions:
                    if partition.kind == "tensorrt":
                        engines.load(partition, files[target.engines[partition.name]])
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is raised, not an error of `close`
                engines.close()
            raise
        self._engines = engines
        return shared

    def _create_torch_parts(
        self, target: PackedTarget, files: Mapping[str, memoryview], arrays: ArrayOperations, *, all_partitions: bool
    ) -> tuple[dict[str, Part], Mapping[int, Any]]:
        """Create the parts that PyTorch or onnxruntime computes: those of all partitions if `all_partitions` is True,
        otherwise of the Torch partitions. Returns partition → part, and slot → value weight (see `_shared_by_runners`)."""
        torch_partitions = [entry for entry in target.partitions.partitions if all_partitions or entry.kind == "torch"]
        value_slots = value_weight_slots(target.partitions) | {entry.slot for entry in self.package.index.state}
        slots = value_slots.union(*(partition.weights for partition in torch_partitions))
        if not torch_partitions and not slots:
            return {}, {}
        from trtbuild.runtime.calls.onnx_part import OnnxPart, is_onnx
        from trtbuild.runtime.calls.torch_part import ProgramGraph, TorchPart, require_torch, weight_tensors

        torch = require_torch(f"the package of {self.model!r} has parts that PyTorch computes")
        device = torch.device(arrays.device)
        index = self.package.index
        weights = weight_tensors({slot: index.weights[slot] for slot in slots}, files, device)
        engine_inputs = {
            source for entry in target.partitions.partitions if entry.kind == "tensorrt" for source, _ in entry.inputs
        }
        graphs: dict[str, ProgramGraph] = {}
        parts: dict[str, Part] = {}
        for partition in torch_partitions:
            name, path = partition.name, target.programs[partition.graph]
            if is_onnx(path):
                description = f"partition {name!r} of {self.model!r}"
                parts[name] = OnnxPart(files[path], [weights[slot] for slot in partition.weights], description)
                continue
            if path not in graphs:
                graphs[path] = ProgramGraph(files[path], device, f"partition {name!r} of {self.model!r}")
            graphs[path].check_counts(len(partition.weights), len(partition.inputs), len(partition.outputs))
            outputs = {number: f"{name}:{number}" for number in range(len(partition.outputs))}
            read_by_engines = [number for number, output in outputs.items() if output in engine_inputs]
            contiguous = read_by_engines if arrays.requires_contiguous else []
            returned = [number for number, output in outputs.items() if output in target.partitions.outputs]
            own_weights = [weights[slot] for slot in partition.weights]
            parts[name] = TorchPart(graphs[path], own_weights, contiguous, returned, protected=weights.values())
        return parts, {slot: weights[slot] for slot in value_slots}


def target_to_run(index: PackageIndex, target: PackedTarget | None) -> PackedTarget:
    """Return `target`, or for None the target that runs without engines. Raises NoFittingTarget if the package has no
    target of this kind."""
    result = target or index.target_without_engines
    if result is None:
        raise NoFittingTarget(
            f"the package of {index.model!r} has no reference program, and engines do not run on a CPU",
            hint=no_reference_hint(),
        )
    return result


def needed_files(package: Package, target: PackedTarget | None) -> list[str]:
    """List the programs, weights and engines that a run of `target` needs. If `target` is None, no engines run. A
    library of plugins is not in the list. Raises NoFittingTarget."""
    index = package.index
    to_run = target_to_run(index, target)
    torch_partitions = [entry for entry in to_run.partitions.partitions if target is None or entry.kind == "torch"]
    slots = {entry.slot for entry in index.state} | value_weight_slots(to_run.partitions)
    slots = slots.union(*(partition.weights for partition in torch_partitions))
    names = [to_run.programs[partition.graph] for partition in torch_partitions]
    names += [index.weights[slot].path for slot in sorted(slots)]
    names += list(target.engines.values()) if target is not None else []
    return list(dict.fromkeys(names))


def _has_torch() -> bool:
    try:
        import torch  # noqa: F401
    except (ImportError, OSError):
        return False
    return True
