"""The screens of docs/terminal.md contain the expected lines, and each screen has a picture."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[3] / "docs"
SCREENS: dict[str, str] = dict(
    re.findall(r"<!-- screen ([\w-]+) -->\n```console\n(.*?)\n```\n", (DOCS / "terminal.md").read_text(), re.DOTALL)
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("first-build-running", r"⠋|⠙|⠹|⠸|⠼|⠴|⠦|⠧|⠇|⠏"),
        ("first-build", r"^done: \d+ run"),
        ("null-build", r"^up to date: "),
        ("changed-plan", r"^plan: 3 run, "),
        ("changed-layer", r"^done: 3 run, "),
        ("why", r" → "),
        ("failing-model", r"^  models/ranker\.py:11: "),
    ],
)
def test_a_screen_has_its_expected_line(name: str, expected: str) -> None:
    assert SCREENS[name].startswith("$ trtbuild ")
    assert re.search(expected, SCREENS[name], re.MULTILINE)
    picture = DOCS / "screens" / f"{name}.svg"
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert "http" not in picture.read_text().replace("http://www.w3.org/", "").replace("https://www.textualize.io", "")


def test_every_picture_belongs_to_a_screen() -> None:
    assert {path.stem for path in (DOCS / "screens").iterdir()} == set(SCREENS)
