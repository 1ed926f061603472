"""Before a step runs again, the store learns which of its records cannot be used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.driver.building.execution.test_executor import a_step
from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.building.steps import run_step as run_step_module


class Store:
    """Notes the keys of records that it must not use."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def refuse_record(self, key: str) -> None:
        self.refused.append(key)

    def put_record(self, record: Record, *, replace: bool) -> Record:
        return record


class Publication:
    def publish(self, records: list[Record], put: Any) -> Record:
        return cast(Record, put())


@pytest.mark.parametrize(("code", "is_refused"), [("corrupt", True), ("evicted", False), ("forced", False)])
def test_the_store_refuses_a_corrupt_record_so_that_remotes_replace_it(
    monkeypatch: pytest.MonkeyPatch, code: str, is_refused: bool
) -> None:
    step = replace(a_step("m", "package", "p"), reason=Reason(code, ""))  # type: ignore[arg-type]
    assert step.recipe is not None
    record = Record(step.recipe, {"index": Output("0" * 64, 1)})
    monkeypatch.setattr(run_step_module, "create_package_record", lambda *_: record)
    store, nothing = Store(), cast(Any, None)
    run_step_module.run_step(step, nothing, nothing, nothing, cast(Any, store), nothing, cast(Any, Publication()))
    assert store.refused == ([step.recipe.key] if is_refused else [])
