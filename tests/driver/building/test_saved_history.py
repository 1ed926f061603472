"""The recipes that a build saves for later builds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trtbuild.core.planning.graph import Reason, Step
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.driver.building.build import _save_history
from trtbuild.driver.project.history import History
from trtbuild.driver.project.outcome import Outcome, WrittenOutput

WRITTEN = WrittenOutput("net", "plans", "dist/plans", True)


@pytest.mark.parametrize("written", [{}, {"net": []}, {"net": [WRITTEN]}], ids=["failed", "until", "written"])
def test_the_recipe_of_a_package_is_saved_only_if_its_outputs_were_written(
    written: dict[str, list[WrittenOutput]], tmp_path: Path
) -> None:
    """The recipe names the plans that the next build removes from ``dist``. After ``--until engine``, this folder still has
    the plans of an older package."""
    steps = {
        stage: Step(f"net/{stage}", "net", stage, "hit", Reason("hit", ""), recipe=Recipe(stage, 1, (("a", 1),)))
        for stage in ("lower", "package")
    }
    plan: Any = SimpleNamespace(model=SimpleNamespace(name="net"), steps=steps)
    workspace: Any = SimpleNamespace(history=History(tmp_path), lookups=SimpleNamespace(save_trail=lambda: None))
    _save_history(workspace, Outcome({"net": plan}, written=written))
    history = History(tmp_path)
    assert history.recipe("net/lower") is not None
    assert (history.recipe("net/package") is not None) == bool(written.get("net"))
