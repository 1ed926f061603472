"""``range:`` of an input, from the manifest to everything that draws values; and what is built again when it changes."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file

from tests.conftest import CommandLine

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
    \"\"\"Rows of a table, whose ids begin at 100.\"\"\"

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(20, 3)
        self.linear = torch.nn.Linear(3, 3)
        self.eval()

    def forward(self, ids, scale):
        return torch.tanh(self.linear(self.table(ids - 100)) * scale.sqrt())
"""


def write(line: CommandLine, values: str | None) -> None:
    said = "" if values is None else f", range: {values}"
    (line.project / "trtbuild.yaml").write_text(MANIFEST.replace("RANGE", said))
    (line.project / "net.py").write_text(NET)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    base = tmp_path_factory.mktemp("ranges")
    (base / "project").mkdir()
    made = CommandLine(base / "project", base / "cache", {"TRTBUILD_REMOTES": ""})
    write(made, "[100, 119]")
    made("build")
    return made


def test_a_model_that_does_not_take_0_and_1_is_told_the_way_out(line: CommandLine) -> None:
    write(line, None)
    (error,) = line("build", "--keep-going", expect=1)["errors"]
    write(line, "[100, 119]")
    assert "index out of range" in error["text"] and error["file"] == "net.py"
    assert "`ids: {dtype: int64, range: [LOWEST, HIGHEST]}`" in error["hint"]


def test_a_range_that_is_too_wide_is_named(line: CommandLine) -> None:
    write(line, "[100, 200]")
    (error,) = line("build", expect=1)["errors"]
    write(line, "[100, 119]")
    assert "`ids: {range: [100, 200]}`" in error["hint"]


def test_another_range_is_another_trace_and_no_other_engine(line: CommandLine) -> None:
    keys = {step["id"]: step["key"] for step in line("build")["steps"]}
    write(line, "[101, 110]")
    document = line("build")
    write(line, "[100, 119]")
    ran = {step["stage"] for step in document["steps"] if step["verdict"] == "run"}
    assert ran == {"trace", "package"}
    assert {step["id"] for step in document["steps"] if step["key"] != keys[step["id"]]} == {"net/trace", "net/package"}
    (trace,) = [step for step in document["steps"] if step["stage"] == "trace"]
    assert {change["part"] for change in trace["reason"]["changed"]} == {"inputs[0].range[0]", "inputs[0].range[1]"}


def test_verify_run_and_inspect_know_it(line: CommandLine) -> None:
    line("build")
    index = line("inspect", "dist/net")["index"]
    assert [entry["range"] for entry in index["inputs"]] == [[100, 119], [2.0, 3.0]]
    assert "100 to 119" in line.run("inspect", "dist/net").stdout
    document = line("verify", "--points", "4")
    assert document["ok"]
    (cut,) = document["models"][0]["cuts"]
    worst = load_file(line.project / cut["worst_input"])
    assert int(worst["ids"].min()) >= 100 and int(worst["ids"].max()) <= 119
    assert float(worst["scale"].min()) >= 2 and float(worst["scale"].max()) <= 3
    ran = {entry["name"]: entry for entry in line("run", "dist/net", "--device", "cpu")["inputs"]}
    assert 100 <= ran["ids"]["min"] < ran["ids"]["max"] <= 119 and ran["scale"]["min"] >= 2
    line("bench", "dist/net", "--device", "cpu", "--duration", "0.01")
    write(line, "[100, 118]")
    again = line("verify", "--points", "4", expect=1)["models"][0]
    write(line, "[100, 119]")
    assert again["status"] == "missing"  # its trace, which draws values too


def test_packages_from_before_ranges_have_none(line: CommandLine) -> None:
    path = line.project / "dist/net/index.json"
    index = json.loads(path.read_text())
    for entry in index["inputs"]:
        del entry["range"]
    path.write_text(json.dumps(index))
    done = line.run("run", "dist/net", "--device", "cpu")
    assert done.returncode != 0  # 0 and 1 are drawn again
    path.unlink()
    line("build")
