"""``python -m tests.operators`` writes docs/aten-operators.md."""

from __future__ import annotations

from tests.operators.page import PAGE, page, tried

if __name__ == "__main__":
    PAGE.write_text(page(tried()), encoding="utf-8")
