"""The precision of each module, which follows from the patterns of the manifest."""

from __future__ import annotations

import pytest

from trtbuild.core.model.precisions import Precisions, module_precisions
from trtbuild.errors import SourceError


def precisions(float32: str = "", float16: str = "", bfloat16: str = "") -> Precisions:
    """Return precisions with the default float16. The arguments are patterns, separated by spaces."""
    lists = {"float32": float32.split(), "float16": float16.split(), "bfloat16": bfloat16.split()}
    return Precisions("float16", module_precisions(lists))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("patterns", "path", "expected"),
    [
        (precisions(float32="*.norm"), "", "float16"),
        (precisions(float32="*.norm"), "a.fc", "float16"),
        (precisions(float32="*.norm"), "a.norm", "float32"),
        (precisions(float32="*.norm", bfloat16="encoder"), "encoder.norm", "float32"),
        (precisions(float32="*.norm", bfloat16="encoder"), "encoder.fc", "bfloat16"),
        (precisions(float32="*.norm", bfloat16="encoder.*"), "encoder.layers.0.norm", "float32"),
        (precisions(float32="decoder.*", bfloat16="decoder.head"), "decoder.head.fc", "bfloat16"),
        (precisions(float32="decoder.*", bfloat16="decoder.head"), "decoder.layers", "float32"),
        (precisions(bfloat16="decoder", float16="decoder.head"), "decoder.head", "float16"),
        (precisions(float32="a.b *.b"), "a.b", "float32"),
    ],
)
def test_the_pattern_of_the_innermost_module_wins_and_a_path_without_wildcards_wins_over_others(
    patterns: Precisions, path: str, expected: str
) -> None:
    assert patterns.of(path) == expected


def test_two_patterns_for_one_module_are_an_error() -> None:
    ambiguous = precisions(float32="*.norm", bfloat16="encoder.*")
    with pytest.raises(SourceError) as caught:
        ambiguous.of("encoder.norm.inner")
    assert caught.value.text == (
        "precision: module 'encoder.norm' is matched by '*.norm' (float32) and by 'encoder.*' (bfloat16)"
    )
    assert "list 'encoder.norm' itself under the precision" in str(caught.value.hint)
    assert caught.value.field == "precision.encoder.*"
    resolved = precisions(float32="*.norm encoder.norm", bfloat16="encoder.*")
    assert resolved.of("encoder.norm.inner") == "float32"


def test_a_pattern_that_matches_no_module_with_an_operator_is_an_error() -> None:
    precisions(float32="layers head").check(["layers.0.fc", "head"])
    with pytest.raises(SourceError, match=r"precision: 'hed' \(float32\) matches no module") as caught:
        precisions(float32="hed").check(["layers.0.fc", "head"])
    assert caught.value.field == "precision.hed"


def test_order_and_repetitions_have_no_meaning() -> None:
    assert precisions(float32="b a b").modules == precisions(float32="a b").modules
    assert precisions(float32="a").to_key() != precisions(bfloat16="a").to_key()


def test_names_begin_with_the_default() -> None:
    assert precisions().names == ("float16",)
    assert precisions(float32="a", float16="b", bfloat16="c").names == ("float16", "float32", "bfloat16")


def test_the_key_of_one_precision_for_all_modules_is_its_name() -> None:
    assert Precisions("float16").to_key() == "float16"
