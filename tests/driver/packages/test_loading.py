"""`trtbuild.load`: the device, the target, and the files that are read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import trtbuild
from tests.runtime.conftest import Built, built
from trtbuild.driver.packages import machine
from trtbuild.errors import NoFittingTarget, PackageDamaged, UsageError
from trtbuild.toolchain.libraries import devices

__all__ = ["built"]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "device_sms", lambda: (89, 120))


def test_the_error_without_a_gpu_suggests_the_cpu(built: Built) -> None:
    with pytest.raises(NoFittingTarget, match="no GPU was found") as raised:
        trtbuild.load(built.package)
    assert 'device="cpu"' in str(raised.value.hint)
    with pytest.raises(NoFittingTarget, match="no GPU was found") as raised:
        trtbuild.load(built.bare, device="cuda:0")
    assert "reference: true" in str(raised.value.hint)


def test_a_package_without_a_reference_does_not_run_on_the_cpu(built: Built) -> None:
    with pytest.raises(NoFittingTarget, match="the package of 'bare' has no reference program") as raised:
        trtbuild.load(built.bare, device="cpu")
    assert "set `reference: true` in the manifest and build again" in str(raised.value.hint)


def test_a_package_without_engines_runs_on_the_cpu(built: Built) -> None:
    loaded = trtbuild.load(built.torch_only, device="cpu")
    assert loaded.is_reference and not loaded.package.index.reference
    rows = torch.randn(5, 4)
    sorted_rows, offset = loaded.module()(rows)
    torch.testing.assert_close(sorted_rows, rows.sort(dim=0).values.sort(dim=1).values)
    torch.testing.assert_close(offset, torch.linspace(-1, 1, 4))
    with pytest.raises(NoFittingTarget) as raised:
        trtbuild.load(built.torch_only)
    assert raised.value.hint == 'pass device="cpu": PyTorch computes all of it'


def test_the_cpu_has_several_names(built: Built) -> None:
    for device in ("cpu", torch.device("cpu"), "cpu:0"):
        loaded = trtbuild.load(built.package, device=device)
        assert loaded.is_reference and loaded.target is None and loaded.device == "cpu"
        assert "reference program in PyTorch, no engine" in repr(loaded)


def test_inputs_and_outputs_are_shown_as_a_signature(built: Built) -> None:
    loaded = trtbuild.load(built.package, device="cpu")
    assert repr(loaded.inputs) == "(image: float32[batch, 3, height, width], *, scale: float32[batch, 1])"
    assert repr(loaded.outputs).startswith("(") and "float32[batch, 6]" in repr(loaded.outputs)
    assert loaded.inputs == loaded.package.index.inputs and loaded.inputs[1].name == "scale"


def test_rejects_a_target_on_the_cpu(built: Built) -> None:
    with pytest.raises(UsageError, match="runs no engine"):
        trtbuild.load(built.package, device="cpu", target="ada")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:²", "", -1, True, 1.5, "mps"])
def test_rejects_invalid_devices(device: Any, built: Built) -> None:
    with pytest.raises(UsageError, match="is not a device"):
        trtbuild.load(built.package, device=device)


@pytest.mark.usefixtures("two_gpus")
def test_the_target_is_chosen_for_the_gpu(built: Built) -> None:
    for device, name, target in (
        (None, "cuda:0", "ada"),
        ("cuda", "cuda:0", "ada"),
        (0, "cuda:0", "ada"),
        (torch.device("cuda", 1), "cuda:1", "blackwell"),
        ("cuda:1", "cuda:1", "blackwell"),
    ):
        loaded = trtbuild.load(built.package, device=device)
        assert loaded.target is not None
        assert (loaded.device, loaded.target.name) == (name, target)
        assert not loaded.is_reference and f"engines of target {target!r}" in repr(loaded)
    assert [profile.name for profile in loaded.profiles] == ["small", "large"]
    assert [dim.name for dim in loaded.dims] == ["batch", "height", "width"]
    assert (loaded.model, list(loaded.targets)) == ("net", ["ada", "blackwell"])


@pytest.mark.usefixtures("two_gpus")
def test_rejects_a_missing_gpu_and_a_target_of_another_gpu(built: Built) -> None:
    with pytest.raises(NoFittingTarget, match="there is no GPU 2: this machine has 2"):
        trtbuild.load(built.package, device=2)
    with pytest.raises(NoFittingTarget, match="target 'blackwell' does not fit\n    blackwell: it is for SM 120"):
        trtbuild.load(built.package, target="blackwell")
    with pytest.raises(NoFittingTarget, match="it is for SM 89") as raised:
        trtbuild.load(built.bare, device=1)
    assert "add a target with sm: 120" in str(raised.value.hint)


@pytest.mark.usefixtures("two_gpus")
def test_files_of_other_targets_need_not_exist(built: Built, tmp_path: Path) -> None:
    copy = shutil.copytree(built.package, tmp_path / "net")
    shutil.rmtree(copy / "engines" / "blackwell")
    trtbuild.load(copy)
    with pytest.raises(PackageDamaged, match="is missing, but the index contains it"):
        trtbuild.load(copy, device=1)


def test_importing_trtbuild_does_not_import_heavy_modules() -> None:
    code = (
        "import sys, trtbuild; before = set(sys.modules); assert 'load' in dir(trtbuild); trtbuild.load;"
        "heavy = {'torch', 'tensorrt', 'tensorrt_rtx', 'numpy', 'pydantic', 'yaml', 'click', 'onnx'};"
        "print(sorted(heavy & before), sorted(heavy & set(sys.modules)), hasattr(trtbuild, 'nothing'))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[] [] False"


def test_the_default_gpu_is_the_current_device_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert machine.gpu_number(None) == machine.gpu_number("cuda") == 3
    assert machine.gpu_number("cuda:1") == 1
