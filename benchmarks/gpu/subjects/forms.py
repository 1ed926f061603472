"""Run a package with CUDA graphs, in several threads and by commands, and a `.pt2` file of its model in another process.

The commands are ``run``, ``bench`` and ``inspect --memory``. The results of all other runs are compared with those of eager
PyTorch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figure import Check, Measurement, Row, Value
from benchmarks.gpu.cases import Case, cases
from benchmarks.gpu.host import Host, tolerance
from benchmarks.gpu.subjects.shapes import error_of
from benchmarks.gpu.subjects.ways import compile_with_ranges, settings
from benchmarks.gpu.timing import latencies

#: The model of all measurements of this file. CUDA graphs are measured with two more models, too.
_MODEL = "class_token"
#: The number of threads, and of the calls in each thread.
_THREADS, _CALLS = 8, 25

_LOAD_PT2_PROGRAM = """\
import sys, torch, trtbuild
inputs = torch.load(sys.argv[2])
model = torch.export.load(sys.argv[1]).module()
torch.save([model(x.cuda()).cpu() for x in inputs], sys.argv[3])
assert not any(name.startswith("models") for name in sys.modules)
"""


def rows(host: Host) -> Iterator[Row]:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    by_name = {case.name: case for case in cases(host.examples)}
    forms: list[tuple[str, Callable[[], Iterator[Row]]]] = [
        ("threads", partial(_threads, by_name[_MODEL], host)),
        ("a pt2 file", partial(_pt2, by_name[_MODEL], host)),
        ("commands", partial(_commands, host)),
    ]
    for name in (_MODEL, "attention", "three_parts"):
        if by_name[name].package.exists():
            forms.append((f"{name}: CUDA graphs", partial(_graphs, by_name[name], host)))
    for name, form in forms:
        try:
            yield from form()
        except Exception as error:  # the other measurements still run
            yield Check(f"{name}: runs", False, f"{type(error).__name__}: {error}"[:800])


def _graphs(case: Case, host: Host) -> Iterator[Row]:
    import torch

    import trtbuild

    loaded = trtbuild.load(case.package, device=host.device)
    plain, graphed = loaded.module(), loaded.module(cuda_graphs=True)
    eager = case.eager(host.device)
    worst = 0.0
    with torch.inference_mode():
        for _ in range(2):  # the first round records the graphs, the second runs them
            for point in case.points(host.points):
                args, kwargs = case.inputs(point, host.device)
                got = graphed(*args, **kwargs)
                host.synchronize()
                worst = max(worst, error_of(got, eager(*args, **kwargs)))
        args, kwargs = case.inputs(case.points(count=0)[0], host.device)
        calls = {"plain": partial(plain, *args, **kwargs), "graph": partial(graphed, *args, **kwargs)}
        times = latencies(calls, host.synchronize, host.repeats)
    yield Check(f"{case.name}: CUDA graphs, equal to eager", worst <= tolerance(case.model.precision), f"{worst:.1e}")
    for name, time in times.items():
        yield Measurement(f"{case.name} at min, {name}", Value("call", round(time.p50_us, 1), "µs"))


def _threads(case: Case, host: Host) -> Iterator[Row]:
    """Run the package in threads, each with its own CUDA stream. All use the same points, but begin at different points."""
    import torch

    import trtbuild

    module = trtbuild.load(case.package, device=host.device).module()
    eager = case.eager(host.device)
    points = case.points(host.points)
    worst: list[float] = []

    def work(number: int) -> None:
        largest = 0.0
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(_CALLS):
                args, kwargs = case.inputs(points[(number + turn) % len(points)], host.device)
                got = module(*args, **kwargs)
                largest = max(largest, error_of(got, eager(*args, **kwargs)))
        worst.append(largest)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ok = len(worst) == _THREADS and max(worst) <= tolerance(case.model.precision)
    found = f"{len(worst)} of {_THREADS} threads done, {_CALLS} calls each, worst {max(worst, default=0):.1e}"
    yield Check(f"{case.name}: threads with one stream each", ok, found)


def _pt2(case: Case, host: Host) -> Iterator[Row]:
    import torch

    model = case.eager(host.device)
    fast = compile_with_ranges(model, settings(case, host.device), host.device, str(host.work / "ways-cache"))
    file, input_file, output_file = (host.work / name for name in (f"{case.name}.pt2", "inputs.pt", "outputs.pt"))
    fast.save(file)
    inputs = [torch.randn(batch, 196, 768) for batch in (1, 3, 32)]
    torch.save(inputs, input_file)
    process = host.python(host.work, ["-c", _LOAD_PT2_PROGRAM, str(file), str(input_file), str(output_file)])
    if process.returncode:
        raise RuntimeError(process.stderr[-1500:])
    with torch.inference_mode():
        expected = [model(x.to(host.device)).cpu() for x in inputs]
    worst = max(error_of(got, eager) for got, eager in zip(torch.load(output_file), expected, strict=True))
    yield Check(f"{case.name}.pt2 in another process", worst <= tolerance("float32"), f"worst {worst:.1e} at 3 batches")


def _commands(host: Host) -> Iterator[Row]:
    dist = Path("dist") / _MODEL
    for arguments in (
        ["run", str(dist), "--at", "max"],
        ["bench", str(dist), "--eager", "--duration", "0.2", "--warmup", "0.2"],
        ["inspect", str(dist), "--memory"],
    ):
        command = arguments[0]
        process = host.trtbuild(host.examples, *arguments, "--json")
        (host.work / f"{command}.json").write_text(process.stdout)
        last_error = "".join(process.stderr.strip().splitlines()[-1:])
        found = last_error or _keys(command, process.stdout)
        yield Check(f"trtbuild {' '.join(arguments)}", process.returncode == 0, found[:300])


def _keys(command: str, text: str) -> str:
    """Return the command and the top-level keys of its JSON document."""
    document: dict[str, Any] = json.loads(text)
    return f"{command}: {', '.join(document)}"
