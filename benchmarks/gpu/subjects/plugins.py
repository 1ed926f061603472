"""Compare the results and the times of eager PyTorch and of an engine that calls a TensorRT plugin.

The model was converted on a machine without a GPU. The GPU host builds the engine.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figure import Check, Measurement, Ratio, Row, Value
from benchmarks.gpu.cases import import_file
from benchmarks.gpu.host import Host

#: Numbers of regions (rectangles in the pictures): those of the profile, and one between its min and opt.
_REGIONS = (1, 7, 32, 128)
#: The largest allowed error, relative to eager's largest absolute value. TensorRT computes convolutions in TF32.
_TOLERANCE = 5e-3


def rows(host: Host) -> Iterator[Row]:
    project = host.plugins
    build = host.trtbuild(project, "build", "--json", "--keep-going")
    (host.work / "build-plugins.json").write_text(build.stdout)
    (host.work / "build-plugins.stderr").write_text(build.stderr)
    document = json.loads(build.stdout)
    ran = {stage: count["run"] for stage, count in document["totals"].items() if count["run"]}
    yield Check("plugins: only engine and package steps ran", set(ran) <= {"engine", "package"}, f"ran {ran}")
    for step in document["steps"]:
        if step["verdict"] == "failed":
            yield Check(f"{step['id']}: built", False, step["error"]["text"])
    package = project / "dist" / "regions"
    if not (package / "index.json").exists():
        return
    index = json.loads((package / "index.json").read_text())
    (target,) = index["targets"].values()
    kinds = [partition["kind"] for partition in target["partitions"]["partitions"]]
    yield Measurement("regions: partitions", Value(" and ".join(kinds), len(kinds), ""))
    yield Check("regions: the engine calls the plugin", "plugins" in index, json.dumps(index.get("plugins")))
    yield from _compare(host)


def _compare(host: Host) -> Iterator[Row]:
    import torch

    import trtbuild

    # loaded before `eager_model` registers the operator: the package does not need the operator
    loaded = trtbuild.load(host.plugins / "dist" / "regions", device=host.device)
    eager = eager_model(host.plugins).to(host.device)
    module = loaded.module()
    for count in _REGIONS:
        inputs = _inputs(count, host.device)
        with torch.inference_mode():
            expected, actual = eager(*inputs), module(*inputs)
        error = float((actual - expected).abs().max() / expected.abs().max())
        yield Check(f"regions: {count} regions equal eager's", error <= _TOLERANCE, f"relative error {error:.1e}")
    inputs = _inputs(_REGIONS[-1], host.device)
    times = {name: _milliseconds(call, inputs, host) for name, call in (("trtbuild", module), ("eager", eager))}
    yield Ratio(
        f"regions: {_REGIONS[-1]} regions, compared with eager",
        Value("trtbuild", round(times["trtbuild"], 3), "ms"),
        Value("eager", round(times["eager"], 3), "ms"),
    )


def eager_model(project: Path) -> Any:
    """Return the PyTorch model of the project. The import of its file registers the operator."""
    return import_file(project / "models" / "regions.py").build()


def _inputs(count: int, device: str) -> tuple[Any, ...]:
    import torch

    generator = torch.Generator().manual_seed(count)
    pictures = torch.randn(2, 3, 64, 64, generator=generator)
    corners = torch.rand(count, 4, generator=generator) * 32
    # The index of each region's picture.
    images = torch.randint(0, 2, (count,), generator=generator, dtype=torch.int32)
    return tuple(value.to(device) for value in (pictures, corners, images))


def _milliseconds(call: Callable[..., Any], inputs: tuple[Any, ...], host: Host) -> float:
    import torch

    times = []
    with torch.inference_mode():
        for _ in range(host.repeats):
            host.synchronize()
            started = time.perf_counter()
            call(*inputs)
            host.synchronize()
            times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)
