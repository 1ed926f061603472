"""The documents that commands print with ``--json`` keep their form: the fields, their types, and their order.

`forms/` has the form of each document. With ``TRTBUILD_WRITE_DOCUMENTS=1`` the test writes the forms before it compares
them. Read the difference before you commit it, because other programs read these documents.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from tests.documents.schemas import validator
from trtbuild.cli.commands import documents

FORMS = Path(__file__).parent / "forms"
WRITE = bool(os.environ.pop("TRTBUILD_WRITE_DOCUMENTS", None))  # the commands must not inherit it


def test_every_document_has_its_recorded_form(document_texts: dict[str, str]) -> None:
    forms = {
        f"{name}.json": json.dumps(form_of(json.loads(text)), indent=1) + "\n" for name, text in document_texts.items()
    }
    if WRITE:
        FORMS.mkdir(exist_ok=True)
        for name, text in forms.items():
            (FORMS / name).write_text(text)
    assert forms == {path.name: path.read_text() for path in FORMS.iterdir()}


def test_every_document_matches_its_schema(document_texts: dict[str, str]) -> None:
    """A missing field, a wrong type and an unknown field are errors."""
    kinds = {kind.schema: kind.__name__ for kind in documents.DOCUMENTS if hasattr(kind, "schema")}
    for text in document_texts.values():
        document = json.loads(text)
        # A document with an empty list of steps is a `Failure`, although its `schema` is that of the command.
        kind = "Failure" if document.get("steps") == [] else kinds[document["schema"]]
        validator(kind).validate(document)


def form_of(value: Any) -> Any:
    """Return `value` with types instead of values. List entries of the same form appear once."""
    if isinstance(value, dict):
        return {re.sub(r"[0-9a-f]{32,}", "DIGEST", name): form_of(part) for name, part in value.items()}
    if isinstance(value, list):
        forms = [form_of(part) for part in value]
        return [
            form for position, form in enumerate(forms) if json.dumps(form) not in map(json.dumps, forms[:position])
        ]
    return "null" if value is None else type(value).__name__
