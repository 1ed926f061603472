"""Patterns of module paths."""

from __future__ import annotations

import pytest

from trtbuild.core.values.module_paths import advice_for_unmatched, covering_module


@pytest.mark.parametrize(
    ("pattern", "path", "module"),
    [
        ("head", "head", "head"),
        ("head", "head.fc", "head"),
        ("head", "header", None),
        ("head", "net.head", None),
        ("*.norm", "encoder.layers.0.norm", "encoder.layers.0.norm"),
        ("*.norm", "encoder.norm.weight.x", "encoder.norm"),
        ("*.norm", "norm", None),
        ("*norm", "norm", "norm"),
        ("encoder.*", "encoder.layers.0.norm", "encoder.layers"),
        ("encoder.*", "encoder", None),
        ("layers.[01]", "layers.1.fc", "layers.1"),
        ("layers.?", "layers.11", None),
        ("layers.*.fc", "layers.1.mlp.fc", "layers.1.mlp.fc"),
        ("HEAD", "head", None),
        ("*", "a.b", "a"),
        ("*", "", None),
    ],
)
def test_a_pattern_covers_the_modules_that_it_matches_and_their_submodules(
    pattern: str, path: str, module: str | None
) -> None:
    assert covering_module(pattern, path) == module


def test_the_advice_names_the_nearest_path_or_pattern() -> None:
    paths = ["layers.0.norm", "layers.1.norm", "head"]
    known = "the module paths are: layers, layers.*, layers.*.norm, head"
    assert advice_for_unmatched("haed", paths) == f"did you mean 'head'? {known}"
    assert advice_for_unmatched("*.nrom", paths) == f"did you mean '*.norm'? {known}"
    assert advice_for_unmatched("zzz", paths) == known
    assert advice_for_unmatched("zzz", [""]) == "there are no module paths"
