"""The GPUs of workers that can compare a target's engines, and the models that are not sent to workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.core.model.verified import NotRun
from trtbuild.core.packages.package_index import PackageIndex, PackedPlugins, PackedTarget
from trtbuild.core.partition.partitions import Partitions
from trtbuild.driver.gpu_comparisons.gpu_kinds import GpuKind
from trtbuild.driver.packages import provenance_file
from trtbuild.driver.verification.worker_comparisons import OnWorkers, _fitting_kinds

TARGET = PackedTarget(
    "ampere", 86, (86, 89, 90), "tensorrt", "8.6.0", False, "none", "linux-x86_64", Partitions((), ()), {}, {}, {}
)
INDEX = PackageIndex("net", (), (), {"kind": "none"}, (), (), "", {"ampere": TARGET}, True, {}, {})
AMPERE = GpuKind("linux-x86_64", 86, "NVIDIA A10", "580.1", {"tensorrt": "8.6.0"}, {"torch": "2.11.0"})


def fitting_kinds(*kinds: GpuKind, reference: str = "torch") -> list[GpuKind]:
    package: Any = SimpleNamespace(index=INDEX)
    return _fitting_kinds(package, "ampere", reference, kinds)


def test_kinds_are_sorted_by_the_sm_of_the_target_then_by_sm_then_by_text() -> None:
    ada, hopper = (dataclasses.replace(AMPERE, sm=sm, device=name) for sm, name in ((89, "L4"), (90, "H100")))
    newer = dataclasses.replace(AMPERE, driver="580.2")
    assert fitting_kinds(hopper, newer, ada, AMPERE) == [AMPERE, newer, ada, hopper]


def test_machines_that_cannot_run_or_compare_the_engines_are_not_chosen() -> None:
    others = [
        dataclasses.replace(AMPERE, sm=100),
        dataclasses.replace(AMPERE, platform="linux-aarch64"),
        dataclasses.replace(AMPERE, libraries={"tensorrt": "10.0.0"}),
    ]
    assert fitting_kinds(*others) == []
    assert fitting_kinds(AMPERE, reference="onnxruntime") == []


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.parametrize(
    ("operators", "plugins", "reason"),
    [
        (("mylib.roi.default",), None, "its custom operators are files of this project"),
        ((), PackedPlugins((), "plugins/x.so", "x.so"), "its plugins are a library of this project"),
    ],
)
def test_a_model_that_needs_files_of_the_project_is_not_sent(
    operators: tuple[str, ...],
    plugins: PackedPlugins | None,
    reason: str,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = dataclasses.replace(INDEX, plugins=plugins)
    monkeypatch.setattr(provenance_file, "package_in_place", lambda *_: SimpleNamespace(index=index))
    called = tuple(CustomOperator(name, "mylib::roi(Tensor x) -> Tensor") for name in operators)
    cut: Any = SimpleNamespace(targets=("ampere",), verify_job=SimpleNamespace(operators=called))
    model: Any = SimpleNamespace(workspace=SimpleNamespace(project=None), plan=None)
    farm: Any = None  # the workers of a scheduler; nothing is sent to them
    (result,) = OnWorkers(farm, threads).comparisons(model, cut, number=0)
    assert result == NotRun(target="ampere", reason=f"{reason}; verify it on a machine with the project")
