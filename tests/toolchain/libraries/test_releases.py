"""The properties of a release are looked up by its version. A setting that the release lacks is rejected before a build."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trtbuild.core.model.builder_settings import SETTINGS, BuilderSettings
from trtbuild.core.model.spec import Target
from trtbuild.errors import TargetUnsupported
from trtbuild.toolchain.libraries.releases import has_default, lacks_setting, release
from trtbuild.toolchain.libraries.table import check_release, stand_in

HOPPER = Target("hopper", 90, toolchain="tensorrt")


@pytest.mark.parametrize(
    ("version", "flags", "strongly_typed", "opset"),
    [
        ("8.6.0", ("EXPLICIT_BATCH",), False, 17),
        ("8.6.1", ("EXPLICIT_BATCH",), False, 17),
        ("9.3.0.post12.dev1", ("EXPLICIT_BATCH", "STRONGLY_TYPED"), True, 17),
        ("10.0.1", ("STRONGLY_TYPED",), True, 20),
        ("10.13.3.9", ("STRONGLY_TYPED",), True, 20),
        ("11.0.0.114", (), True, 20),
    ],
)
def test_the_flags_of_networks_and_the_opset(
    version: str, flags: tuple[str, ...], strongly_typed: bool, opset: int
) -> None:
    properties = release("tensorrt", version)
    assert (properties.network_flags, properties.strongly_typed, properties.opset) == (flags, strongly_typed, opset)


def test_exactly_the_releases_without_int64_compute_it_in_32_bits() -> None:
    for version in ("8.6.0", "8.6.1", "9.3.0", "10.0.1", "11.2.0"):
        properties = release("tensorrt", version)
        assert properties.narrows_int64 == ("int64" not in properties.dtypes)


def test_8_6_has_no_bfloat16() -> None:
    assert "bfloat16" not in release("tensorrt", "8.6.1").dtypes


def test_two_releases_of_rtx_have_the_same_properties() -> None:
    assert release("tensorrt-rtx", "1.4.0.76") == release("tensorrt-rtx", "1.7.1.116")


def test_does_not_set_the_parser_flag_that_crashes_8_6_0() -> None:
    assert release("tensorrt", "8.6.0").parser_flags == ()
    assert "InstanceNormalization" in release("tensorrt", "8.6.0").refused_operators
    assert release("tensorrt", "8.6.1").parser_flags == ("NATIVE_INSTANCENORM",)


def test_has_default_is_true_only_for_the_default_value() -> None:
    assert all(has_default(BuilderSettings(), name) for name in SETTINGS)
    assert not has_default(BuilderSettings(tf32=False), "tf32")


@pytest.mark.parametrize(
    ("name", "toolchain", "version", "lacking"),
    [
        ("monitor_memory", "tensorrt", "10.7.0.23", True),
        ("monitor_memory", "tensorrt", "10.8.0.43", False),
        ("strip_plan", "tensorrt", "9.3.0.post12.dev1", True),
        ("strip_plan", "tensorrt", "10", False),
        ("strip_plan", "tensorrt-rtx", "1.4.0.76", False),
        ("tactic_sources", "tensorrt-rtx", "1.7.1.116", True),
        ("tf32", "tensorrt", "8.6.0", False),
    ],
)
def test_a_setting_exists_from_its_first_release_on(name: str, toolchain: Any, version: str, lacking: bool) -> None:
    assert lacks_setting(toolchain, version, SETTINGS[name]) is lacking


@pytest.mark.parametrize(
    ("version", "target", "settings", "precision", "message"),
    [
        ("8.6.0", {}, {"strip_plan": True}, "float32", "no builder.strip_plan: tensorrt 10.0 and later have"),
        ("8.6.0", {}, {"tiling_optimization_level": "full"}, "float32", "tensorrt 10.8 and later have"),
        ("10.0.1", {}, {"l2_limit_for_tiling": 1}, "float32", "tensorrt 10.8 and later have"),
        (
            "8.6.0",
            {},
            {},
            "bfloat16",
            "tensorrt 8.6.0 does not compute in bfloat16\n  → set precision: float32 or float16",
        ),
        ("8.6.0", {"compatibility": "same_compute_capability"}, {}, "float32", "it has exact, ampere_plus"),
        ("11.0.0", {}, {"tactic_sources": ("cudnn",)}, "float32", "no tactic source cudnn"),
        ("8.5.3", {}, {}, "float32", "trtbuild builds with tensorrt 8.6 and later, not 8.5.3"),
        ("7.2.1", {}, {}, "float32", "pip install 'tensorrt>=8.6'"),
    ],
)
def test_rejects_releases_that_are_too_old_and_features_that_a_release_lacks(
    version: str, target: dict[str, Any], settings: dict[str, Any], precision: Any, message: str
) -> None:
    with pytest.raises(TargetUnsupported) as raised:
        check_release(replace(HOPPER, **target), BuilderSettings(**settings), version, [precision])
    assert message in str(raised.value)
    assert "'hopper'" in str(raised.value)


def test_rejects_tactic_sources_for_rtx() -> None:
    with pytest.raises(TargetUnsupported, match=r"tensorrt-rtx has no builder\.tactic_sources"):
        check_release(Target("ada", 89), BuilderSettings(tactic_sources=()), "1.7.1")


def test_accepts_settings_that_a_release_has() -> None:
    check_release(HOPPER, BuilderSettings(tactic_sources=(), version_compatible=True), "8.6.0", ["float16"])
    same_capability = replace(HOPPER, compatibility="same_compute_capability")
    check_release(same_capability, BuilderSettings(), "10.9.0", ["float32", "bfloat16"])
    check_release(HOPPER, BuilderSettings(tiling_optimization_level="full"), "10.8.0.43")


def test_a_parser_that_needs_a_gpu_has_a_stand_in() -> None:
    parser = stand_in("tensorrt", "8.6.0")
    assert parser is not None
    assert (parser.toolchain, parser.narrows_int64) == ("tensorrt-rtx", True)
    assert parser.dtypes == release("tensorrt", "8.6.0").dtypes
    assert stand_in("tensorrt-rtx", "1.7.1") is None
