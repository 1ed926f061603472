"""`build --events`, `build --report` and `trtbuild report` for done, failed, refused, interrupted and killed builds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builds.faults.test_interrupt import ENDLESS, NET
from tests.conftest import CommandLine
from tests.documents.schemas import validator
from tests.faults.processes import descendants, wait_until_gone
from tests.projects import copy_project, edit
from trtbuild.driver.event_log.events import KINDS
from trtbuild.driver.event_log.kept import MOST_BUILDS, kept_builds


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read a file of events. Fails if a line does not match its schema."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        validator(KINDS[event["event"]].__name__).validate(event)
    return events


def report_data(page: Path) -> Any:
    """The JSON document in the page of a report."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_events_and_the_report_agree_with_the_document_of_a_build(command_line: CommandLine) -> None:
    project = copy_project("torch_partition", command_line.project)
    document = command_line("build", "--verify", "--events", "events", "--report", "report.html")
    events = read_events(project / "events")
    assert events[0]["event"] == "build_started"
    assert events[-1]["event"] == "build_finished"
    assert (events[-1]["status"], events[-1]["totals"]) == ("done", document["totals"])
    assert [event["at_s"] for event in events] == sorted(event["at_s"] for event in events)
    assert read_events(kept_builds(project / ".trtbuild")[0]) == events

    report = report_data(project / "report.html")
    verdicts = {step["id"]: step["verdict"] for step in document["steps"]}
    assert {step["id"]: step["verdict"] for step in report["steps"]} == verdicts
    assert report["totals"] == {"run": len(verdicts)}
    assert [(row["target"], row["engines"], row["runs"]) for row in report["targets"]] == [
        ("ada", 2, 2),
        ("blackwell", 2, 2),
    ]
    (package,) = report["packages"]
    (cut,) = package["cuts"]
    assert [(part["name"], part["kind"], part["modules"]) for part in cut["partitions"]] == [
        ("p0", "tensorrt", {"0": 1}),
        ("p1", "torch", {"1": 1}),
        ("p2", "tensorrt", {"2": 1}),
    ]
    assert cut["partitions"][1]["reasons"] == {"aten.tanh.default": "in torch_executed_ops"}
    assert package["verified"][0]["status"] == "right"
    assert len(report["engines"]) == 4
    modules = {layer[3] for layer in report["layers"]}  # the fourth field of `LayerRow` is the module path
    assert modules == {"0", "2"}
    assert report["comparison"] is None

    _check_a_null_build(command_line, project)
    _check_a_failed_build(command_line, project)


def _check_a_null_build(command_line: CommandLine, project: Path) -> None:
    """A build without changes keeps no events, except with ``--events``."""
    command = [sys.executable, "-m", "trtbuild", "build"]  # it uses a snapshot (see `null_build`), unlike `CommandLine`
    variables = {**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)}
    subprocess.run(command, cwd=project, env=variables, check=True)  # writes the snapshot
    kept = len(kept_builds(project / ".trtbuild"))
    subprocess.run(command, cwd=project, env=variables, check=True)
    assert len(kept_builds(project / ".trtbuild")) == kept
    for _ in range(2):
        command_line("build", "--events", "events")
        assert read_events(project / "events")[-1]["status"] == "done"
    assert len(kept_builds(project / ".trtbuild")) == kept + 2


