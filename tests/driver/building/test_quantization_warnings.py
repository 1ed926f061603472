"""The warnings about engines that compute in floats, and about layers that a calibration does not reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.conftest import FakeWorld, a_model
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.planning.verdicts import RECORDED
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.record import Record
from trtbuild.driver.building.quantization_warnings import float_engines, uncalibrated_layers

#: How many weights of an engine, and how many products, the model quantizes. ``fallbacks`` has "weights" or "products" if
#: the engine has all of them in floats.
PARTS = {"weights": 1, "products": 1}
PRODUCTS, BOTH = {**PARTS, "fallbacks": ["products"]}, {**PARTS, "fallbacks": ["weights", "products"]}


def plan(*quantized: Any) -> ModelPlan:
    """A plan whose engines have these values of ``quantized`` in their records, in turn.

    If a value is "left out", the record has no field ``quantized``."""
    world = FakeWorld()
    world.build(a_model())
    result = world.plan(a_model())
    engines = [step for step in result.steps.values() if step.stage == "engine"]
    for number, step in enumerate(engines):
        assert step.record is not None
        statistics = {"plan_bytes": 1, "quantized": quantized[number % len(quantized)]}
        if statistics["quantized"] == "left out":
            del statistics["quantized"]
        record = replace(step.record, provenance={"statistics": statistics})
        result.steps[step.id] = replace(step, record=record)
    assert len(engines) > 1
    return result


def test_the_warning_about_engines_that_multiply_floats_says_what_to_do() -> None:
    (warning,) = float_engines([plan(PRODUCTS)])
    assert warning.startswith("net@ada: tensorrt-rtx multiplies floats, although the model quantizes both factors")
    assert "quantize the weights only" in warning and "trtbuild inspect net --layers" in warning


def test_float_weights_are_reported_too() -> None:
    about_weights, about_products = float_engines([plan(BOTH)])
    assert "all quantized weights" in about_weights and "multiplies floats" in about_products


def test_engines_without_quantizers_do_not_count() -> None:
    assert len(float_engines([plan(PRODUCTS, None)])) == 1
    assert float_engines([plan(None)]) == []


@pytest.mark.parametrize("other", [{**PARTS, "fallbacks": []}, "left out", "x", {"fallbacks": "products"}, [], 3])
def test_there_is_no_warning_if_one_engine_is_quantized_or_unknown(other: Any) -> None:
    assert float_engines([plan(PRODUCTS, other)]) == []


def test_records_without_statistics_cause_no_warning() -> None:
    world = FakeWorld()
    world.build(a_model())
    assert float_engines([world.plan(a_model())]) == []


def test_layers_that_no_sample_reaches_are_named() -> None:
    result = FakeWorld().plan(a_model())
    recipe = keys.user_code(Declared("calibrate", ()), ())
    statistics: dict[str, Any] = {"uncalibrated": ["head", "tail"]}
    record = Record(recipe, {}, {"statistics": statistics})
    result.steps["m/calibrate"] = Step("m/calibrate", "m", "calibrate", "hit", RECORDED, recipe=recipe, record=record)
    (warning,) = uncalibrated_layers([result])
    assert "does not call head, tail: these 2 layers stay in float" in warning
    statistics["uncalibrated"] = []
    assert uncalibrated_layers([result]) == []
