"""``python -m tests.operators`` writes docs/aten-operators.md."""

from __future__ import annotations

from tests.operators.page import PAGE, page, results_of_all_rows

if __name__ == "__main__":
    PAGE.write_text(page(results_of_all_rows()), encoding="utf-8")
