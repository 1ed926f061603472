"""The colours of the page have enough contrast in both themes (WCAG 2.2, 1.4.3: 4.5 to 1 for text)."""

from __future__ import annotations

import re

import pytest

from trtbuild.cli.report_page.page import FOLDER

COLOURS = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", (FOLDER / "page.css").read_text()))

#: Pairs of a text colour and its background.
PAIRS = [
    *((text, back) for text in ("text", "soft", "accent") for back in ("card", "page", "faint")),
    *((name, f"{name}-back") for name in ("hit", "run", "failed", "skipped", "torch")),
    *((name, "card") for name in ("hit", "failed")),
]
STAGES = [name for name in COLOURS if name.startswith("stage-")]
#: The colour of text inside the bars of the timeline, in the light theme and in the dark theme.
INSIDE = ("#ffffff", "#0e1116")


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_have_enough_contrast(theme: int) -> None:
    def colour(name: str) -> str:
        return COLOURS[name].split(", ")[theme]

    assert len(STAGES) == 7
    too_low = [pair for pair in PAIRS if contrast(colour(pair[0]), colour(pair[1])) < 4.5]
    too_low += [(stage, "inside") for stage in STAGES if contrast(colour(stage), INSIDE[theme]) < 4.5]
    assert too_low == []


def test_contrast_is_right_for_known_colours() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_the_colours_inside_bars_are_those_of_the_style_sheet() -> None:
    style = (FOLDER / "page.css").read_text()
    assert ".timeline .inside { fill: #fff;" in style
    assert style.count(f".inside {{ fill: {INSIDE[1]}; }}") == 2
