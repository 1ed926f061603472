"""Settings of a program mean what they mean in a manifest, by either name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import PartitionSettings, Target
from trtbuild.driver.in_program.options import OPTIONS, options_of
from trtbuild.driver.in_program.settings import ALIASES, NOT_NEEDED, builder_of, partition_of, precision_of
from trtbuild.errors import UsageError


@pytest.mark.parametrize(
    ("precision", "enabled", "found"),
    [
        (None, None, "float32"),
        ("float16", None, "float16"),
        (torch.bfloat16, None, "bfloat16"),
        (None, {torch.float32}, "float32"),
        (None, {torch.float32, torch.float16}, "float16"),
        (None, [torch.half], "float16"),
    ],
)
def test_precision_is_one_of_three(precision: Any, enabled: Any, found: str) -> None:
    assert precision_of(precision, enabled) == found


def test_torch_tensorrts_names_are_the_builders() -> None:
    found = builder_of(
        {"workspace_size": 1 << 30, "num_avg_timing_iters": 2, "disable_tf32": True, "optimization_level": 2}
    )
    assert found == BuilderSettings(workspace=1 << 30, avg_timing_iterations=2, tf32=False, optimization_level=2)


def test_no_workspace_is_the_default() -> None:
    assert builder_of({"workspace_size": 0}) == BuilderSettings()


def test_operators_may_be_given_as_objects() -> None:
    ops = [torch.ops.aten.cumsum.default, torch.ops.aten.sort, "torch.ops.aten.add.Tensor", "aten::mul"]
    found = partition_of(ops, 1, True, ["layers.*"])
    assert found == PartitionSettings(
        ("layers.*",), 1, ("aten.add.Tensor", "aten.cumsum.default", "aten.mul", "aten.sort"), True
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: precision_of("int8", None), "precision cannot be int8"),
        (lambda: precision_of(None, {torch.float16, torch.bfloat16}), "precision cannot be bfloat16 and float16"),
        (lambda: builder_of({"optimisation_level": 3}), "there is no setting 'optimisation_level'"),
        (lambda: builder_of({"use_python_runtime": True}), "'use_python_runtime' is a setting of Torch-TensorRT only"),
        (lambda: builder_of({"optimization_level": 9}), "optimization_level"),
        (lambda: partition_of([], 0, False, None), "min_block_size"),
        (lambda: options_of(target=89, truncate_double=1), "truncate_double must be True or False"),
        (
            lambda: options_of(target=89, truncate_double=True, truncate_long_and_double=False),
            "contradict each other",
        ),
        (lambda: options_of(target=89, device="cpu", reference=False), "reference=False leaves it out"),
        (lambda: options_of(target="ada"), "'ada' is not a target"),
        (lambda: options_of(target={"sm": "89"}), "sm"),
        (lambda: options_of(target=89, toolchain="trt"), "'trt' is not a toolchain"),
        (lambda: options_of(target=89, compatibility="all"), "'all' is not a compatibility"),
        (lambda: options_of(target={"sm": 89}, compatibility="all"), "'all' is not a compatibility"),
        (
            lambda: options_of(target=89, compatibility="exact", hardware_compatible=True),
            "hardware_compatible=True is compatibility",
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
def test_rejects_what_a_manifest_rejects(make: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert says in caught.value.text


def test_what_torch_tensorrt_sets_and_nothing_here_needs_is_no_setting_here() -> None:
    assert not NOT_NEEDED.keys() & {*(entry.name for entry in fields(BuilderSettings)), *ALIASES, *OPTIONS}


@pytest.mark.parametrize("target", [89, "89", "sm_89", "SM89", "8.9", {"sm": 89}])
def test_a_target_is_an_sm(target: Any) -> None:
    found = options_of(target=target).target
    assert (found.sm, found.toolchain, found.compatibility) == (89, "tensorrt-rtx", "exact")


def test_a_target_may_be_whole() -> None:
    found = options_of(target={"name": "hopper", "sm": 90, "toolchain": "tensorrt", "version": "8.6.0"}).target
    assert (found.name, found.sm, found.toolchain, found.version) == ("hopper", 90, "tensorrt", "8.6.0")


def test_options_complete_the_mapping_of_a_target() -> None:
    found = options_of(target={"sm": 89}, hardware_compatible=True, toolchain="tensorrt", toolchain_version="8.6.0")
    assert found.target.compatibility == "ampere_plus"
    assert (found.target.toolchain, found.target.version) == ("tensorrt", "8.6.0")
    whole = Target("ada", 89, "tensorrt", "8.6.0", "ampere_plus")
    assert options_of(target=whole, hardware_compatible=True, toolchain="tensorrt").target is whole


def test_without_a_gpu_the_target_has_to_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.driver.in_program.targets.device_sms", tuple)
    with pytest.raises(UsageError, match="this machine has no GPU") as caught:
        options_of(device="cpu")
    assert "target=89" in str(caught.value.hint)
    assert 'device="cpu"' in str(caught.value.hint)


def test_the_target_is_the_gpu_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.driver.in_program.targets.device_sms", lambda: (86, 120))
    assert options_of().target.sm == 86
    assert options_of(device="cuda:1").target.sm == 120
    assert options_of(device=1).target.sm == 120
    with pytest.raises(UsageError, match="there is no device cuda:2"):
        options_of(device="cuda:2")


def test_a_device_that_is_none_is_refused_before_any_work() -> None:
    for device in ("cpu:3", "cuda:x", -1, "gpu"):
        with pytest.raises(UsageError, match="is not a device"):
            options_of(target=89, device=device)


def test_a_mistyped_option_is_told_the_option_that_it_is_like() -> None:
    with pytest.raises(UsageError) as caught:
        options_of(target=89, precison="float16")
    assert (caught.value.hint or "").startswith("did you mean 'precision'?")
