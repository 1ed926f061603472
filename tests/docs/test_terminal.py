"""The screens of docs/terminal.md are there, as text and as pictures, and show what the page says that they show."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCREENS: dict[str, str] = dict(
    re.findall(r"<!-- screen ([\w-]+) -->\n```console\n(.*?)\n```\n", (DOCS / "terminal.md").read_text(), re.DOTALL)
)


@pytest.mark.parametrize(
    ("name", "shown"),
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
def test_a_screen_shows_what_it_is_there_for(name: str, shown: str) -> None:
    assert SCREENS[name].startswith("$ trtbuild ")
    assert re.search(shown, SCREENS[name], re.MULTILINE)
    picture = DOCS / "screens" / f"{name}.svg"
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert "http" not in picture.read_text().replace("http://www.w3.org/", "").replace("https://www.textualize.io", "")


def test_no_picture_is_left_over() -> None:
    assert {path.stem for path in (DOCS / "screens").iterdir()} == set(SCREENS)