def _check_a_failed_build(command_line: CommandLine, project: Path) -> None:
    kept_before = len(kept_builds(project / ".trtbuild"))
    assert kept_before < MOST_BUILDS
    edit(project / "nets.py", "def build():\n", "def build():\n    raise ValueError('no <weights>')\n")
    command_line("build", "--report", "report.html", expect=1)
    report = report_data(project / "report.html")
    assert report["status"] == "failed"
    assert report["totals"]["failed"] == 1
    assert "no <weights>" in report["errors"][0]["text"]
    changed = {step["id"]: (step["verdict_before"], step["verdict_now"]) for step in report["comparison"]["steps"]}
    assert changed["ranker/trace"] == ("hit", "failed")

    written = command_line("report", "-o", "later.html")
    assert (written["status"], written["kept_builds"]) == ("failed", kept_before + 1)
    assert report_data(project / "later.html") == report
    assert command_line("report", "--build", "2")["status"] == "done"
    too_high = str(kept_before + 2)
    error = command_line("report", "--build", too_high, expect=2)["errors"][0]
    assert f"there is no build number {too_high}" in error["text"]

    history = command_line("cache", "stats")["history"]
    assert history["reasons"]["new"] >= 10  # the steps of the first build
    assert history["builds"] >= 4


def test_an_error_before_the_first_step_is_in_the_report(command_line: CommandLine) -> None:
    project = copy_project("mlp", command_line.project)
    command_line("build", "--frozen", "--report", "report.html", "--events", "events", expect=3)
    report = report_data(project / "report.html")
    assert report["status"] == "error"
    assert "--frozen is set" in report["errors"][0]["text"]
    edit(project / "trtbuild.yaml", "version: 1", "version: 1\nmodel: {}")
    command_line("build", "--report", "report.html", "--events", "events", expect=2)
    assert "model" in report_data(project / "report.html")["errors"][0]["text"]
    assert read_events(project / "events")[-1]["status"] == "error"
    assert command_line("build", "--report", "missing/report.html", expect=2)["errors"][0]["type"] == "UsageError"


def test_an_interrupted_build_counts_the_steps_until_then(command_line: CommandLine) -> None:
    project = copy_project("two_models", command_line.project)
    edit(project / "nets.py", "    return mlp(1)", "    open('started', 'w').close()\n    time.sleep(600)")
    edit(project / "nets.py", "import torch\n", "import time\n\nimport torch\n")
    command_line("build", "first", "--until", "lower")
    build = subprocess.Popen(
        [sys.executable, "-m", "trtbuild.cli.main", "build", "-j", "2", "--json", "--events", "events"],
        cwd=project,
        env={**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not ((project / "started").exists() and (project / "dist/first").exists()):
            assert build.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        build.send_signal(signal.SIGINT)
        document = json.loads(build.communicate(timeout=30)[0])
    finally:
        build.kill()
    totals = {
        stage: {verdict: number for verdict, number in numbers.items() if number}
        for stage, numbers in document["totals"].items()
    }
    assert totals["trace"] == totals["lower"] == {"hit": 1, "skipped": 1}
    assert totals["partition"] == totals["convert"] == totals["engine"] == totals["package"] == {"run": 1, "skipped": 1}
    assert read_events(project / "events")[-1]["totals"] == document["totals"]


@pytest.mark.parametrize("sent_signal", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_a_signal_ends_has_events_and_a_report(
    command_line: CommandLine, sent_signal: signal.Signals
) -> None:
    project = copy_project("mlp", command_line.project)
    (project / "net.py").write_text(NET.format(how=ENDLESS["sleeps"]))
    build = subprocess.Popen(
        [sys.executable, "-m", "trtbuild.cli.main", "build", "--quiet", "--events", "events"],
        cwd=project,
        env={**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)},
    )
    try:
        deadline = time.monotonic() + 60
        while not (project / "started").exists():
            assert build.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        children = descendants(build.pid)
        build.send_signal(sent_signal)
        build.wait(30)
        wait_until_gone(children)
    finally:
        build.kill()
    events = read_events(project / "events")
    last = {signal.SIGINT: "build_finished", signal.SIGKILL: "step_started"}[sent_signal]
    assert events[-1]["event"] == last
    status = {signal.SIGINT: "interrupted", signal.SIGKILL: "running"}[sent_signal]
    assert command_line("report")["status"] == status
    (step,) = [step for step in report_data(project / "trtbuild-report.html")["steps"] if step["verdict"] == "running"]
    assert step["id"].endswith("/trace")
