"""Render a report as one HTML page.

Rules
1. Names and messages come from manifests, models and servers. The template escapes them (autoescape). In the JSON
   element, ``<``, ``>``, ``&`` and ``'`` are written as escapes. The scripts never insert text as HTML.
2. The page's Content-Security-Policy allows no request, and only the script and the style sheet whose digests it names. So
   the page is safe even if rule 1 is broken.
3. Without JavaScript, the page shows the headline and the tables, with at most `MOST_ROWS` rows each.
"""

from __future__ import annotations

import base64
import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.cli.terminal.quantities import count, duration, size
from trtbuild.core.values.codec import encode
from trtbuild.errors import EnvironmentFault

if TYPE_CHECKING:
    from trtbuild.driver.reports.documents import Report

FOLDER = Path(__file__).parent
#: The scripts, in the order in which the page has them.
SCRIPTS = ("elements.js", "tables.js", "timeline.js", "overview.js", "steps.js", "models.js", "checks.js", "main.js")
#: The largest number of rows of a table without JavaScript.
MOST_ROWS = 2000

_HEADLINES = {
    "done": "Build done",
    "failed": "Build failed",
    "error": "Build ended with an error",
    "interrupted": "Build interrupted",
    "running": "Build not finished",
}


def require_jinja2() -> None:
    """Raise EnvironmentFault if jinja2 is not installed."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise EnvironmentFault("a report needs jinja2", hint="pip install 'trtbuild[report]'") from None


def render(report: Report) -> str:
    """The page of `report`. Raises EnvironmentFault if jinja2 is not installed."""
    require_jinja2()
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(duration=duration, size=size, count=count)
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    body = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{body}\n}})();\n'
    return environment.get_template("page.html").render(
        report=report,
        headline=_HEADLINES[report.status],
        data=_as_json(encode(report)),
        style=style,
        script=script,
        style_digest=_digest(style),
        script_digest=_digest(script),
        most_rows=MOST_ROWS,
    )


def _as_json(value: Any) -> Any:
    """`value` with the texts ``nan``, ``inf`` and ``-inf`` in place of numbers that JSON does not have.

    The measured error of a comparison may be such a number."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, list | tuple) else value


def _digest(text: str) -> str:
    """The digest of an inline element's text, in the form of a Content-Security-Policy."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
