"""The history of steps is written, merged and read back, also from JSON with other whitespace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.values.codec import encode
from trtbuild.driver.project.history import History, LastRun

TRACE = Recipe("trace", 1, (("kwargs", {"width": 0.5, "$odd": [True, None, "\n"]}), ("file:net.py", "ab")))
LOWER = Recipe("lower", 1, (("graph", "cd"),))
RAN = LastRun(Reason("new", "a\nb"), 1.5)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / ".trtbuild"


def test_entries_are_read_back(state: Path) -> None:
    history = History(state)
    history.note_recipe("net/trace", TRACE, RAN, "it reads the clock")
    history.note_recipe("net/lower", LOWER)
    history.save()
    loaded = History(state)
    recipe = loaded.recipe("net/trace")
    assert recipe is not None
    assert recipe.same_as(TRACE)
    assert loaded.last_run("net/trace") == RAN
    assert loaded.uncacheable("net/trace") == "it reads the clock"
    assert loaded.last_run("net/lower") is None
    assert loaded.uncacheable("net/lower") is None
    assert loaded.recipe("net/package") is None


def test_the_file_is_json_by_step(state: Path) -> None:
    history = History(state)
    history.note_recipe("net/trace", TRACE, RAN)
    history.save()
    assert json.loads((state / "history.json").read_bytes()) == {
        "net/trace": {"recipe": TRACE.to_json(), "ran": encode(RAN)}
    }


def test_a_hit_keeps_the_entry_of_the_last_run(state: Path) -> None:
    history = History(state)
    history.note_recipe("net/trace", TRACE, RAN, "it reads the clock")
    history.save()
    history = History(state)
    history.note_recipe("net/trace", TRACE)
    history.save()
    assert History(state).last_run("net/trace") == RAN
    assert History(state).uncacheable("net/trace") is None


def test_an_unchanged_history_is_not_written(state: Path) -> None:
    history = History(state)
    history.note_recipe("net/trace", TRACE, RAN)
    history.save()
    before = (state / "history.json").stat()
    history = History(state)
    history.note_recipe("net/trace", TRACE)
    history.save()
    after = (state / "history.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_two_builds_merge_their_entries(state: Path) -> None:
    first, second = History(state), History(state)
    first.note_recipe("a/trace", TRACE)
    second.note_recipe("b/lower", LOWER)
    first.save()
    second.save()
    assert History(state).recipe("a/trace") is not None
    assert History(state).recipe("b/lower") is not None


def test_entries_are_those_of_the_file_that_was_opened(state: Path) -> None:
    """Another build may replace the file while this process plans."""
    first = History(state)
    first.note_recipe("net/trace", TRACE, RAN)
    first.save()
    opened = History(state)
    first.note_recipe("a/trace", LOWER)
    first.note_recipe("net/trace", LOWER, RAN)
    first.save()
    recipe = opened.recipe("net/trace")
    assert recipe is not None and recipe.same_as(TRACE)
    assert opened.steps() == ["net/trace"]


def test_an_entry_that_was_cut_off_counts_as_missing(state: Path) -> None:
    first = History(state)
    first.note_recipe("net/trace", TRACE, RAN)
    first.save()
    opened = History(state)
    (state / "history.json").write_bytes(b"{")
    assert opened.recipe("net/trace") is None
    opened.note_recipe("net/trace", TRACE)
    opened.save()
    assert History(state).recipe("net/trace") is not None


def test_a_file_with_other_whitespace_is_read_too(state: Path) -> None:
    state.mkdir()
    document = {"net/trace": {"recipe": TRACE.to_json(), "ran": encode(RAN)}, 'odd"\\name': {"recipe": LOWER.to_json()}}
    for text in (json.dumps(document), json.dumps(document, indent=1), json.dumps(document, separators=(",", ":"))):
        (state / "history.json").write_text(text)
        assert History(state).last_run("net/trace") == RAN
        assert History(state).recipe('odd"\\name') is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "{\n}", '{\n"a":{\n}', '{\n"a":{"recipe":\n}', '{"a": 1}', "\udcff"])
def test_a_damaged_file_counts_as_an_empty_history(state: Path, text: str) -> None:
    state.mkdir()
    (state / "history.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    history = History(state)
    assert history.recipe("a") is None
    assert history.last_run("a") is None
    assert history.uncacheable("a") is None
    history.note_recipe("net/lower", LOWER)
    history.save()
    assert History(state).recipe("net/lower") is not None
