"""Options of `trtbuild.compile` have the meaning of the manifest's fields, also under the names of Torch-TensorRT."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.precisions import ModulePrecision, Precisions
from trtbuild.core.model.spec import PartitionSettings, Target
from trtbuild.driver.in_program.options import OPTION_NAMES, options_of
from trtbuild.driver.in_program.settings import ALIASES, SUPERFLUOUS_SETTINGS, builder_of, partition_of, precisions_of
from trtbuild.errors import UsageError


@pytest.mark.parametrize(
    ("precision", "enabled", "expected"),
    [
        (None, None, "float32"),
        ("float16", None, "float16"),
        (torch.bfloat16, None, "bfloat16"),
        (None, {torch.float32}, "float32"),
        (None, {torch.float32, torch.float16}, "float16"),
        (None, [torch.half], "float16"),
    ],
)
def test_a_precision_is_float32_float16_or_bfloat16(precision: Any, enabled: Any, expected: str) -> None:
    assert precisions_of(precision, enabled) == Precisions(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("default", [{"default": "float16"}, {"default": torch.half}, {}])
def test_modules_may_have_other_precisions(default: dict[Any, Any]) -> None:
    enabled = None if default else {torch.half}
    expected = Precisions("float16", (ModulePrecision("*.norm", "float32"), ModulePrecision("head", "bfloat16")))
    assert precisions_of({**default, torch.float32: ["*.norm"], "bfloat16": "head"}, enabled) == expected
    assert precisions_of({**default, "bfloat16": ["head", "head"], "float32": ["*.norm"]}, enabled) == expected


def test_names_of_torch_tensorrt_are_accepted_for_builder_settings() -> None:
    result = builder_of(
        {"workspace_size": 1 << 30, "num_avg_timing_iters": 2, "disable_tf32": True, "optimization_level": 2}
    )
    assert result == BuilderSettings(workspace=1 << 30, avg_timing_iterations=2, tf32=False, optimization_level=2)


def test_a_setting_may_be_given_twice_with_the_same_value() -> None:
    assert builder_of({"tf32": False, "disable_tf32": True}) == BuilderSettings(tf32=False)
    assert options_of(target=89, builder={"refit": True}, refit=True).builder == BuilderSettings(refit=True)


def test_a_workspace_size_of_0_is_the_default() -> None:
    assert builder_of({"workspace_size": 0}) == BuilderSettings()


def test_operators_may_be_given_as_objects() -> None:
    ops = [torch.ops.aten.cumsum.default, torch.ops.aten.sort, "torch.ops.aten.add.Tensor", "aten::mul"]
    result = partition_of(ops, min_block_size=1, require_full_compilation=True, granularity=["layers.*"])
    assert result == PartitionSettings(
        ("layers.*",), 1, ("aten.add.Tensor", "aten.cumsum.default", "aten.mul", "aten.sort"), True
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: precisions_of("int8", None), "precision cannot be int8"),
        (lambda: precisions_of(None, {torch.float16, torch.bfloat16}), "precision cannot be bfloat16 and float16"),
        (lambda: precisions_of({"default": "float16"}, {torch.bfloat16}), "precision cannot be bfloat16 and float16"),
        (lambda: precisions_of({"int8": ["head"]}, None), "each key of precision must be"),
        (lambda: precisions_of({"fp17": ["head"]}, None), "each key of precision, except default, must be one of"),
        (lambda: precisions_of({"float16": [1]}, None), "a list of module paths"),
        (lambda: precisions_of({"float16": 1}, None), "precision['float16'] must be a list"),
        (lambda: precisions_of({"float32": ["head"]}, None), "lists modules under float32 only"),
        (lambda: precisions_of({"default": "float16", "float16": ["head"]}, None), "lists modules under float16 only"),
        (lambda: precisions_of({"float16": ["a"], "bfloat16": ["a"]}, None), "precision lists 'a' twice"),
        (lambda: builder_of({"optimisation_level": 3}), "there is no setting 'optimisation_level'"),
        (lambda: builder_of({"use_python_runtime": True}), "'use_python_runtime' is a setting of Torch-TensorRT only"),
        (lambda: builder_of({"optimization_level": 9}), "optimization_level"),
        (
            lambda: builder_of({"tf32": True, "disable_tf32": True}),
            "tf32 and disable_tf32 are two names of one setting, and have different values",
        ),
        (
            lambda: builder_of({"make_refittable": True, "refit": False}),
            "make_refittable and refit are two names of one setting, and have different values",
        ),
        (
            lambda: options_of(target=89, builder={"refit": True}, refit=False),
            "refit is given twice with different values: in builder, and as a separate argument",
        ),
        (
            lambda: partition_of([], min_block_size=0, require_full_compilation=False, granularity=None),
            "min_block_size",
        ),
        (lambda: options_of(target=89, truncate_double=1), "truncate_double must be True or False"),
        (
            lambda: options_of(target=89, truncate_double=True, truncate_long_and_double=False),
            "contradict each other",
        ),
        (lambda: options_of(target=89, device="cpu", reference=False), "reference=False leaves this program out"),
        (lambda: options_of(target="ada"), "'ada' is not a target"),
        (lambda: options_of(target={"sm": "89"}), "sm"),
        (lambda: options_of(target=89, toolchain="trt"), "'trt' is not a toolchain"),
        (lambda: options_of(target=89, compatibility="all"), "'all' is not a compatibility"),
        (lambda: options_of(target={"sm": 89}, compatibility="all"), "'all' is not a compatibility"),
        (
            lambda: options_of(target=89, compatibility="exact", hardware_compatible=True),
            "hardware_compatible=True means compatibility",
        ),
        (
            lambda: options_of(target={"sm": 89, "compatibility": "exact"}, hardware_compatible=True),
            "target has the compatibility 'exact'",
        ),
        (
            lambda: options_of(target={"sm": 90, "version": "10.3"}, toolchain_version="10.4"),
            "target has the version '10.3', and toolchain_version is '10.4'",
        ),
        (
            lambda: options_of(target=Target("ada", 89), toolchain="tensorrt"),
            "target has the toolchain 'tensorrt-rtx', and toolchain is 'tensorrt'",
        ),
        (lambda: options_of(target=Target("ada", 89), hardware_compatible=True), "target has the compatibility"),
    ],
)
def test_rejects_invalid_settings(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert message in caught.value.text


def test_ignored_settings_of_torch_tensorrt_are_not_settings_of_trtbuild() -> None:
    assert not SUPERFLUOUS_SETTINGS.keys() & {
        *(entry.name for entry in fields(BuilderSettings)),
        *ALIASES,
        *OPTION_NAMES,
    }


@pytest.mark.parametrize("target", [89, "89", "sm_89", "SM89", "8.9", {"sm": 89}])
def test_a_target_is_an_sm(target: Any) -> None:
    result = options_of(target=target).target
    assert (result.sm, result.toolchain, result.compatibility) == (89, "tensorrt-rtx", "exact")


def test_a_target_may_have_all_fields() -> None:
    result = options_of(target={"name": "hopper", "sm": 90, "toolchain": "tensorrt", "version": "8.6.0"}).target
    assert (result.name, result.sm, result.toolchain, result.version) == ("hopper", 90, "tensorrt", "8.6.0")


def test_options_complete_the_mapping_of_a_target() -> None:
    found = options_of(target={"sm": 89}, hardware_compatible=True, toolchain="tensorrt", toolchain_version="8.6.0")
    assert found.target.compatibility == "ampere_plus"
    assert (found.target.toolchain, found.target.version) == ("tensorrt", "8.6.0")
    whole = Target("ada", 89, "tensorrt", "8.6.0", "ampere_plus")
    assert options_of(target=whole, hardware_compatible=True, toolchain="tensorrt").target is whole


def test_without_a_gpu_the_target_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.driver.in_program.targets.device_sms", tuple)
    with pytest.raises(UsageError, match="this machine has no GPU") as caught:
        options_of(device="cpu")
    assert "target=89" in str(caught.value.hint)
    assert 'device="cpu"' in str(caught.value.hint)


def test_the_default_target_is_the_gpu_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.driver.in_program.targets.device_sms", lambda: (86, 120))
    assert options_of().target.sm == 86
    assert options_of(device="cuda:1").target.sm == 120
    assert options_of(device=1).target.sm == 120
    with pytest.raises(UsageError, match="there is no device cuda:2"):
        options_of(device="cuda:2")


def test_rejects_invalid_devices() -> None:
    for device in ("cpu:3", "cuda:x", -1, "gpu"):
        with pytest.raises(UsageError, match="is not a device"):
            options_of(target=89, device=device)


def test_the_error_about_a_mistyped_option_names_the_nearest_option() -> None:
    with pytest.raises(UsageError) as caught:
        options_of(target=89, precison="float16")
    assert (caught.value.hint or "").startswith("did you mean 'precision'?")
