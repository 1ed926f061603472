"""Scalars have the values of the core schema of YAML 1.2, or are refused."""

from __future__ import annotations

import math

import pytest

from trtbuild.manifest.yaml_text.scalars import InvalidScalar, tagged_value, unquoted_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("NULL", None), ("nUll", "nUll"),
        ("true", True), ("True", True), ("FALSE", False), ("tRue", "tRue"),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("y", "y"), ("N", "N"),
        ("0", 0), ("12", 12), ("-7", -7), ("+7", 7), ("0x1F", 31), ("0o17", 15), ("0b11", "0b11"), ("1_000", "1_000"),
        ("1.5", 1.5), ("-.5", -0.5), ("1.", 1.0), ("1e3", 1000.0), ("1E-3", 0.001), ("1.5e+3", 1500.0),
        (".inf", math.inf), ("-.INF", -math.inf), ("+.Inf", math.inf), ("inf", "inf"), ("nan", "nan"), (".", "."),
        ("1:30", "1:30"), ("190:20:30", "190:20:30"), ("2026-01-01", "2026-01-01"), ("8.6.0", "8.6.0"), ("-", "-"),
        ("1GiB", "1GiB"), ("=", "="), ("٣", "٣"),
    ],
)  # fmt: skip
def test_unquoted_scalars_have_the_values_of_yaml_1_2(text: str, value: object) -> None:
    result = unquoted_value(text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("text", [".nan", ".NaN", ".NAN"])
def test_nan_is_refused(text: str) -> None:
    with pytest.raises(InvalidScalar, match="not a number"):
        unquoted_value(text)


@pytest.mark.parametrize("text", ["010", "00", "-01", "089"])
def test_leading_zeros_are_refused_because_yaml_versions_disagree(text: str) -> None:
    with pytest.raises(InvalidScalar, match="leading zero"):
        unquoted_value(text)


def test_too_large_numbers_are_refused() -> None:
    with pytest.raises(InvalidScalar, match="digits"):
        unquoted_value("9" * 5000)
    with pytest.raises(InvalidScalar, match="digits"):
        unquoted_value("0x" + "f" * 5000)
    with pytest.raises(InvalidScalar, match="too large"):
        unquoted_value("1e999")


def test_quotes_and_tags_decide_the_type() -> None:
    assert tagged_value("1", None, is_unquoted=False) == "1"
    assert tagged_value("1", "!", is_unquoted=False) == "1"
    assert tagged_value("true", "tag:yaml.org,2002:str", is_unquoted=True) == "true"
    value = tagged_value("3", "tag:yaml.org,2002:float", is_unquoted=True)
    assert (value, type(value)) == (3.0, float)
    assert tagged_value("3", "tag:yaml.org,2002:int", is_unquoted=False) == 3


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("x", "tag:yaml.org,2002:int"),
        ("1.5", "tag:yaml.org,2002:int"),
        ("true", "tag:yaml.org,2002:int"),
        ("1", "tag:yaml.org,2002:bool"),
        ("os.system", "tag:yaml.org,2002:python/name:os.system"),
        ("x", "!mine"),
        ("x", "str"),
    ],
)
def test_rejects_tags_that_do_not_fit(text: str, tag: str) -> None:
    with pytest.raises(InvalidScalar, match="tag"):
        tagged_value(text, tag, is_unquoted=True)


def test_rejects_half_surrogate_pairs() -> None:
    with pytest.raises(InvalidScalar, match="surrogate"):
        tagged_value("\ud800", None, is_unquoted=False)
