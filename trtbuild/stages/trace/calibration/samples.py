"""Read the calibration data of a model, and check it.

Rules
1. A sample contains the inputs of one call of the model: as a mapping by input name, a tuple or list in the order of the
   inputs, or one tensor for a model with one input. A safetensors file has one tensor for each input, with the samples
   along its first axis.
2. A sample has the declared types, ranks and static sizes. Dynamic axes may have any size of at least 1. Floats are finite.
3. Each input of floats has a value other than 0 in at least one sample, because a scale of 0 is not possible.
4. A callable that yields the samples runs twice, and must yield the same samples, because other data would give other
   engines.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from trtbuild.core.model.quantization import Calibration
from trtbuild.core.model.spec import Input
from trtbuild.core.values.safetensors import read_tensors
from trtbuild.errors import SourceError
from trtbuild.stages.program.text import tensor_digest
from trtbuild.stages.raw_tensors import tensor_of
from trtbuild.stages.trace.calibration.job import CalibrateJob
from trtbuild.stages.trace.examples import dtype_name, dtype_of, seed_everything
from trtbuild.stages.trace.sources.python_source import call_source, import_source_object
from trtbuild.stages.trace.user_code.frames import Frames

#: The tensors of one call, in the order of the model's inputs.
Sample = tuple[torch.Tensor, ...]


def read_samples(job: CalibrateJob, project: Path, frames: Frames) -> list[Sample]:
    """The samples that a calibration uses; an empty list if the manifest has no `calibration`.

    Raises SourceError if the data cannot be read, breaks a rule (1 to 4), or has too few samples."""
    calibration = job.quantization.calibration
    if calibration is None:
        return []
    place = job.model.place("quantize.calibration", "quantize")
    if calibration.safetensors is not None:
        samples = _samples_of_file(project / calibration.safetensors, calibration, job)
    else:
        samples = list(_samples_of_callable(calibration, job, project, frames))
        again = _samples_of_callable(calibration, job, project, frames)
        pairs = itertools.zip_longest(map(_digest, samples), map(_digest, again))
        different = next((number for number, (one, other) in enumerate(pairs) if one != other), None)
        if different is not None:
            raise SourceError(
                f"{calibration.python} yields other values when it is called again (sample {different})",
                code="changing-data",
                hint="seed what it draws, sort what it lists, and do not use the time",
                **place,
            )
    if not samples:
        raise SourceError("the calibration has no samples", code="calibration-data", **place)
    if calibration.samples is not None and len(samples) < calibration.samples:
        raise SourceError(
            f"the calibration has {len(samples)} samples, and `samples` asks for {calibration.samples}",
            code="calibration-data",
            hint="provide more samples, or write a smaller number",
            **job.model.place("quantize.calibration.samples", "quantize"),
        )
    _refuse_zeros(samples, job)
    return samples


def _samples_of_callable(
    calibration: Calibration, job: CalibrateJob, project: Path, frames: Frames
) -> Iterator[Sample]:
    if calibration.python is None:
        raise AssertionError("a calibration has a callable or a file")
    data_job = job.data_job(calibration, calibration.python)
    place = data_job.place("source.python", "source")
    function = import_source_object(data_job, project, frames)
    if not callable(function):
        raise SourceError(
            f"{calibration.python} is not callable",
            code="calibration-data",
            hint="name a function that yields samples",
            **place,
        )
    seed_everything()
    result = call_source(function, data_job, frames)
    place = frames.definition_place(function) or place
    if not isinstance(result, Iterable) or isinstance(result, Mapping | str | torch.Tensor):
        raise SourceError(
            f"{calibration.python} returned a value of type {type(result).__name__}; it must yield samples",
            code="calibration-data",
            hint="yield a tuple of tensors, or a mapping from input names to tensors, for each sample",
            **place,
        )
    values = itertools.islice(_values_of(result, calibration.python, place, frames), calibration.samples)
    for number, value in enumerate(values):
        yield _sample(value, number, job, place)


def _values_of(result: Iterable[Any], name: str, place: dict[str, Any], frames: Frames) -> Iterator[Any]:
    try:
        yield from result
    except GeneratorExit:
        raise
    except BaseException as error:
        frames.raise_from(error, f"reading the samples of {name} fails", code="calibration-data", fallback=place)


def _sample(value: Any, number: int, job: CalibrateJob, place: Mapping[str, Any]) -> Sample:
    """Convert `value` to sample `number`. Raises SourceError (rules 1 and 2)."""
    inputs = job.model.inputs
    names = [entry.name for entry in inputs]
    if isinstance(value, Mapping):
        if set(value) != set(names):
            raise SourceError(
                f"sample {number} has the inputs {', '.join(map(str, value)) or '(none)'}; "
                f"the model has {', '.join(names)}",
                code="calibration-data",
                **place,
            )
        values = [value[name] for name in names]
    else:
        values = list(value) if isinstance(value, tuple | list) else [value]
        if len(values) != len(names):
            raise SourceError(
                f"sample {number} has {len(values)} values; the model has {len(names)} inputs: {', '.join(names)}",
                code="calibration-data",
                hint="yield one tensor for each input, in this order, or a mapping by name",
                **place,
            )
    return tuple(
        _checked_tensor(entry, shape, item, number, place)
        for entry, shape, item in zip(inputs, job.model.shapes.shapes, values, strict=True)
    )


def _checked_tensor(
    entry: Input, shape: tuple[Any, ...], value: Any, number: int, place: Mapping[str, Any]
) -> torch.Tensor:
    """The tensor of one input in sample `number`. Raises SourceError (rule 2)."""

    def error(problem: str, hint: str | None = None) -> SourceError:
        text = f"input {entry.name!r} of sample {number} {problem}"
        return SourceError(text, code="calibration-data", hint=hint, **place)

    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise error(f"is a value of type {type(value).__name__}, not a tensor") from None
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        kinds = (("nested", tensor.is_nested), ("quantized", tensor.is_quantized), ("meta", tensor.is_meta))
        kind = next((name for name, is_kind in kinds if is_kind), str(tensor.layout).removeprefix("torch."))
        raise error(f"is a {kind} tensor", "yield tensors that have all their numbers: .to_dense() or .dequantize()")
    tensor = tensor.detach().to("cpu")
    if tensor.dtype is not dtype_of(entry.dtype):
        raise error(f"is {dtype_name(tensor.dtype)}, and the manifest declares {entry.dtype}")
    fits = len(shape) == tensor.dim() and all(
        size == axis if isinstance(axis, int) else size >= 1 for axis, size in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        declared = ", ".join(str(axis) if isinstance(axis, int) else "any" for axis in shape)
        raise error(
            f"has the shape {list(tensor.shape)}, and the manifest declares [{declared}]",
            "a sample is the input of one call, with its batch axis",
        )
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise error("has a value that is not finite (NaN or infinite)")
    return tensor.clone()


def _samples_of_file(path: Path, calibration: Calibration, job: CalibrateJob) -> list[Sample]:
    place = job.model.place("quantize.calibration.safetensors", "quantize")
    inputs = job.model.inputs
    try:
        tensors = {
            entry.name: tensor_of(entry.dtype, entry.shape, data) for entry, data in read_tensors(path.read_bytes())
        }
    except (OSError, ValueError) as error:
        text = f"{calibration.safetensors} cannot be read: {error}"
        raise SourceError(text, code="calibration-data", **place) from error
    names = [entry.name for entry in inputs]
    if set(tensors) != set(names):
        raise SourceError(
            f"{calibration.safetensors} has the tensors {', '.join(sorted(tensors)) or '(none)'}; "
            f"the model has the inputs {', '.join(names)}",
            code="calibration-data",
            hint="write one tensor for each input; its first axis counts the samples",
            **place,
        )
    counts = {name: len(tensor) if tensor.dim() else 0 for name, tensor in tensors.items()}
    if len(set(counts.values())) != 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        text = f"the tensors of {calibration.safetensors} have different numbers of samples: {listed}"
        raise SourceError(text, code="calibration-data", **place)
    count = min(counts[names[0]], calibration.samples or counts[names[0]])
    return [_sample({name: tensors[name][number] for name in names}, number, job, place) for number in range(count)]


def _refuse_zeros(samples: list[Sample], job: CalibrateJob) -> None:
    """Raise SourceError if an input of floats is 0 everywhere in all samples (rule 3)."""
    for entry, values in zip(job.model.inputs, zip(*samples, strict=True), strict=True):
        if values[0].is_floating_point() and not any(bool(value.any()) for value in values):
            raise SourceError(
                f"all values of input {entry.name!r} are 0 in all samples of the calibration",
                code="calibration-data",
                hint="calibrate with real data",
                **job.model.place("quantize.calibration", "quantize"),
            )


def _digest(sample: Sample) -> tuple[str, ...]:
    return tuple(map(tensor_digest, sample))
