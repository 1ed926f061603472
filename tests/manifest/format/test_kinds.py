"""The kinds of values: their accepted forms, and the messages about other values."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from trtbuild.manifest.format import kinds


def value(kind: Any, data: object) -> Any:
    return TypeAdapter(kind).validate_python(data, strict=True)


def message_for(kind: Any, data: object) -> str:
    with pytest.raises(ValidationError) as caught:
        value(kind, data)
    error = caught.value.errors()[0]
    context = error.get("ctx", {})
    return f"{context.get('text', error['msg'])} → {context.get('hint')}"


def assert_rejected(kind: Any, *values: object) -> None:
    for rejected in values:
        with pytest.raises(ValidationError):
            value(kind, rejected)


@pytest.mark.parametrize(
    ("data", "size_bytes"),
    [("1GiB", 1 << 30), (1 << 30, 1 << 30), ("1024MiB", 1 << 30), ("1 GiB", 1 << 30), ("0.5GiB", 1 << 29),
     ("1.5KiB", 1536), ("7B", 7), (" 2TiB ", 2 << 40), (1, 1)],
)  # fmt: skip
def test_accepts_sizes_in_bytes(data: object, size_bytes: int) -> None:
    assert value(kinds.Bytes, data) == size_bytes


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("1GB", "'1GB' is not a size in bytes → write 1GiB"),
        ("1.5g", "write 1.5GiB"),
        ("512 mb", "write 512MiB"),
        ("1Gi", "write 1GiB"),
        ("1073741824", "write a number of bytes"),
        ("all", "is not a size in bytes"),
        ("0.3B", "not a whole number of bytes"),
        ("-1GiB", "is not a size in bytes"),
        ("", "is not a size in bytes"),
        ("9999999TiB", "less than or equal"),
        (0, "greater than 0"),
        (True, "valid integer"),
        (1.0, "valid integer"),
    ],
)
def test_rejects_other_sizes_in_bytes(data: object, words: str) -> None:
    assert words in message_for(kinds.Bytes, data)


@pytest.mark.parametrize("sm", [75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121])
def test_accepts_known_sms(sm: int) -> None:
    assert value(kinds.Sm, sm) == sm


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (8.9, "write `sm: 89`"),
        ("8.9", "write `sm: 89`"),
        ("89", "write `sm: 89`"),
        ("sm_89", "write `sm: 89`"),
        ("SM90", "write `sm: 90`"),
        (12.0, "write `sm: 120`"),
        (9, "write `sm: 90`"),
        (88, "unknown SM 88 → did you mean 87? the SMs are: 75, 80"),
        (1000, "did you mean 121?"),
        (-3, "did you mean 75?"),
        ("ada", "must be a whole number, not 'ada'"),
        (True, "valid integer"),
        (None, "valid integer"),
    ],
)
def test_rejects_other_sms(data: object, words: str) -> None:
    assert words in message_for(kinds.Sm, data)


def test_versions_must_be_text() -> None:
    assert value(kinds.Version, "8.6.0") == "8.6.0"
    assert value(kinds.Version, "10.1.0.post1") == "10.1.0.post1"
    assert 'put it in quotes: version: "8.6"' in message_for(kinds.Version, 8.6)
    assert 'version: "10"' in message_for(kinds.Version, 10)
    assert_rejected(kinds.Version, "", ">=8", "latest", "8.6 ", "8..6")


@pytest.mark.parametrize("data", ["net:build", "models.vit:build", "a._b.c1:Net.make"])
def test_accepts_callables(data: str) -> None:
    assert value(kinds.CallableName, data) == data


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("models/vit.py:build", 'write "models.vit:build"'),
        ("models.vit.build", 'write "models.vit:build"'),
        ("models/vit.py", 'such as "models.vit:build"'),
        ("vit", 'such as "vit:build"'),
        ("vit:", "vit:build"),
        ("vit:build()", "`module.path:callable`"),
        ("a:b:c", "`module.path:callable`"),
        (":build", "`module.path:callable`"),
        ("1a:b", "`module.path:callable`"),
        ("vit:build\n", "`module.path:callable`"),
    ],
)
def test_rejects_other_callables(data: str, hint: str) -> None:
    assert hint in message_for(kinds.CallableName, data)


def test_operators_are_normalized_sorted_and_unique() -> None:
    data = [
        "torch.ops.aten.sort.stable",
        "aten.cumsum.default",
        "aten::mm",
        "aten.sort.stable",
        "torch.ops.aten.cumsum",
    ]
    assert value(kinds.Operators, data) == ["aten.cumsum", "aten.mm", "aten.sort.stable"]
    assert value(kinds.Operators, []) == []
    for operator in ("cumsum", "aten.", "aten.a.b.c", "aten.mm ", "torch.mm.default.x", ""):
        assert_rejected(kinds.Operators, [operator])


def test_granularity_is_model_or_module_paths() -> None:
    assert value(kinds.Granularity, "model") == value(kinds.Granularity, ["model"]) == ["model"]
    assert value(kinds.Granularity, "encoder.layers.*") == ["encoder.layers.*"]
    assert value(kinds.Granularity, ["a.[0-3]", "b?.c"]) == ["a.[0-3]", "b?.c"]
    assert_rejected(kinds.Granularity, [], [""], ["a..b"], [".a"], ["a b"], ["a/b"], 3, None)


def test_names_and_identifiers_accept_only_certain_characters() -> None:
    for good in ("vit", "resnet50.v2", "a-b_c", "3d"):
        assert value(kinds.Name, good) == good
    assert_rejected(kinds.Name, "", ".", "..", "-a", "a/b", "a@b", "a b", "é", "a\n", "a" * 129)
    assert value(kinds.Identifier, "input_ids") == "input_ids"
    assert_rejected(kinds.Identifier, "0a", "a.b", "a-b", "lambda", "None", "")


def test_every_synonym_names_a_choice() -> None:
    choices = {
        choice
        for kind in (kinds.Dtype, kinds.Precision, kinds.Toolchain, kinds.Platform)
        for choice in kind.__args__
    }  # fmt: skip
    assert set(kinds.SYNONYMS.values()) <= choices
    assert not set(kinds.SYNONYMS) & choices
