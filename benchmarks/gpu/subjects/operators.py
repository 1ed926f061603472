"""Compare the engines of the models of `operator_calls` with eager PyTorch, in one row for each model.

The reference is eager PyTorch on the CPU, which has no TF32. The engines do not use TF32 either. The row also shows the
error of eager PyTorch on the GPU. Integers and bools must be equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Check, Row
from benchmarks.gpu.host import Host, tolerance
from benchmarks.gpu.project import Hardware
from benchmarks.gpu.subjects.shapes import error_of
from benchmarks.projects import write

#: The step between compared sizes. The sizes of the profile are compared, too.
_SIZE_STEP = 3

_MANIFEST = """\
version: 1
include: [targets.yaml]
defaults: {{{defaults}, reference: true, partition: {{min_block_size: 1}}}}
profiles:
{profiles}models:
{models}"""
_MODEL = """\
  {name}:
    source: {{python: "models.operator_calls:build", kwargs: {{name: {name}}}}}
    inputs: {inputs}
    dims: {{n: {{at: [{places}]}}}}
    profiles: [{name}]
"""


def write_operators(folder: Path, hardware: Hardware) -> Path:
    from benchmarks.gpu.models.operator_calls import CALLS

    profiles = models = ""
    for name, calls in CALLS.items():
        profiles += f"  {name}:\n"
        for entry, shape in calls.shapes.items():
            low, usual, high = (shape.replace("n", str(size)) for size in calls.sizes)
            profiles += f"    {entry}: {{min: {low}, opt: {usual}, max: {high}}}\n"
        inputs = {
            entry: {"dtype": "int32", "range": list(calls.integers[entry])} if entry in calls.integers else {}
            for entry in calls.shapes
        }
        places = ", ".join(
            f"{entry}.{axis}"
            for entry, shape in calls.shapes.items()
            for axis, size in enumerate(shape.strip("[]").split(", "))
            if size == "n"
        )
        models += _MODEL.format(name=name, inputs=json.dumps(inputs), places=places)
    write(folder / "targets.yaml", hardware.manifest())
    write(folder / "models" / "__init__.py", "")
    source = (Path(__file__).parents[1] / "models" / "operator_calls.py").read_text()
    write(folder / "models" / "operator_calls.py", source)
    defaults = f"targets: [gpu], {hardware.builder('tf32: false')}"
    write(folder / "trtbuild.yaml", _MANIFEST.format(defaults=defaults, profiles=profiles, models=models))
    return folder


def rows(host: Host) -> Iterator[Row]:
    from benchmarks.gpu.models.operator_calls import CALLS

    project = host.operators
    # If there is a Python without torch, it builds: another version of torch would trace the models again.
    without_torch = host.python_without_torch is not None
    process = host.trtbuild(project, "build", "--json", "--keep-going", without_torch=without_torch)
    (host.work / "build-operators.json").write_text(process.stdout)
    (host.work / "build-operators.stderr").write_text(process.stderr)
    for step in json.loads(process.stdout)["steps"]:
        if step["verdict"] == "failed":
            yield Check(f"{step['id']}: built", False, step["error"]["text"][:600])
    for name in CALLS:
        if (project / "dist" / name / "index.json").exists():
            try:
                yield _compare(name, project / "dist" / name, host)
            except Exception as error:  # the other models are still compared
                yield Check(f"{name}: runs", False, f"{type(error).__name__}: {error}"[:600])


def _compare(name: str, package: Path, host: Host) -> Row:
    import torch

    import trtbuild
    from benchmarks.gpu.models.operator_calls import CALLS, build

    calls, eager = CALLS[name], build(name)
    loaded = trtbuild.load(package, device=host.device)
    module = loaded.module()
    low, _, high = calls.sizes
    errors: dict[int, tuple[float, int]] = {}  # number of an output → its worst error, and the size of the input
    eager_error, output_count = 0.0, 0
    with torch.no_grad():
        for size in sorted({*calls.sizes, *range(low, high, _SIZE_STEP)}):
            inputs = calls.inputs(size, torch.Generator().manual_seed(size))
            expected = eager(*inputs)
            on_device = tuple(value.to(host.device) for value in inputs)
            actual = tuple(value.cpu() for value in module(*on_device))
            eager_error = max(eager_error, error_of(tuple(v.cpu() for v in eager(*on_device)), expected))
            output_count = len(expected)
            for number, (output, expected_output) in enumerate(zip(actual, expected, strict=True)):
                error = error_of(output, expected_output)
                errors[number] = max(errors.get(number, (0.0, size)), (error, size))
    wrong = {
        number: (error, size)
        for number, (error, size) in errors.items()
        if error > tolerance("float16" if expected[number].dtype is torch.float16 else "float32")
    }
    kinds = [part.kind for part in loaded.target.partitions.partitions] if loaded.target else []
    worst, _ = max(errors.values())
    text = f"worst {worst:.1e}, eager on {host.device} {eager_error:.1e}"
    text += f"; {output_count} outputs; {kinds.count('tensorrt')} engines, {kinds.count('torch')} Torch partitions"
    text += "".join(f"; output {number}: {error:.1e} at {size}" for number, (error, size) in wrong.items())
    return Check(f"{name}: equal to eager at every compared size", not wrong, text)
