"""Run the calibrate step: find the scales of a model's layers. In a build it runs in a child process that does nothing
else, and whose GPU is hidden, so the result does not depend on a GPU.

NVIDIA's Model Optimizer finds the scales (``modelopt.torch.quantization``). It has the methods and formats that TensorRT's
documentation describes. torchao rounds weights with its own tensor classes, for its own kernels; of these formats its
export path has int8 only.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trtbuild.core.recipes.dependency import Observation
from trtbuild.errors import EnvironmentFault, SourceError
from trtbuild.stages.trace.calibration.job import CalibrateJob
from trtbuild.stages.trace.calibration.layers import chosen_layers, configuration, rounds_inputs, weights_of
from trtbuild.stages.trace.calibration.samples import Sample, read_samples
from trtbuild.stages.trace.discovery.discovery import Discovery
from trtbuild.stages.trace.examples import call_arguments, seed_everything
from trtbuild.stages.trace.quantization.modelopt_quantizers import has_quantizers, read_quantizer
from trtbuild.stages.trace.quantization.quantizer import Quantizer
from trtbuild.stages.trace.quantization.stored import StoredQuantizers
from trtbuild.stages.trace.run import ProcessState
from trtbuild.stages.trace.sources.reading import read
from trtbuild.stages.trace.user_code.frames import Frames

#: Methods that change weights, too.
_CHANGING_METHODS = ("smoothquant", "awq")


@dataclass(frozen=True)
class CalibrationResult:
    """The quantizers of a model as bytes (`StoredQuantizers`), and the dependencies of the calibration.

    `uncacheable` is the reason why the result must not be stored; None if it may be stored."""

    quantizers: bytes
    observations: tuple[Observation, ...]
    uncacheable: str | None


def calibrate(job: CalibrateJob, project: Path, process_state: ProcessState) -> CalibrationResult:
    """Calibrate the model of `job`. Raises SourceError, or EnvironmentFault if Model Optimizer is not installed."""
    project = project.resolve()
    source = job.model.source
    discovery = Discovery(project, source, process_state.environment, process_state.modules)
    frames = Frames(discovery.places, project)
    seed_everything()
    with torch.no_grad():
        with discovery.recording():
            module = read(job.model, project, frames)
            if not isinstance(module, torch.nn.Module):
                raise AssertionError("only a PyTorch module is calibrated")
            stored = find_quantizers(module, job, project, frames, discovery.import_library)
        observations = discovery.observations()
    return CalibrationResult(stored.to_bytes(), observations, discovery.uncacheable)


def find_quantizers(
    module: torch.nn.Module,
    job: CalibrateJob,
    project: Path,
    frames: Frames,
    import_library: Callable[[str], Any] = importlib.import_module,
) -> StoredQuantizers:
    """The quantizers of a loaded module, which this function changes. Raises SourceError or EnvironmentFault."""
    if has_quantizers(module):
        raise SourceError(
            "the model is quantized already, and the manifest has `quantize:`",
            code="quantization",
            hint="remove `quantize:`, or return the model from before",
            **job.model.place("quantize"),
        )
    layers = chosen_layers(module, job)
    samples = read_samples(job, project, frames)
    quantization = _import_calibrator(import_library)
    before = _digests(module) if job.quantization.method in _CHANGING_METHODS else {}
    settings = configuration(module, layers, job)

    def forward_loop(model: torch.nn.Module) -> None:
        for number, sample in enumerate(samples):
            _call(model, sample, number, job, frames)

    with _slow_path_of_attention():
        quantization.quantize(module, settings, forward_loop if samples else None)
        if job.quantization.method == "entropy":
            calibration = importlib.import_module("modelopt.torch.quantization.model_calib")
            calibration.enable_stats_collection(module)
            forward_loop(module)
            calibration.finish_stats_collection(module, method="entropy")
    quantizers, unused = _quantizers_of(module, layers, job)
    after = weights_of(module)
    changed = {name: after[name] for name, digest in before.items() if _digest(after[name]) != digest}
    return StoredQuantizers(quantizers, changed, tuple(unused))


def _import_calibrator(import_library: Callable[[str], Any]) -> Any:
    try:
        return import_library("modelopt.torch.quantization")
    except ImportError as error:
        raise EnvironmentFault(
            f"`quantize:` needs nvidia-modelopt, which cannot be imported: {error}",
            hint="pip install 'trtbuild[quantize]'",
        ) from error


def _call(module: torch.nn.Module, sample: Sample, number: int, job: CalibrateJob, frames: Frames) -> None:
    args, kwargs = call_arguments(job.model.inputs, sample)
    try:
        module(*args, **kwargs)
    except BaseException as error:
        place = job.model.place("quantize.calibration", "quantize")
        frames.raise_from(
            error, f"the model fails with sample {number} of the calibration", code="calibration-data", fallback=place
        )


@contextmanager
def _slow_path_of_attention() -> Iterator[None]:
    """Call the layers of nn.TransformerEncoder one by one. Its fast path calls no layer, so no quantizer would see data."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _quantizers_of(
    module: torch.nn.Module, layers: Sequence[str], job: CalibrateJob
) -> tuple[dict[str, dict[str, Quantizer]], list[str]]:
    """The quantizers of each layer, and the layers that were never called, which stay in float."""
    place = job.model.place("quantize", "source")
    result: dict[str, dict[str, Quantizer]] = {}
    unused = []
    for path in layers:
        layer: Any = module.get_submodule(path)
        if not hasattr(layer, "weight_quantizer"):  # Model Optimizer does not know this subclass
            unused.append(path)
            continue
        if rounds_inputs(job.quantization.format) and getattr(layer.input_quantizer, "_amax", None) is None:
            unused.append(path)
            continue
        roles = {"input": layer.input_quantizer, "weight": layer.weight_quantizer}
        found = {role: read_quantizer(f"{path}.{role}_quantizer", item, place) for role, item in roles.items()}
        result[path] = {role: quantizer for role, quantizer in found.items() if quantizer is not None}
    if not result:
        raise SourceError(
            f"the calibration calls none of the {len(layers)} layers that the format {job.quantization.format} rounds",
            code="quantization",
            **place,
        )
    return result, unused


def _digests(module: torch.nn.Module) -> Mapping[str, str]:
    return {name: _digest(value) for name, value in weights_of(module).items()}


def _digest(value: torch.Tensor) -> str:
    data = value.to("cpu").contiguous().reshape(-1)
    return hashlib.sha256(data.view(torch.uint8).numpy().tobytes() if data.numel() else b"").hexdigest()
