"""Run the calibrate step: find the scales of a model's layers. In a build this happens in a child process that sees no
GPU, so the result does not depend on a GPU.

NVIDIA's Model Optimizer (``modelopt.torch.quantization``) finds the scales, because it has the methods and formats that
TensorRT's documentation describes. torchao has only one of these formats in its export path, int8.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trtbuild.core.recipes.dependency import Observation
from trtbuild.errors import SourceError, TrtbuildError
from trtbuild.stages.trace.calibration.calibrator import import_calibrator, import_for
from trtbuild.stages.trace.calibration.changed_weights import ChangedWeights
from trtbuild.stages.trace.calibration.job import CalibrateJob
from trtbuild.stages.trace.calibration.layers import (
    CHANGING_METHODS,
    chosen_layers,
    configuration,
    rounds_inputs,
)
from trtbuild.stages.trace.calibration.samples import Sample, read_samples
from trtbuild.stages.trace.discovery.discovery import Discovery
from trtbuild.stages.trace.examples import call_arguments, seed_everything
from trtbuild.stages.trace.quantization.modelopt_quantizers import has_quantizers, quantizers_of, read_quantizer
from trtbuild.stages.trace.quantization.quantizer import Quantizer
from trtbuild.stages.trace.quantization.stored import StoredQuantizers
from trtbuild.stages.trace.run import ProcessState
from trtbuild.stages.trace.sources.reading import read
from trtbuild.stages.trace.user_code.frames import Frames, first_lines


@dataclass(frozen=True)
class CalibrationResult:
    """The quantizers of a model as bytes (`StoredQuantizers`), and the dependencies of the calibration.

    `uncalibrated` are the paths of the chosen layers that stay in float, because no sample reaches them, or because Model
    Optimizer does not know their class. `uncacheable` is the reason why the result must not be stored; None if it may be
    stored."""

    quantizers: bytes
    uncalibrated: tuple[str, ...]
    observations: tuple[Observation, ...]
    uncacheable: str | None


def calibrate(job: CalibrateJob, project: Path, process_state: ProcessState) -> CalibrationResult:
    """Calibrate the model of `job`. Raises SourceError, or EnvironmentFault if Model Optimizer is not installed."""
    project = project.resolve()
    source = job.model.source
    discovery = Discovery(project, source, process_state.environment, process_state.modules)
    frames = Frames(discovery.owners, project)
    seed_everything()
    with torch.no_grad():
        with discovery.recording():
            module = read(job.model, project, frames)
            if not isinstance(module, torch.nn.Module):
                raise AssertionError("only a PyTorch module is calibrated")
            stored, uncalibrated = find_quantizers(module, job, project, frames, partial(import_for, discovery))
        observations = discovery.observations()
    return CalibrationResult(stored.to_bytes(), uncalibrated, observations, discovery.uncacheable)


def find_quantizers(
    module: torch.nn.Module,
    job: CalibrateJob,
    project: Path,
    frames: Frames,
    import_library: Callable[[str], Any] = importlib.import_module,
) -> tuple[StoredQuantizers, tuple[str, ...]]:
    """The quantizers of a loaded module, and `CalibrationResult.uncalibrated`. The module is changed.

    Raises SourceError or EnvironmentFault."""
    if has_quantizers(module):
        raise SourceError(
            "the model is quantized already, and the manifest has `quantize:`",
            code="quantization",
            hint="remove `quantize:`, or return the model without its quantizers",
            **job.model.place("quantize"),
        )
    layers = chosen_layers(module, job)
    samples = read_samples(job, project, frames)
    quantization = import_calibrator(import_library)
    settings = configuration(module, layers, job)
    changed_weights = None
    if job.quantization.method in CHANGING_METHODS:
        changed_weights = ChangedWeights(module, partial(_call, module, samples[0], 0, job, frames))

    def forward_loop(model: torch.nn.Module) -> None:
        for number, sample in enumerate(samples):
            _call(model, sample, number, job, frames)

    try:
        with _slow_path_of_attention(), warnings.catch_warnings():
            warnings.simplefilter("default")  # the library warns about layers that stay in float
            quantization.quantize(module, settings, forward_loop if samples else None)
            if job.quantization.method == "entropy":
                _calibrate_by_entropy(module, forward_loop)
    except TrtbuildError:
        raise
    except Exception as error:  # the library raises AssertionError, RuntimeError and others
        raise SourceError(
            f"Model Optimizer cannot find the scales: {type(error).__name__}: {first_lines(str(error), 1)}",
            code="quantization",
            hint=f"try another method than {job.quantization.method}, or exclude layers",
            **job.model.place("quantize.method", "quantize"),
        ) from error
    quantizers, uncalibrated = _quantizers_of(module, layers, job)
    if changed_weights is None:
        return StoredQuantizers(quantizers), tuple(uncalibrated)
    rounding = [quantizer for _, quantizer in quantizers_of(module) if quantizer.is_enabled]
    for quantizer in rounding:
        quantizer.disable()  # it still divides its input by the factors of SmoothQuant or AWQ
    changed = changed_weights.find(job)
    for quantizer in rounding:
        quantizer.enable()
    return StoredQuantizers(quantizers, changed), tuple(uncalibrated)


def _calibrate_by_entropy(module: torch.nn.Module, forward_loop: Callable[[torch.nn.Module], None]) -> None:
    """Set the scales of inputs from histograms, and those of weights from their largest values.

    No algorithm of ``modelopt.torch.quantization.quantize`` reads the histograms, and Model Optimizer's
    `finish_stats_collection` takes one method for all quantizers. So this function calls each quantizer."""
    calibration = importlib.import_module("modelopt.torch.quantization.model_calib")
    histogram = importlib.import_module("modelopt.torch.quantization.calib").HistogramCalibrator
    calibration.enable_stats_collection(module)
    forward_loop(module)
    for quantizer in module.modules():
        if isinstance(quantizer, calibration.TensorQuantizer) and quantizer.is_enabled:
            method = ("entropy",) if isinstance(quantizer._calibrator, histogram) else ()
            if quantizer._calibrator.compute_amax(*method) is not None:
                quantizer.load_calib_amax(*method)
            quantizer.enable_quant()
            quantizer.disable_calib()


def _call(module: torch.nn.Module, sample: Sample, number: int, job: CalibrateJob, frames: Frames) -> Any:
    args, kwargs = call_arguments(job.model.inputs, sample)
    try:
        return module(*args, **kwargs)
    except BaseException as error:
        place = job.model.place("quantize.calibration", "quantize")
        frames.raise_from(
            error, f"the model fails with sample {number} of the calibration", code="calibration-data", fallback=place
        )


@contextmanager
def _slow_path_of_attention() -> Iterator[None]:
    """Switch off the fast path of nn.TransformerEncoder, because it calls no layer, so no quantizer would see data."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _quantizers_of(
    module: torch.nn.Module, layers: Sequence[str], job: CalibrateJob
) -> tuple[dict[str, dict[str, Quantizer]], list[str]]:
    """Path of a layer → ``input`` or ``weight`` → quantizer; and `CalibrationResult.uncalibrated`."""
    place = job.model.place("quantize", "source")
    result: dict[str, dict[str, Quantizer]] = {}
    uncalibrated = []
    for path in layers:
        layer: Any = module.get_submodule(path)
        is_known = hasattr(layer, "weight_quantizer")  # Model Optimizer does not know some subclasses
        if not is_known or (
            rounds_inputs(job.quantization.format) and getattr(layer.input_quantizer, "_amax", None) is None
        ):
            uncalibrated.append(path)
            continue
        roles = {"input": layer.input_quantizer, "weight": layer.weight_quantizer}
        hint = f"write {path!r} in `exclude`, or calibrate with other data"
        found = {role: read_quantizer(f"{path}.{role}_quantizer", item, place, hint) for role, item in roles.items()}
        result[path] = {role: quantizer for role, quantizer in found.items() if quantizer is not None}
    if not result:
        raise SourceError(
            f"the calibration calls none of the {len(layers)} layers that the format {job.quantization.format} rounds",
            code="quantization",
            **place,
        )
    return result, uncalibrated
