"""Commands draw the values of an input from its ``range:``, and a change of the range runs the trace again."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file

from tests.conftest import CommandLine

#: `write_project` replaces RANGE by ``, range: [LOWEST, HIGHEST]`` or by nothing.
MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles:
  rows:
    ids: {min: [1, 3], opt: [4, 3], max: [8, 3]}
    scale: {shape: [3]}
models:
  net:
    source: {python: "net:Net"}
    inputs:
      ids: {dtype: int64RANGE}
      scale: {range: [2, 3]}
    profiles: [rows]
    targets: [ada]
    reference: true
"""

NET = """\
import torch


class Net(torch.nn.Module):
    \"\"\"Rows of a table. The first row has the id 100.\"\"\"

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(20, 3)
        self.linear = torch.nn.Linear(3, 3)
        self.eval()

    def forward(self, ids, scale):
        return torch.tanh(self.linear(self.table(ids - 100)) * scale.sqrt())
"""


def write_project(command: CommandLine, values: str | None) -> None:
    text = "" if values is None else f", range: {values}"
    (command.project / "trtbuild.yaml").write_text(MANIFEST.replace("RANGE", text))
    (command.project / "net.py").write_text(NET)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    base = tmp_path_factory.mktemp("ranges")
    (base / "project").mkdir()
    command_line = CommandLine(base / "project", base / "cache")
    write_project(command_line, "[100, 119]")
    command_line("build")
    return command_line


def test_the_hint_shows_range_if_a_model_does_not_accept_the_values_0_and_1(command: CommandLine) -> None:
    write_project(command, None)
    (error,) = command("build", "--keep-going", expect=1)["errors"]
    write_project(command, "[100, 119]")
    assert "index out of range" in error["text"] and error["file"] == "net.py"
    assert "`ids: {dtype: int64, range: [LOWEST, HIGHEST]}`" in error["hint"]


def test_the_hint_names_a_range_that_is_too_wide(command: CommandLine) -> None:
    write_project(command, "[100, 200]")
    (error,) = command("build", expect=1)["errors"]
    write_project(command, "[100, 119]")
    assert "`ids: {range: [100, 200]}`" in error["hint"]


def test_a_changed_range_runs_the_trace_and_no_engine(command: CommandLine) -> None:
    keys = {step["id"]: step["key"] for step in command("build")["steps"]}
    write_project(command, "[101, 110]")
    document = command("build")
    write_project(command, "[100, 119]")
    ran = {step["stage"] for step in document["steps"] if step["verdict"] == "run"}
    assert ran == {"trace", "package"}
    assert {step["id"] for step in document["steps"] if step["key"] != keys[step["id"]]} == {"net/trace", "net/package"}
    (trace,) = [step for step in document["steps"] if step["stage"] == "trace"]
    assert {change["part"] for change in trace["reason"]["changed"]} == {"inputs[0].range[0]", "inputs[0].range[1]"}


def test_verify_run_bench_and_inspect_use_the_range(command: CommandLine) -> None:
    command("build")
    index = command("inspect", "dist/net")["index"]
    assert [entry["range"] for entry in index["inputs"]] == [[100, 119], [2.0, 3.0]]
    assert "100 to 119" in command.run("inspect", "dist/net").stdout
    document = command("verify", "--points", "4")
    assert document["ok"]
    (result,) = document["models"][0]["cuts"]  # one comparison for each way to divide the model into partitions
    worst_input = load_file(command.project / result["worst_input"])
    assert int(worst_input["ids"].min()) >= 100 and int(worst_input["ids"].max()) <= 119
    assert float(worst_input["scale"].min()) >= 2 and float(worst_input["scale"].max()) <= 3
    drawn = {entry["name"]: entry for entry in command("run", "dist/net", "--device", "cpu")["inputs"]}
    assert 100 <= drawn["ids"]["min"] < drawn["ids"]["max"] <= 119 and drawn["scale"]["min"] >= 2
    command("bench", "dist/net", "--device", "cpu", "--duration", "0.01")
    write_project(command, "[100, 118]")
    verified = command("verify", "--points", "4", expect=1)["models"][0]
    write_project(command, "[100, 119]")
    assert verified["status"] == "missing"  # the key of a trace contains the range, so this trace is not in the cache


def test_a_package_without_ranges_gets_values_0_and_1(command: CommandLine) -> None:
    path = command.project / "dist/net/index.json"
    index = json.loads(path.read_text())
    for entry in index["inputs"]:
        del entry["range"]
    path.write_text(json.dumps(index))
    (error,) = command("run", "dist/net", "--device", "cpu", expect=1)["errors"]
    assert "index out of range" in error["text"], "the model does not accept the values 0 and 1"
    path.unlink()
    command("build")
