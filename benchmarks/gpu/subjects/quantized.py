"""Compare int8 with float16 and float32 on ResNet-50 and BERT-base, each as one engine.

The models were calibrated and converted on a machine without a GPU. The GPU host builds the engines. All precisions of a
model have the same weights. The inputs are samples that the calibration has not used (`benchmarks.gpu.models.samples`).

Errors
1. *total*: the engine compared with the float32 model in PyTorch on the CPU.
2. *rounding*: the quantized model compared with the float32 model, both in PyTorch.
3. *engine*: the engine compared with the quantized model in PyTorch.
Errors 2 and 3 are measured only for the int8 model whose other layers are float32, because a CPU has no fast float16.
Each error has two numbers: the largest error, max|a-b| / max|b|, as in `verify`, and the mean error, ‖a-b‖ / ‖b‖.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figure import Check, Measurement, Ratio, Row, Value
from benchmarks.gpu.cases import Case, cases
from benchmarks.gpu.host import Host
from benchmarks.gpu.models import samples
from benchmarks.gpu.subjects.numerics import verify_rows
from benchmarks.gpu.timing import latencies

#: The name of a model → the function that yields its samples. In the project, ``<name>_<precision>`` is the model in one
#: precision.
FAMILIES: Mapping[str, Callable[..., Iterator[tuple[Any, ...]]]] = {"resnet": samples.images, "bert": samples.texts}
#: The precision whose times and results all other precisions are compared with.
_FLOAT = "float32"
#: The number, the size and the seed of the batches for errors. Timed batches have this seed, too. The calibration uses the
#: seed 0.
_BATCHES, _BATCH, _SEED = 4, 4, 1
#: The batch sizes that are timed: min and opt of the profile.
_TIMED_BATCHES = (1, 16)


def rows(host: Host) -> Iterator[Row]:
    yield from _build(host)
    built = [case for case in cases(host.quantized) if (case.package / "index.json").exists()]
    packages = [str(case.package) for case in built]
    yield from _guarded("verify", verify_rows(host, host.quantized, "its engines", packages))
    for family in FAMILIES:
        members = {case.name.removeprefix(f"{family}_"): case for case in built if case.name.startswith(f"{family}_")}
        for precision, case in members.items():
            yield Measurement(
                f"{case.name}: plan", Value(precision, sum(plan.stat().st_size for plan in _plans(case)), "B")
            )
        if _FLOAT in members:
            yield from _guarded(f"{family}: errors", _errors(family, members, host))
            yield from _guarded(f"{family}: times", _times(family, members, host))


def _guarded(what: str, found: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows `found`. An exception becomes a row, so that the other measurements still run."""
    try:
        yield from found
    except Exception as error:
        yield Check(f"{what}: measured", False, f"{type(error).__name__}: {error}"[:600])


def _build(host: Host) -> Iterator[Row]:
    """Build the models with the Python without torch if there is one, otherwise with this Python."""
    build = host.trtbuild(
        host.quantized, "build", "--json", "--keep-going", without_torch=host.python_without_torch is not None
    )
    (host.work / "build-quantized.json").write_text(build.stdout)
    (host.work / "build-quantized.stderr").write_text(build.stderr)
    document = json.loads(build.stdout)
    ran = {stage: count["run"] for stage, count in document["totals"].items() if count["run"]}
    hits = {stage: count["hit"] for stage, count in document["totals"].items() if count["hit"]}
    unexpected = set(ran) - {"engine", "package"}
    yield Check("quantized: only engine and package steps ran", not unexpected, f"ran {ran}, found {hits}")
    yield Measurement("quantized: the build", Value("wall time", document["duration_s"]))
    for step in document["steps"]:
        if step["verdict"] == "failed":
            yield Check(f"{step['id']}: built", False, step["error"]["text"])


def _errors(family: str, members: Mapping[str, Case], host: Host) -> Iterator[Row]:
    import torch

    import trtbuild

    inputs = list(FAMILIES[family](_BATCHES, _BATCH, seed=_SEED))
    with torch.inference_mode():
        without_quantizers = _results(trtbuild.load(members[_FLOAT].package, device="cpu").module(), inputs, "cpu")
        for case in members.values():
            engine = _results(trtbuild.load(case.package, device=host.device).module(), inputs, host.device)
            comparisons = {"total": (engine, without_quantizers)}
            if case.model.quantization is not None and case.model.precision == _FLOAT:
                program = _results(trtbuild.load(case.package, device="cpu").module(), inputs, "cpu")
                comparisons |= {"rounding": (program, without_quantizers), "engine": (engine, program)}
            for name, (actual, expected) in comparisons.items():
                largest, mean = errors_of(actual, expected)
                yield Measurement(f"{case.name}: {name}, largest error", Value("error", float(f"{largest:.2e}"), ""))
                yield Measurement(f"{case.name}: {name}, mean error", Value("error", float(f"{mean:.2e}"), ""))


def _results(module: Any, inputs: list[tuple[Any, ...]], device: str) -> Any:
    import torch

    return torch.cat([module(*(value.to(device) for value in values)).cpu().double() for values in inputs])


def errors_of(actual: Any, expected: Any) -> tuple[float, float]:
    """Return max|a-b| / max|b| and ‖a-b‖ / ‖b‖ of two float64 tensors of one shape."""
    difference = actual - expected
    return (
        float(difference.abs().max() / expected.abs().max()),
        float(difference.square().sum().sqrt() / expected.square().sum().sqrt()),
    )


def _times(family: str, members: Mapping[str, Case], host: Host) -> Iterator[Row]:
    import torch

    import trtbuild

    modules = {name: trtbuild.load(case.package, device=host.device).module() for name, case in members.items()}
    for batch in _TIMED_BATCHES:
        (values,) = FAMILIES[family](1, batch, seed=_SEED)
        inputs = [value.to(host.device) for value in values]
        candidates = {name: partial(module, *inputs) for name, module in modules.items()}
        with torch.inference_mode():
            times = latencies(candidates, host.synchronize, host.repeats)
        reference = times[_FLOAT]
        for name, time in times.items():
            yield Ratio(
                f"{family} batch {batch}: {name} compared with {_FLOAT}",
                Value(name, round(time.p50_us, 1), "µs"),
                Value(_FLOAT, round(reference.p50_us, 1), "µs"),
                note=f"p95 {time.p95_us:.0f} and {reference.p95_us:.0f} µs",
            )


def _plans(case: Case) -> list[Path]:
    (target,) = json.loads((case.package / "index.json").read_text())["targets"].values()
    return [case.package / path for path in target["engines"].values()]
