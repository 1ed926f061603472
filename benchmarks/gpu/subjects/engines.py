"""Build the engines and packages of the examples, with a Python that has no torch.

The cache of the project already has the results of all steps before the engine steps. ``trtbuild build --until convert``
filled it on a machine without a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks.figure import Check, Measurement, Row, Value
from benchmarks.gpu.host import Host


def rows(host: Host) -> Iterator[Row]:
    probe = host.python(host.examples, ["-c", "import torch"], without_torch=True)
    found = "torch is imported" if probe.returncode == 0 else probe.stderr.strip().rpartition("\n")[2]
    yield Check("the Python that builds has no torch", probe.returncode != 0, found)
    build = host.trtbuild(host.examples, "build", "--json", "--keep-going", without_torch=True)
    (host.work / "build.json").write_text(build.stdout)
    (host.work / "build.stderr").write_text(build.stderr)
    document = json.loads(build.stdout)
    ran = {stage: count["run"] for stage, count in document["totals"].items() if count["run"]}
    hits = {stage: count["hit"] for stage, count in document["totals"].items() if count["hit"]}
    yield Check("every package of the examples is built", build.returncode == 0, f"ran {ran}, found {hits}")
    for error in document["errors"]:
        print("   ", error.get("text"), "→", error.get("hint"))
    failed = [step for step in document["steps"] if step["verdict"] == "failed"]
    for step in failed:
        print(f"    {step['id']}: {step['error']['text']}")
    unexpected = {stage: count for stage, count in ran.items() if stage not in ("engine", "package")}
    yield Check("only engine and package steps ran", not unexpected, f"ran {ran}")
    yield Measurement("engine steps that ran", Value("engines", ran.get("engine", 0), "engines"))
    yield Measurement("the build", Value("wall time", document["duration_s"]))
    second = host.trtbuild(host.examples, "build", "--json", without_torch=True)
    totals = json.loads(second.stdout or "{}").get("totals", {})
    ran_in_second = sum(count["run"] for count in totals.values())
    runs_nothing = second.returncode == 0 and ran_in_second == 0
    yield Check("a second build runs nothing", runs_nothing, f"{ran_in_second} steps ran")
