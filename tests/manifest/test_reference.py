"""docs/manifest.md matches the code that generates it."""

from __future__ import annotations

from pathlib import Path

from trtbuild.manifest import reference
from trtbuild.manifest.format import fields
from trtbuild.manifest.format.base import Fields

DOCUMENT = Path(__file__).parents[2] / "docs" / "manifest.md"


def test_the_document_is_current() -> None:
    text = reference()
    update = 'python -c "import trtbuild.manifest as m; print(m.reference(), end=str())" > docs/manifest.md'
    assert DOCUMENT.read_text(encoding="utf-8") == text, update


def test_every_field_is_in_the_document() -> None:
    text = reference()
    kinds = [kind for kind in vars(fields).values() if isinstance(kind, type) and issubclass(kind, Fields)]
    names = {name for kind in kinds for name in kind.model_fields}
    assert len(names) > 50
    assert [name for name in names if f"| `{name}` |" not in text] == []
