"""`check_target` checks whether this machine can build for a target, without an import of the toolchain."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import Target
from trtbuild.errors import TargetUnsupported, ToolchainMissing
from trtbuild.toolchain.libraries.devices import device_sms
from trtbuild.toolchain.libraries.table import (
    FLAVOURS,
    built_sms,
    check_target,
    host_platform,
    installed_version,
    opset,
)

ADA = Target("ada", 89)
HOPPER = Target("hopper", 90, toolchain="tensorrt")


def _check_on_linux(
    target: Target, version: str | None = "1.7.1", devices: tuple[int, ...] = (), **settings: Any
) -> None:
    check_target(target, BuilderSettings(**settings), version, devices=devices, host="linux-x86_64")


@pytest.mark.parametrize("sm", [75, 80, 86, 89, 120, 121])
def test_rtx_builds_for_its_sms_without_a_gpu(sm: int) -> None:
    _check_on_linux(Target("t", sm))


def test_the_sms_are_those_of_the_library() -> None:
    import tensorrt_rtx

    members = {name for name in tensorrt_rtx.ComputeCapability.__members__ if name.startswith("SM")}
    assert members == {f"SM{sm}" for sm in FLAVOURS["tensorrt-rtx"].sms or ()}


def test_the_installed_version_is_that_of_the_library() -> None:
    import tensorrt_rtx

    assert installed_version("tensorrt-rtx") == tensorrt_rtx.__version__


@pytest.mark.parametrize(
    ("target", "arguments", "error", "message"),
    [
        (ADA, {"version": None}, ToolchainMissing, "pip install 'tensorrt-rtx'"),
        (replace(ADA, version="1.6.0"), {}, ToolchainMissing, "pip install 'tensorrt-rtx==1.6.0'"),
        (replace(ADA, version="1.6.0"), {"version": None}, ToolchainMissing, "pip install 'tensorrt-rtx==1.6.0'"),
        (Target("t", 90), {}, TargetUnsupported, "75, 80, 86, 89, 120, 121 only"),
        (Target("t", 100), {}, TargetUnsupported, "75, 80, 86, 89, 120, 121"),
        (Target("t", 75, compatibility="ampere_plus"), {}, TargetUnsupported, "SM 80 and later"),
        (replace(ADA, platform="windows-x86_64"), {}, TargetUnsupported, "build it on windows-x86_64"),
        (ADA, {"refit": True}, TargetUnsupported, "builder.refit needs a CUDA driver"),
        (ADA, {"strip_plan": True}, TargetUnsupported, "builder.strip_plan needs a CUDA driver"),
        (ADA, {"version_compatible": True}, TargetUnsupported, "exclude_lean_runtime: true too"),
        (ADA, {"exclude_lean_runtime": True}, TargetUnsupported, "version_compatible: true too"),
        (HOPPER, {"version": "10.0.1"}, TargetUnsupported, "this machine has no GPU"),
        (HOPPER, {"version": "10.0.1", "devices": (89, 89)}, TargetUnsupported, "this machine has SM 89"),
    ],
)
def test_rejects_targets_with_a_hint(
    target: Target, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        _check_on_linux(target, **arguments)
    assert message in str(raised.value)
    assert repr(target.name) in str(raised.value)


def test_accepts_settings_and_targets_that_need_a_gpu_if_there_is_one() -> None:
    _check_on_linux(ADA, devices=(89,), refit=True, strip_plan=True)
    _check_on_linux(HOPPER, version="8.6.0", devices=(89, 90))


def test_the_opset_depends_on_the_toolchain_and_its_version() -> None:
    assert opset("tensorrt-rtx", "1.7.1.116") == 20
    assert [opset("tensorrt", version) for version in ("8.6.0", "9.3.0", "10.0.1", "11.0.0.114")] == [17, 17, 20, 20]


def test_only_ampere_plus_builds_for_several_sms() -> None:
    assert built_sms(ADA) == (89,)
    assert built_sms(replace(ADA, compatibility="same_compute_capability")) == (89,)
    assert built_sms(replace(ADA, compatibility="ampere_plus")) == (80, 86, 89, 120, 121)


def test_checks_import_no_library() -> None:
    code = (
        "import sys\n"
        "from trtbuild.core.model.builder_settings import BuilderSettings\n"
        "from trtbuild.core.model.spec import Target\n"
        "from trtbuild.toolchain.libraries.table import check_target, installed_version\n"
        "from trtbuild.toolchain.libraries.devices import device_sms\n"
        "version = installed_version('tensorrt-rtx')\n"
        "check_target(Target('ada', 89), BuilderSettings(), version, devices=device_sms())\n"
        "print([m for m in ('tensorrt_rtx', 'tensorrt', 'numpy', 'torch', 'onnx') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_sms_of_this_machines_gpus_are_plausible() -> None:
    sms = device_sms()
    if not sms:
        pytest.skip("this machine has no GPU")
    assert all(50 <= sm < 200 for sm in sms)


def test_the_platform_has_the_format_of_manifests() -> None:
    system, _, cpu = host_platform().partition("-")
    assert system in ("linux", "windows", "darwin")
    assert cpu not in ("", "amd64")
