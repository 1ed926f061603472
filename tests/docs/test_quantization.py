"""The example at the top of the page about quantization builds, and its results are right."""

from __future__ import annotations

import re
from pathlib import Path

import onnx

from tests.conftest import CommandLine

PAGE = (Path(__file__).parents[2] / "docs" / "quantization.md").read_text("utf-8")


def block(language: str) -> str:
    """The first code block of a language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_is_quantized_and_right(command_line: CommandLine) -> None:
    (command_line.project / "nets.py").write_text(block("python"))
    (command_line.project / "trtbuild.yaml").write_text(block("yaml"))
    for line in block("console").splitlines():
        program, *arguments = line.removeprefix("$ ").split()
        assert program == "trtbuild"
        document = command_line(*arguments)
        if arguments == ["verify"]:
            (model,) = document["models"]
            assert model["status"] == "right", model
    kinds = [node.op_type for node in onnx.load(command_line.project / "written" / "ada" / "model.onnx").graph.node]
    assert kinds.count("QuantizeLinear") == 2 and kinds.count("DequantizeLinear") == 2
