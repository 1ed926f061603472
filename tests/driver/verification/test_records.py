"""What documents say of a verification."""

from __future__ import annotations

from typing import Any

from trtbuild.driver.verification import records


def test_engines_whose_conversion_is_wrong_or_that_are_built_without_tf32_get_no_advice_about_it() -> None:
    wrong = {"status": "wrong", "error": 2e-3, "tolerance": 1e-3, "precision": "float32"}
    engine = {"by": "engine", "status": "wrong", "targets": ["ada"], "tolerance": 5e-3, "partitions": [wrong]}
    engine["whole"] = wrong
    converted = {"by": "onnxruntime", "status": "right", "targets": ["ada", "blackwell"], "partitions": [], "whole": {}}

    def hints(cuts: list[Any], tf32: bool | None = True) -> int:
        found = records.with_tf32_hints(cuts, tf32)
        return sum("hint" in entry for cut in found for entry in (*cut["partitions"], cut["whole"]))

    assert hints([converted, engine]) == hints([engine], tf32=None) == 2
    assert hints([{**converted, "status": "wrong"}, engine]) == 0
    assert hints([{**converted, "status": "wrong", "targets": ["blackwell"]}, engine]) == 2
    assert hints([converted, engine], tf32=False) == 0
    half = {**engine, "whole": {**wrong, "precision": "float16"}}
    assert hints([converted, half]) == 1
