"""The first example of docs/operators.md can be built and verified, and has the results of its PyTorch module."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import CommandLine

PAGE = (Path(__file__).parents[3] / "docs" / "operators.md").read_text("utf-8")

#: Compares the result of the example's program with that of the example's PyTorch module.
CHECK = """
import runpy, torch
torch.manual_seed(5)
result = runpy.run_path("use.py")["result"]
import nets
torch.manual_seed(5)
x = torch.randn(5, 16)
torch.testing.assert_close(result, nets.build()(x))
"""


def test_the_example_runs_and_equals_the_original_module(command_line: CommandLine) -> None:
    for title, text in re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', PAGE, re.DOTALL):
        (command_line.project / title).write_text(text)
    documents = {}
    (console,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in console.splitlines():
        program, command, *arguments = line.removeprefix("$ ").split()
        assert program == "trtbuild"
        documents[command] = command_line(command, *arguments)
    assert documents["verify"]["models"][0]["status"] == "right"
    index = json.loads((command_line.project / "dist/net/index.json").read_bytes())
    kinds = [partition["kind"] for partition in index["targets"]["ada"]["partitions"]["partitions"]]
    assert sorted(kinds) == ["tensorrt", "tensorrt", "torch"]
    process = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=command_line.project, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
