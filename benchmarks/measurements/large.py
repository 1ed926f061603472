"""Build, push, pull and load a model with large weights (``--large-gb``), and measure the memory peak of each process.

The model is one engine of float32 layers, each with its own 8192 x 8192 weights. The package also has the reference
program for PyTorch. So the package has the weights twice: in the engine's plan, and for PyTorch.

Rules
1. The peak of a process is its VmHWM: the peak of its resident memory, including pages shared with other processes.
   Workers reset their VmHWM before each step. So a worker's peak is that of one step. The peak of several processes is
   the largest sum of their PSS, in which a shared page counts only once.
2. The build is compared with a plain script (`scripts/straight_large.py`). The script has two parts, export and compile,
   each in its own process. The engine step is compared with the compile part. The whole build is compared with the part
   that has the larger peak, because the parts run one after the other.
3. The files need about eight times the space of the weights. They are removed at the end.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import projects
from benchmarks.figure import Check, Measurement, Ratio, Row, Value
from benchmarks.measure import Run, run
from benchmarks.nginx import run_nginx
from benchmarks.session import Session, run_counts

_WIDTH = 8192
_LAYER_BYTES = 4 * _WIDTH * _WIDTH
_SCRIPT = Path(__file__).parent / "scripts" / "straight_large.py"

#: Loads and calls a package on the CPU, writes the results to a file, and prints the memory peak.
_LOAD = """\
import json, sys
import torch, trtbuild
model = trtbuild.load(sys.argv[1], device="cpu").module()
x = torch.linspace(-1, 1, 2 * int(sys.argv[2])).reshape(2, -1)
torch.save(model(x), sys.argv[3])
status = open("/proc/self/status").read().splitlines()
print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")))
"""

_EAGER = """\
import sys
import torch
sys.path.insert(0, "")
from models.wide import build
x = torch.linspace(-1, 1, 2 * int(sys.argv[2])).reshape(2, -1)
with torch.no_grad():
    expected = build(int(sys.argv[1]), int(sys.argv[2]))(x)
actual = torch.load(sys.argv[3])
print(float((actual - expected).abs().max() / expected.abs().max()))
"""


def rows(session: Session) -> Iterator[Row]:
    layers = math.ceil(session.sizes.large_gb * 1e9 / _LAYER_BYTES)
    project = projects.write_wide(session.empty_folder("large"), layers, _WIDTH)
    try:
        yield from _measure(session, project, layers)
    finally:
        shutil.rmtree(project, ignore_errors=True)


def _measure(session: Session, project: Path, layers: int) -> Iterator[Row]:
    weights = Value("weights", layers * _LAYER_BYTES, "B")
    session.say(f"  building with {weights}")
    build, document = session.document(project, "build", "--trace", "build.json", measure_memory=True)
    peaks, plan = _peaks(project), _plan(document)
    yield Check("large: the plan has the weights", plan["size"] >= weights.number, f"{plan['size'] / 1e9:.2f} GB")
    for stage in ("trace", "lower", "partition"):
        yield Ratio(f"large: peak of the {stage} step", Value("process", peaks[stage], "B"), weights, bound=1.5)
    yield Measurement(
        "large: the build", Value("wall", build.wall_s), note=f"cache {_size(project / 'cache') / 1e9:.2f} GB"
    )
    exported = _script(session, project, layers, "export")
    compiled = _script(session, project, layers, "compile")
    shutil.rmtree(project / "straight")
    yield Ratio("large: peak of the engine step", Value("process", peaks["engine"], "B"), compiled, bound=1.1)
    yield Ratio("large: peak of the engine step, to the weights", Value("process", peaks["engine"], "B"), weights)
    straight = Value("larger part of the script", max(exported.number, compiled.number), "B")
    yield Ratio("large: all processes of the build at once", Value("PSS", build.peak_bytes, "B"), straight)
    yield from _push_and_pull(session, project, weights, plan)
    yield from _load_and_call(session, project, layers, weights)


def _push_and_pull(session: Session, project: Path, weights: Value, plan: dict[str, Any]) -> Iterator[Row]:
    """Push the cache to nginx, and empty the cache. Then a build pulls the package from nginx."""
    with run_nginx(session.empty_folder("nginx-large")) as server:
        environment = {**session.environment(), "TRTBUILD_REMOTES": f"team=rw:{server.url}"}

        def call(*arguments: str) -> tuple[Run, Any]:
            command = run(
                [session.trtbuild, *arguments, "--json"], project, environment=environment, measure_memory=True
            )
            return command, json.loads(command.stdout)

        session.say("  pushing and pulling")
        pushed, _ = call("cache", "push")
        for name in ("cache", "dist", ".trtbuild"):
            shutil.rmtree(project / name)
        pulled, document = call("build")
        largest = max(request.received for request in server.requests() if request.method == "PUT")
    shutil.rmtree(session.work / "nginx-large")
    ran = run_counts(document)
    yield Check("large: pulled into an empty cache, runs nothing", not ran, f"ran: {ran or 'nothing'}")
    digest = _sha256(project / "dist" / "wide" / "engines" / "sm89" / "model.plan")
    yield Check("large: the pulled plan is the built one", digest == plan["sha256"], f"sha256 {digest[:16]}…")
    # chunks have at most 1 MiB; the largest request is the entry that lists all chunks of the trace or the package
    yield Measurement("large: largest request of the push", Value("", largest, "B"), bound=16e6)
    for name, command in (("push", pushed), ("pull and write the package", pulled)):
        memory = Value("PSS", command.peak_bytes, "B")
        yield Ratio(f"large: {name}", memory, weights, bound=0.5, note=f"{command.wall_s:.1f} s")


def _load_and_call(session: Session, project: Path, layers: int, weights: Value) -> Iterator[Row]:
    """Load the package on the CPU, call it, and compare its results with those of PyTorch."""
    session.say("  loading on the CPU")
    environment = session.environment()
    command = [sys.executable, "-c", _LOAD, "dist/wide", str(_WIDTH), "results.pt"]
    program = run(command, project, environment=environment)
    peak = Value("process", float(program.stdout.split()[-1]), "B")
    yield Ratio("large: peak of load and a call, on a CPU", peak, weights, bound=1.5, note=f"{program.wall_s:.1f} s")
    command = [sys.executable, "-c", _EAGER, str(layers), str(_WIDTH), "results.pt"]
    error = float(run(command, project, environment=environment).stdout.split()[-1])
    yield Check(
        "large: the loaded package computes what PyTorch does", error < 1e-5, f"relative difference {error:.1e}"
    )


def _script(session: Session, project: Path, layers: int, part: str) -> Value:
    session.say(f"  the script: {part}")
    (project / "straight").mkdir(exist_ok=True)
    command: list[str | Path] = [sys.executable, _SCRIPT, part, "straight", str(layers), str(_WIDTH)]
    script = run(command, project, environment=session.environment())
    return Value(f"script, {part}", float(script.stdout.split()[-1]), "B")


def _peaks(project: Path) -> dict[str, float]:
    """Return stage → memory peak in bytes, from the timeline that the build wrote."""
    document = json.loads((project / "build.json").read_text())
    events = document["traceEvents"] if isinstance(document, dict) else document
    return {
        event["cat"]: event["args"]["peak_rss_bytes"] for event in events if "peak_rss_bytes" in event.get("args", {})
    }


def _plan(document: Any) -> dict[str, Any]:
    (step,) = [step for step in document["steps"] if step["stage"] == "engine"]
    plan: dict[str, Any] = step["outputs"]["plan"]
    return plan


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
