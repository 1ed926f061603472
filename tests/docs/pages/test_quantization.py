"""The first example of docs/quantization.md can be built and verified, and its engines store the weights in 8 bits."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import CommandLine

PAGE = (Path(__file__).parents[3] / "docs" / "quantization.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_is_quantized_and_passes_verify(command_line: CommandLine) -> None:
    for name, text in zip(("nets.py", "data.py"), blocks("python"), strict=True):
        (command_line.project / name).write_text(text)
    (command_line.project / "trtbuild.yaml").write_text(blocks("yaml")[0])
    documents = {}
    for line in blocks("console")[0].splitlines():
        program, command, *arguments = line.removeprefix("$ ").split()
        assert program == "trtbuild"
        documents[command] = command_line(command, *arguments)
    (model,) = documents["verify"]["models"]
    assert model["status"] == "right"
    engines = documents["inspect"]["engines"]
    assert len(engines) == 2
    for engine in engines:  # each has the weights of two layers
        assert engine["weights"]["float8e4m3fn"] == 256 * 128 + 128 * 10
