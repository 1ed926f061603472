"""docs/manifest.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from trtbuild.manifest import reference
from trtbuild.manifest.format import fields

DOCUMENT = Path(__file__).parents[2] / "docs" / "manifest.md"


def test_the_document_is_current() -> None:
    made = reference()
    update = 'python -c "import trtbuild.manifest as m; print(m.reference(), end=str())" > docs/manifest.md'
    assert DOCUMENT.read_text(encoding="utf-8") == made, update


def test_every_field_is_in_it() -> None:
    text = reference()
    kinds = [kind for kind in vars(fields).values() if isinstance(kind, type) and issubclass(kind, fields.Fields)]
    names = {name for kind in kinds for name in kind.model_fields}
    assert len(names) > 50
    assert [name for name in names if f"| `{name}` |" not in text] == []
