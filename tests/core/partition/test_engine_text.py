"""The JSON text that describes an engine in a ``.pt2`` file."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.partition.engine_text import SCHEMA, EngineText
from trtbuild.core.partition.partitions import TensorType

TEXT = EngineText(
    model="net",
    partition="p0",
    inputs=(TensorType("float32", (("sym", 0), 8)),),
    outputs=(TensorType("float16", (("mul", 2, ("sym", 0)),)), TensorType("int64", ())),
    profiles=((ShapeRange((1, 8), (4, 8), (16, 8)),),),
    profile_names=("rows",),
    target="ada",
    sm=89,
    sms=(86, 89),
    toolchain="tensorrt-rtx",
    version="1.7.1.116",
    version_compatible=False,
    compatibility="exact",
    platform="linux-x86_64",
    plan="a" * 64,
    reference=None,
)


def test_a_text_is_read_back_unchanged() -> None:
    assert EngineText.from_text(TEXT.to_text()) == TEXT
    with_reference = replace(TEXT, reference="b" * 64)
    assert EngineText.from_text(with_reference.to_text()) == with_reference


def test_unknown_fields_are_ignored() -> None:
    assert EngineText.from_text(json.dumps({**json.loads(TEXT.to_text()), "later": [1]})) == TEXT


def test_rejects_another_format() -> None:
    with pytest.raises(ValueError, match=f"this version of trtbuild reads {SCHEMA}"):
        EngineText.from_text(TEXT.to_text().replace(SCHEMA, "trtbuild.engine/2"))


def test_a_text_that_is_nested_too_deeply_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        EngineText.from_text("[" * 100_000)
