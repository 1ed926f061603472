"""Makes the screens of docs/terminal.md. ``make screens`` runs this program.

It builds a small project in an emulated terminal. Each screen becomes a text on the page, and a picture in docs/screens/.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.pty_screen import Screen

if TYPE_CHECKING:
    from rich.text import Text

DOCS = Path(__file__).parent
COLUMNS = 80

MANIFEST = """\
version: 1
defaults: {targets: [ada, blackwell]}
targets:
  ada: {sm: 89}
  blackwell: {sm: 120}
profiles:
  sentence: {tokens: {min: [1, 16, 64], opt: [4, 16, 64], max: [8, 16, 64]}}
  rows: {x: {min: [1, 32], opt: [8, 32], max: [64, 32]}}
models:
  encoder:
    source: {python: "models.encoder:build", kwargs: {depth: 3}}
    weights: encoder.safetensors
    inputs: {tokens: {}}
    dims: {batch: {at: [tokens.0]}}
    profiles: [sentence]
    partition: {granularity: ["layers.*"]}
  ranker:
    source: {python: "models.ranker:build"}
    inputs: {x: {}}
    dims: {batch: {at: [x.0]}}
    profiles: [rows]
"""

ENCODER = """\
from torch import nn


class Encoder(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(depth))
        self.norm = nn.LayerNorm(64)

    def forward(self, tokens):
        for layer in self.layers:
            tokens = layer(tokens)
        return self.norm(tokens)


def build(depth):
    return Encoder(depth).eval()
"""

RANKER = """\
from torch import nn


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(32, 64)
        self.score = nn.Linear(64, 1)

    def forward(self, x):
        return self.score(self.hidden(x).relu())


def build():
    return Ranker().eval()
"""

WEIGHTS = """\
import sys, torch
from safetensors.torch import load_file, save_file
from models.encoder import build
if sys.argv[1] == "new":
    torch.manual_seed(0)
    weights = {name: tensor.contiguous() for name, tensor in build(3).state_dict().items()}
else:
    weights = load_file("encoder.safetensors")
    weights["layers.1.linear1.weight"] *= 1.01
save_file(weights, "encoder.safetensors")
"""


def main() -> None:
    page = DOCS / "terminal.md"
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder:
        for name, screen in run_commands(Path(folder)).items():
            (DOCS / "screens" / f"{name}.svg").write_text(svg(name, screen))
            plain = "\n".join(line.rstrip() for line in screen.plain.splitlines())
            block = f"<!-- screen {name} -->\n```console\n{plain}\n```\n[In colour](screens/{name}.svg)\n<!-- end -->"
            text, number = re.subn(rf"<!-- screen {name} -->.*?<!-- end -->", lambda _: block, text, flags=re.DOTALL)  # noqa: B023
            if number != 1:
                raise SystemExit(f"docs/terminal.md has no place for the screen {name!r}")
    page.write_text(text)


def run_commands(project: Path) -> dict[str, Text]:
    """Run the commands in a new project. Return name → screen, in the order of the page."""
    (project / "models").mkdir()
    (project / "trtbuild.yaml").write_text(MANIFEST)
    (project / "models" / "encoder.py").write_text(ENCODER)
    (project / "models" / "ranker.py").write_text(RANKER)
    _write_weights(project, "new")
    screens = {}
    screens["first-build-running"], screens["first-build"] = _screens_of_first_build(project)
    screens["null-build"] = _screen(project, "build")
    _write_weights(project, "changed")
    screens["changed-plan"] = _screen(project, "plan")
    screens["changed-layer"] = _screen(project, "build")
    screens["why"] = _screen(project, "why", "encoder/engine/layers.1@ada")
    (project / "models" / "ranker.py").write_text(RANKER.replace("self.score(", "self.socre("))
    screens["failing-model"] = _screen(project, "build")
    return screens


def _write_weights(project: Path, state: str) -> None:
    """Write the weights file (`state` is ``new``), or change one matrix in it (any other `state`)."""
    subprocess.run([sys.executable, "-c", WEIGHTS, state], cwd=project, check=True, env=_environment(project))


def _environment(project: Path) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    cache = {"TRTBUILD_CACHE_DIR": str(project / "cache")}
    return {**inherited, **cache, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": str(project)}


def _run(screen: Screen, project: Path, *arguments: str, **watch: object) -> None:
    screen.feed(f"$ trtbuild {' '.join(arguments)}\r\n".encode())
    command = [sys.executable, "-m", "trtbuild", *arguments]
    screen.run(command, project, _environment(project), timeout_s=600, **watch)  # type: ignore[arg-type]


def _screen(project: Path, *arguments: str) -> Text:
    screen = _Screen(columns=COLUMNS)
    _run(screen, project, *arguments)
    return _text_of(screen)


def _screens_of_first_build(project: Path) -> tuple[Text, Text]:
    """Return two screens of a build: one during its engine steps, and one at its end."""
    screen = _Screen(columns=COLUMNS)
    frames: list[Text] = []

    def watch(screen: Screen, _: object) -> None:
        rows = screen.text().splitlines()[-3:]  # two running engine steps, and the line with the time
        if len(rows) == 3 and rows[-1].endswith(" s") and all("/engine/" in row for row in rows[:2]):
            frames.append(_text_of(screen))

    _run(screen, project, "build", watch=watch)
    middle_frame = frames[len(frames) // 2]
    return middle_frame, _text_of(screen)


class _Screen(Screen):
    """A screen that shows faint text in grey, because pyte ignores the attribute "faint"."""

    def feed(self, data: bytes) -> None:
        super().feed(data.replace(b"\x1b[2m", b"\x1b[90m"))


def _text_of(screen: Screen) -> Text:
    from rich.style import Style
    from rich.text import Text

    names = {"default": None, "brown": "yellow", "brightblack": "bright_black"}  # pyte's colour → rich's colour
    lines = []
    for cells in screen.cells():
        line = Text()
        row = [cells[column] for column in range(screen.columns)]
        for (colour, bold), run in groupby(row, lambda cell: (cell.fg, cell.bold)):
            line.append("".join(cell.data for cell in run), Style(color=names.get(colour, colour), bold=bold))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines)


def svg(name: str, screen: Text) -> str:
    """Return the screen as a picture, without references to other files."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console

    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(screen, soft_wrap=True)
    without_web_fonts = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title=name.replace("-", " "), code_format=without_web_fonts, unique_id=name)


if __name__ == "__main__":
    main()
