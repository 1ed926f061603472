"""The choice of the GPU on which the engines of a target are verified, and `--device`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import CommandLine
from tests.projects import copy_project
from trtbuild.driver.gpu_comparisons import engines
from trtbuild.driver.gpu_comparisons.engines import TargetGpu, gpus_for_targets, usable_gpus
from trtbuild.errors import NoFittingTarget, UsageError
from trtbuild.toolchain.libraries import devices

NO_GPU = "no GPU was found"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package for SM 90 whose engines also run on SM 100, on a machine with four GPUs."""
    monkeypatch.setattr(devices, "device_sms", lambda: (89, 100, 90, 90))

    def choose(index: Any, machine: Any, target: str) -> None:
        if machine.sm < 90:
            raise NoFittingTarget(f"no target fits\n    {target}: it is for SM 90")

    monkeypatch.setattr(engines, "choose_target", choose)
    return SimpleNamespace(index=SimpleNamespace(targets={"hopper": SimpleNamespace(sm=90)}))


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (None, TargetGpu("hopper", 2, 90)),
        ("cuda:3", TargetGpu("hopper", 3, 90)),
        ("cuda:1", TargetGpu("hopper", 1, 100)),
        ("cuda:0", "hopper: it is for SM 90"),
        ("cuda", "hopper: it is for SM 90"),
        ("cpu", "--device cpu runs no engine"),
    ],
)
def test_engines_run_on_the_gpu_that_device_names_or_on_the_best_one(
    package: Any, device: str | None, expected: TargetGpu | str
) -> None:
    assert dict(gpus_for_targets(package, ["hopper", "ada"], device)) == {
        "hopper": expected,
        "ada": "the package does not have this target",
    }


def test_a_device_that_does_not_exist_is_a_usage_error(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("cuda:4", "gpu", "cuda:x", "cuda:-1", ""):
        with pytest.raises(UsageError) as error:
            usable_gpus(device)
        assert device in str(error.value)
    monkeypatch.setattr(devices, "device_sms", lambda: ())
    assert usable_gpus("cuda:4") == usable_gpus(None) == NO_GPU


def test_a_wrong_device_is_reported_before_any_work(command_line: CommandLine) -> None:
    copy_project("mlp", command_line.project)
    failure = command_line("verify", "--device", "tpu", expect=2)
    assert "'tpu' is not a device" in failure["errors"][0]["text"]
