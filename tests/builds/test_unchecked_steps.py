"""The next step starts before a trace or lower step has finished its checks. Records are published after all checks."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.conftest import CommandLine, ran
from tests.projects import copy_project
from trtbuild.errors import EntryCorrupt
from trtbuild.store.local.local import LocalStore

#: A model with more than 64 MiB of weights. The trace of such a model announces its program while the proof still compares
#: the program with the module.
NET = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4200, 4200)

    def forward(self, x):
        y = self.linear(x)
        return {result}


def build():
    torch.manual_seed(0)
    return Net().eval()
"""


def write_large_model(folder: Path, result: str) -> Path:
    copy_project(
        "mlp", folder, ("{min: [1, 8], opt: [4, 8], max: [8, 8]}", "{min: [1, 4200], opt: [4, 4200], max: [8, 4200]}")
    )
    (folder / "net.py").write_text(NET.format(result=result))
    return folder


def event_times(events: Path) -> dict[tuple[str, str], float]:
    """(event, step id) → the time of the event in seconds."""
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return {(line["event"], line["id"]): line["at_s"] for line in lines if line["event"].startswith("step_")}


def stored_stages(cache: Path) -> set[str]:
    store, stages = LocalStore(cache), set()
    for path in cache.glob("ac/*/*"):
        with suppress(EntryCorrupt):  # an entry of another kind
            record = store.get_record(path.name)
            stages.add(record.recipe.stage if record is not None else "")
    return stages


def keys_by_step(document: Any) -> dict[str, str]:
    return {step["id"]: step["key"] for step in document["steps"]}


def test_the_steps_after_a_large_model_run_beside_its_proof(command_line: CommandLine, tmp_path: Path) -> None:
    write_large_model(command_line.project, "torch.relu(y)")
    document = command_line("build", "-j", "2", "--events", str(tmp_path / "events"))
    at_s = event_times(tmp_path / "events")
    assert at_s["step_started", "net/lower"] < at_s["step_finished", "net/trace"]
    assert at_s["step_started", "net/partition"] < at_s["step_finished", "net/lower"]
    assert ran(command_line("build")) == {}, "all records are in the cache"
    assert stored_stages(command_line.cache) >= {"trace", "lower", "partition", "convert", "engine", "package"}
    one_by_one = CommandLine(command_line.project, tmp_path / "another cache", command_line.environment)
    document_one_by_one = one_by_one("build", "-j", "1", "--events", str(tmp_path / "events of -j 1"))
    at_s = event_times(tmp_path / "events of -j 1")
    assert at_s["step_finished", "net/trace"] <= at_s["step_started", "net/lower"], "-j 1 runs one step at a time"
    assert keys_by_step(document_one_by_one) == keys_by_step(document)


def test_a_proof_that_fails_leaves_no_record_and_no_output(command_line: CommandLine, tmp_path: Path) -> None:
    write_large_model(command_line.project, "y * 2 if x.shape[0] == 1 else y")
    document = command_line("build", "-j", "2", "--events", str(tmp_path / "events"), expect=1)
    at_s = event_times(tmp_path / "events")
    assert at_s["step_started", "net/lower"] < at_s["step_failed", "net/trace"], "lower started before the proof ended"
    (error,) = document["errors"]
    assert "the traced program is not the model" in error["text"], error
    assert all(step["verdict"] != "hit" for step in document["steps"])
    assert stored_stages(command_line.cache) == set()
    assert not (command_line.project / "dist").exists()
    assert command_line("plan")["steps"][0]["verdict"] == "run", "the trace has no record"
