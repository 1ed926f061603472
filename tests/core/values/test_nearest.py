"""The nearest name, and the text of a message about the allowed names."""

from __future__ import annotations

from trtbuild.core.values.nearest import MAX_LISTED, nearest, suggestion


def test_nearest_ignores_case_and_returns_none_for_distant_names() -> None:
    assert nearest("Precison", ["profiles", "precision"]) == "precision"
    assert nearest("ADA", ["ada", "Hopper"]) == "ada"
    assert nearest("zzz", ["ada", "hopper"]) is None
    assert nearest("x", []) is None


def test_a_suggestion_lists_the_nearest_name_and_the_allowed_names() -> None:
    assert suggestion("adda", ["ada", "hopper"], "targets") == "did you mean 'ada'? the targets are: ada, hopper"
    assert suggestion("zzz", ["ada"], "targets") == "the targets are: ada"
    assert suggestion("zzz", [], "targets") == "there are no targets"


def test_a_suggestion_is_short_but_considers_all_names() -> None:
    names = [f"model{number}" for number in range(MAX_LISTED)] + ["special", "other"]
    text = suggestion("specal", names, "models")
    assert text.startswith("did you mean 'special'?")
    assert text.endswith("and 2 more")
