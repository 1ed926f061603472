"""The first example of docs/state.md can be built and verified, and has the results of its PyTorch module."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import CommandLine

PAGE = (Path(__file__).parents[3] / "docs" / "state.md").read_text("utf-8")


def block(title: str) -> str:
    (text,) = re.findall(rf'```\w+ title="{re.escape(title)}"\n(.*?)```', PAGE, re.DOTALL)
    return str(text)


def test_the_example_runs_and_equals_the_original_module(command_line: CommandLine) -> None:
    for title in ("nets.py", "trtbuild.yaml", "use.py"):
        (command_line.project / title).write_text(block(title))
    documents = {}
    (console,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in console.splitlines():
        program, command, *arguments = line.removeprefix("$ ").split()
        assert program == "trtbuild"
        documents[command] = command_line(command, *arguments)
    assert documents["verify"]["models"][0]["status"] == "right"
    check = (
        "import runpy, torch\n"
        "torch.manual_seed(5)\n"
        "scores = runpy.run_path('use.py')['scores']\n"
        "import nets\n"
        "original = nets.build()\n"
        "torch.manual_seed(5)\n"
        "with torch.no_grad(): expected = [original(step) for step in torch.randn(10, 1, 8)][-1]\n"
        "torch.testing.assert_close(scores, expected)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", check], cwd=command_line.project, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
