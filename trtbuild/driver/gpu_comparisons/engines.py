"""Run a package's engines on a GPU of this machine, and compare them with a reference: the results on the CPU.

Rules
1. Engines run as in `trtbuild.load`: they are loaded from a package directory, their files are verified, and the same
   runtime calls them.
2. PyTorch computes the reference on the CPU, in the precision of the partition's program. So the comparison includes the
   engine's rounding on the GPU (TF32), and does not depend on the way in which PyTorch computes on GPUs. For a model that
   was an ONNX file, onnxruntime computes the reference (`VerifyJob.by_onnx`).
3. The engines of a target run on the first GPU with the target's SM (GPU architecture). Without such a GPU, they run on
   the GPU with the lowest SM that the engines support. `--device` chooses the only GPU that is used; with ``cpu``, no
   engine runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trtbuild.core.model.comparisons import Report
from trtbuild.core.model.shapes import ShapePlan, Symbol, SymbolAxis
from trtbuild.core.model.verification import Point, Runner
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.partition.partitions import Partition
from trtbuild.core.planning.expand import symbol_values
from trtbuild.driver.packages.machine import gpu_number, this_machine
from trtbuild.errors import CallRefused, EngineError, NoFittingTarget, NotCompared, TrtbuildError, UsageError
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.calls.stitching import Part
from trtbuild.runtime.packages.choice import choose_target
from trtbuild.runtime.packages.package import Package
from trtbuild.stages.verify.job import VerifyJob
from trtbuild.toolchain.libraries import devices

if TYPE_CHECKING:
    from trtbuild.stages.verify.running import ReadBlob


class EngineParts(Protocol):
    """The part of `trtbuild.driver.packages.engines.PackageEngines` that `EngineRunner` uses."""

    memory: Any

    def part(self, partition: Partition, *, cuda_graphs: bool) -> Part: ...


@dataclass(frozen=True)
class TargetGpu:
    """The GPU of this machine on which a target's engines run: its number (`ordinal`) and its SM."""

    target: str
    ordinal: int
    sm: int


class EngineRunner:
    """A `trtbuild.stages.verify.running.PartRunner` that runs engines. Inputs and outputs are CPU tensors."""

    name: Runner = "engine"

    def __init__(self, engines: EngineParts, shapes: ShapePlan) -> None:
        self._engines = engines
        self._shapes = shapes
        self._parts: dict[str, Part] = {}

    def __call__(self, part: Partition, inputs: Sequence[Any], point: Point) -> list[Any]:
        """Return the outputs of a partition. Raises PartFailed with the message of TensorRT or of the runtime."""
        from trtbuild.stages.verify.running import PartFailed

        memory = self._engines.memory
        try:
            if part.name not in self._parts:
                self._parts[part.name] = self._engines.part(part, cuda_graphs=False)
            with memory.on_device():
                stream = memory.stream()
                call = Call(point.profile, symbol_values(self._shapes, point.sizes), stream, memory.device)
                device_inputs = [value.contiguous().to(memory.device) for value in inputs]
                results = self._parts[part.name](device_inputs, call)
                memory.synchronize(stream)
                return [value.cpu() for value in results]
        except (EngineError, CallRefused) as error:
            raise PartFailed(f"the engine fails: {error.text}") from error


def gpus_for_targets(
    package: Package, targets: Sequence[str], device: str | None = None
) -> Iterator[tuple[str, TargetGpu | str]]:
    """Yield (target, its GPU) for each target, or (target, the reason why it does not run here).

    `device` is the value of `--device`, in a form that `trtbuild.load` accepts. Raises UsageError for an unknown device.
    """
    gpus = usable_gpus(device)
    for name in targets:
        if name not in package.index.targets:
            yield name, "the package does not have this target"
        elif isinstance(gpus, str):
            yield name, gpus
        else:
            yield name, _gpu_for_target(package, name, gpus)


def usable_gpus(device: str | None) -> Sequence[tuple[int, int]] | str:
    """Return (ordinal, SM) of each GPU that may run engines, or the reason why no GPU may. Raises UsageError."""
    sms = devices.device_sms()
    if device is None:
        return list(enumerate(sms)) or "no GPU was found"
    ordinal = gpu_number(device)
    if ordinal is None:
        return "--device cpu runs no engine"
    if sms and ordinal >= len(sms):
        raise UsageError(
            f"--device {device}: there is no GPU {ordinal}, this machine has {len(sms)}",
            hint=f"devices are cuda:0 to cuda:{len(sms) - 1}",
        )
    return [(ordinal, sms[ordinal])] if sms else "no GPU was found"


