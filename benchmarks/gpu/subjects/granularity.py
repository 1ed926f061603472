"""Compare ViT-B as one engine with ViT-B as 14 engines: one for each of its 12 layers, one before them and one after them.

With an engine for each layer, only the engine of a changed layer is built again. The benchmark measures how much slower
the 14 engines are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from benchmarks.figure import Check, Measurement, Ratio, Row, Value
from benchmarks.gpu.cases import cases
from benchmarks.gpu.host import Host, tolerance
from benchmarks.gpu.subjects.latency import compare_latency
from benchmarks.gpu.subjects.shapes import error_of
from benchmarks.gpu.timing import latencies


def rows(host: Host) -> Iterator[Row]:
    import torch

    import trtbuild

    build = host.trtbuild(host.vit, "build", "--json", "--keep-going")
    (host.work / "build-vit.json").write_text(build.stdout)
    (host.work / "build-vit.stderr").write_text(build.stderr)
    document = json.loads(build.stdout)
    ran = {stage: count["run"] for stage, count in document["totals"].items() if count["run"]}
    yield Check("ViT-B is built here, both ways and in both precisions", build.returncode == 0, f"ran {ran}")
    yield Measurement("the build of ViT-B", Value("wall time", document["duration_s"]))
    built = {case.name: case for case in cases(host.vit) if case.package.exists()}
    for suffix in ("", "_half"):
        whole, parts = built.get(f"whole{suffix}"), built.get(f"by_layer{suffix}")
        if whole is None or parts is None:
            continue
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        one, many = (
            trtbuild.load(whole.package, device=host.device).module(),
            trtbuild.load(parts.package, device=host.device).module(),
        )
        eager = whole.eager(host.device)
        for point in whole.points(count=0):
            args, kwargs = whole.inputs(point, host.device)
            with torch.inference_mode():
                expected = eager(*args, **kwargs)
                worst = max(error_of(one(*args, **kwargs), expected), error_of(many(*args, **kwargs), expected))
                yield Check(
                    f"ViT-B{suffix} {whole.describe(point)}: equal to eager",
                    worst <= tolerance(whole.model.precision),
                    f"worst {worst:.1e}",
                )
                candidates = {"one": partial(one, *args, **kwargs), "many": partial(many, *args, **kwargs)}
                timed = latencies(candidates, host.synchronize, host.repeats)
            yield Ratio(
                f"ViT-B{suffix} {whole.describe(point)}: 14 engines against one",
                Value("by layer", round(timed["many"].p50_us), "µs"),
                Value("one engine", round(timed["one"].p50_us), "µs"),
            )
        del eager
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        yield from compare_latency(whole, host)
