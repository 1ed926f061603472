"""The facts that a worker announces about its GPU."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import json
from pathlib import Path

import pytest

from trtbuild.driver.farm import labels
from trtbuild.driver.gpu_comparisons import gpu_kinds
from trtbuild.driver.gpu_comparisons.gpu_kinds import GpuKind, has_torch_for_cuda, kind_here
from trtbuild.toolchain.libraries import devices, runtimes
from trtbuild.toolchain.libraries.devices import Device

H100 = GpuKind("linux-x86_64", 90, "NVIDIA H100", "580.1", {"tensorrt": "8.6.0"}, {"torch": "2.11.0+cu130"})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU, TensorRT 8.6 and PyTorch for CUDA."""
    monkeypatch.setattr(
        devices, "describe_gpu", lambda ordinal: None if ordinal else Device(0, 90, "NVIDIA H100", 1 << 36, "580.1")
    )
    libraries = {"tensorrt": "8.6.0", "tensorrt-rtx": None, "tensorrt_lean": None}
    monkeypatch.setattr(runtimes, "installed_libraries", lambda: libraries)
    monkeypatch.setattr(gpu_kinds, "has_torch_for_cuda", lambda: True)


def test_a_gpu_is_described_with_its_driver_and_the_installed_libraries(machine: None) -> None:
    kind = kind_here(0)
    assert kind is not None and dataclasses.replace(kind, platform=H100.platform, versions=H100.versions) == H100
    assert kind.versions["torch"] and kind.key_facts == {
        "platform": kind.platform,
        "device": "NVIDIA H100",
        "driver": "580.1",
    }
    assert kind_here(1) is None


def test_a_machine_that_cannot_compare_announces_no_gpu(machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(runtimes, "installed_libraries", lambda: {"tensorrt": None})
        assert labels.gpu_labels_here(0) == []
    assert len(labels.gpu_labels_here(0)) == 1
    monkeypatch.setattr(gpu_kinds, "has_torch_for_cuda", lambda: False)
    assert labels.gpu_labels_here(0) == []


def test_a_label_has_all_facts() -> None:
    label = labels.gpu_label(H100)
    assert labels.gpu_kind_of(label) == H100
    reordered = GpuKind.from_text(json.dumps(dict(reversed(json.loads(H100.to_text()).items()))))
    assert labels.gpu_label(reordered) == label
    others = [
        dataclasses.replace(H100, **change)
        for change in (
            {"platform": "linux-aarch64"},
            {"sm": 89},
            {"device": "NVIDIA H200"},
            {"driver": "580.2"},
            {"libraries": {"tensorrt": "10.0"}},
            {"versions": {"torch": "2.12.0+cu130"}},
        )
    ]
    assert len({label, *map(labels.gpu_label, others)}) == 1 + len(others)
    for text in ("trtbuild gpu {}", "trtbuild gpu []", "trtbuild gpu {", "trtbuild engine x"):
        assert labels.gpu_kind_of(text) is None


@pytest.mark.parametrize(("line", "is_for_cuda"), [("'13.0'", True), ("None", False)])
def test_the_kind_of_pytorch_is_read_without_importing_it(
    line: str, is_for_cuda: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('torch was imported')\n")
    (tmp_path / "torch" / "version.py").write_text(f"from typing import Optional\ncuda: Optional[str] = {line}\n")
    spec = importlib.machinery.PathFinder.find_spec("torch", [str(tmp_path)])
    monkeypatch.setattr(gpu_kinds, "find_spec", lambda name: spec)
    assert has_torch_for_cuda() is is_for_cuda
    monkeypatch.setattr(gpu_kinds, "find_spec", lambda name: None)
    assert not has_torch_for_cuda()