def _gpu_for_target(package: Package, target: str, gpus: Sequence[tuple[int, int]]) -> TargetGpu | str:
    """Return the GPU for a target (rule 3), or the reason why none of `gpus` runs its engines."""
    target_sm = package.index.targets[target].sm
    reason = ""
    for ordinal, sm in sorted(gpus, key=lambda gpu: (*order_of_sm(gpu[1], target_sm), gpu[0])):
        try:
            choose_target(package.index, this_machine(sm, ordinal), target)
        except NoFittingTarget as error:
            reason = reason or error.text.rpartition("\n")[2].strip()  # the last line is about this target
            continue
        return TargetGpu(target, ordinal, sm)
    return reason


def order_of_sm(sm: int, target_sm: int) -> tuple[bool, int]:
    """The sort key of a GPU's SM in rule 3: first the SM of the target, then the other SMs in ascending order."""
    return sm != target_sm, sm


def machine_facts(gpu: TargetGpu, platform: str) -> Mapping[str, str]:
    """Return the platform, the GPU and its driver, for the key of a verification."""
    device = devices.use_gpu(gpu.ordinal)
    details = {} if device is None else {"device": device.name, "driver": device.driver}
    return {"platform": platform, "device": f"GPU {gpu.ordinal}", **details}


def reason_without_torch() -> str | None:
    """Return the reason why PyTorch cannot copy tensors to a GPU; None if it can."""
    if find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return "PyTorch here was built without CUDA"
    return f"PyTorch here cannot use a GPU: the GPU's driver may be too old for CUDA {torch.version.cuda}"


class OpenEngines:
    """The loaded engines of one target of a package, as a context manager. Raises TrtbuildError."""

    def __init__(self, package: Package, gpu: TargetGpu) -> None:
        from trtbuild.driver.packages.engines import PackageEngines

        target = package.index.targets[gpu.target]
        files = package.read(list(target.engines.values()))
        self.engines = PackageEngines(package, target, gpu.ordinal)
        try:
            with self.engines.memory.on_device():
                for partition in target.partitions.partitions:
                    if partition.kind == "tensorrt":
                        self.engines.load(partition, files[target.engines[partition.name]])
        except TrtbuildError:
            self.engines.close()
            raise

    def __enter__(self) -> EngineParts:
        return self.engines

    def __exit__(self, *_: object) -> None:
        self.engines.close()


def compare(
    job: VerifyJob, package: Package, gpu: TargetGpu, shapes: ShapePlan, read: ReadBlob, roots: Sequence[Path] = ()
) -> Report:
    """Run the engines of a package's target on `gpu`, and return the report of their comparison with the reference.

    `shapes` are those of the model's inputs. `read` reads the blobs of `job`. Operators from outside PyTorch are imported
    from the folders `roots`. Raises NotCompared or TrtbuildError.
    """
    from trtbuild.stages.verify.custom_operators import registered
    from trtbuild.stages.verify.run import verify
    from trtbuild.stages.verify.running import NotRunnable

    with registered(job.operators, roots), OpenEngines(package, gpu) as engines:
        runner = EngineRunner(engines, shapes)
        try:
            return verify(job, read, lambda *_: runner)
        except NotRunnable as error:
            raise NotCompared(str(error)) from error


def shapes_of(index: PackageIndex) -> ShapePlan:
    """The shapes of the inputs in the index of a package."""
    return ShapePlan(
        tuple(Symbol(dim.name, dim.min, dim.max, dim.max, dim.multiple_of) for dim in index.dims),
        tuple(tuple(_axis(size) for size in entry.shape) for entry in index.inputs),
    )


def _axis(size: Any) -> int | SymbolAxis:
    """Return an axis of an input: a number, or the symbol of a dim (a dynamic dimension of the model).

    For ``factor × symbol``, the factor is left out, because the sizes of a `Symbol` are multiples of it already.
    """
    if isinstance(size, int):
        return size
    operator, *operands = size
    if operator == "sym":
        return SymbolAxis(int(operands[0]))
    inner = next(operand for operand in operands if not isinstance(operand, int))
    return _axis(inner)
