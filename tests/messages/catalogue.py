"""The catalogue: text files with invalid projects, and with the messages that a user sees.

A text file contains cases. A case has the files of a project, and the messages of a command::

    === the name of the case
    --- trtbuild.yaml
    version: 1
    --- trtbuild build
    exit 2 ManifestError
    error: trtbuild.yaml:1:1: …

A line ``old ⇒ new`` below ``--- edit`` replaces text of `MANIFEST`; ``\\n`` is a line break. A file whose name ends in
``(escaped)`` is decoded with ``unicode_escape``. With ``TRTBUILD_WRITE_MESSAGES=1`` the tests write the messages into the
catalogue instead of comparing them. Read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import projects

CASES = Path(__file__).parent / "cases"
MANIFEST = (projects.FOLDER / "mlp" / "trtbuild.yaml").read_text()
WRITE = bool(os.environ.get("TRTBUILD_WRITE_MESSAGES"))


@dataclass
class Case:
    """One case. `files` maps paths to contents. `heading` is the last heading, and `output` the lines below it."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    heading: str = ""
    output: str = ""


def read(name: str) -> list[Case]:
    """Return the cases of ``cases/<name>.txt``."""
    cases = []
    for block in _text(name).split("\n=== ")[1:]:
        case_name, *sections = re.split(r"^--- ", block, flags=re.MULTILINE)
        case = Case(case_name.strip())
        for section in sections:
            heading, _, content = section.partition("\n")
            if section is sections[-1]:
                case.heading, case.output = heading, content.rstrip("\n")
            elif heading == "edit":
                case.files["trtbuild.yaml"] = _edited(content).encode()
            elif heading.endswith(" (escaped)"):
                escaped = content.rstrip("\n").encode().decode("unicode_escape").encode("latin-1")
                case.files[heading.removesuffix(" (escaped)")] = escaped
            else:
                case.files[heading] = content.encode()
        cases.append(case)
    return cases


def check_or_write(name: str, case: Case, output: str) -> None:
    """Compare `output` with ``case.output``. If `WRITE` is set, write `output` into the catalogue instead."""
    if not WRITE:
        assert output == case.output
        return
    blocks = _text(name).split("\n=== ")
    for number, block in enumerate(blocks):
        # block 0 is the text before the first case
        if number > 0 and block.partition("\n")[0].strip() == case.name:
            files, heading, _ = block.rpartition(f"--- {case.heading}\n")
            blocks[number] = f"{files}{heading}{output}\n" + ("\n" if number < len(blocks) - 1 else "")
    (CASES / f"{name}.txt").write_text("\n=== ".join(block.rstrip("\n") + "\n" for block in blocks))


def normalized(text: str, project: Path) -> str:
    """Replace the parts that differ between machines: paths, the version of torch, and counts such as ``(3 times)``."""
    text = text.replace(str(project), "PROJECT").replace(sys.executable, "PYTHON")
    text = re.sub(r"[^\s(]*/site-packages/", "SITE/", text)
    text = re.sub(r"\([0-9]+ times\)", "(N times)", text)
    return re.sub(r"this torch \([^)]*\)", "this torch (TORCH)", text)


def shown(error: Any) -> str:
    """Return the text that a terminal shows for an error of a ``--json`` document."""
    place = ":".join(str(error[part]) for part in ("file", "line", "column") if error.get(part) is not None)
    text = f"{place}: {error['text']}" if place else error["text"]
    return f"{text}\n  → {error['hint']}" if error["hint"] else text


def _text(name: str) -> str:
    return (CASES / f"{name}.txt").read_text(encoding="utf-8")


def _edited(edits: str) -> str:
    """`MANIFEST` after the edits of a case. The old text of each edit must occur exactly once."""
    text = MANIFEST
    for line in filter(None, edits.splitlines()):
        old, arrow, new = (part.replace("\\n", "\n") for part in line.partition(" ⇒ "))
        assert arrow and text.count(old) == 1, f"no edit of the manifest: {line}"
        text = text.replace(old, new)
    return text
