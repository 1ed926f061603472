"""Takes the screenshots for docs/report.md with Chromium: ``python -m docs.report_pictures REPORT.html``.

To make the report, build some examples in a copy of manifests/, run ``trtbuild bench vit --eager --device cpu``, change two
models, and run ``trtbuild build --verify --report REPORT.html``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cli.report_page.browser import Browser
from tests.programs import program

PICTURES = Path(__file__).parent / "pictures"

#: File → the view, the width and the height of the window, and whether dark mode is on.
VIEWS = {
    "report-overview.png": ("overview", (1180, 640), False),
    "report-timeline.png": ("timeline", (1180, 760), True),
    "report-why.png": ("steps/vit%2Fengine%2Flayers.0%40ada", (1180, 760), False),
    "report-models.png": ("models/three_parts", (1180, 820), False),
    "report-layers.png": ("layers/vit%2Flayers.0%40ada", (1180, 560), True),
    "report-checks.png": ("checks", (1180, 700), False),
    "report-phone.png": ("timeline", (390, 760), True),
}


def main(report: str) -> None:
    browser = Browser(program("chromium"))
    try:
        for name, (view, (width, height), dark) in VIEWS.items():
            browser.open(Path(report).absolute(), width=width, height=height, dark=dark)
            browser.run(f"location.hash = {view!r}; new Promise((done) => setTimeout(done, 300))")
            (PICTURES / name).write_bytes(browser.picture())
    finally:
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
