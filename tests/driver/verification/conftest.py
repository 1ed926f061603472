"""A small project that is built once, and fake engines that compute with the programs in its packages."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import onnx
import pytest
import torch

from tests.conftest import CommandLine, step
from tests.driver.gpu_comparisons.test_engines import FakeMemory
from tests.projects import copy_project
from trtbuild.core.model.verification import Point
from trtbuild.core.packages import provenance
from trtbuild.core.partition.partitions import Partition
from trtbuild.driver.answers.documents import Verification
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.gpu_comparisons import engines as engine_verification
from trtbuild.driver.gpu_comparisons.engines import TargetGpu
from trtbuild.driver.project.workspace import Request
from trtbuild.driver.verification import packages
from trtbuild.driver.verification.document import Options
from trtbuild.driver.verification.models import verify
from trtbuild.runtime.packages.package import Package
from trtbuild.stages.verify.onnx_models.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.running import TorchReference, Weights
from trtbuild.store.local.local import LocalStore


def write_words(path: Path) -> None:
    """Write an ONNX model that returns the tanh of rows of a table. The input has the indices of the rows, from 0 to 19."""
    table = torch.randn(20, 8, generator=torch.Generator().manual_seed(0)).numpy()
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Gather", ["table", "ids"], ["chosen"]),
            onnx.helper.make_node("Tanh", ["chosen"], ["y"]),
        ],
        "words",
        [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n", 3])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3, 8])],
        initializer=[onnx.numpy_helper.from_array(table, "table")],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9), path)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    base = tmp_path_factory.mktemp("verification")
    copy_project("comparisons", base / "project")
    write_words(base / "project" / "words.onnx")
    trtbuild = CommandLine(base / "project", base / "cache", {"TRTBUILD_REMOTES": ""})
    trtbuild("build")
    return trtbuild


@pytest.fixture
def trtbuild(built: CommandLine, tmp_path: Path) -> CommandLine:
    """A copy of the built project and of its cache. A test may damage both."""
    shutil.copytree(built.project, tmp_path / "project")
    shutil.copytree(built.cache, tmp_path / "cache")
    return CommandLine(tmp_path / "project", tmp_path / "cache", built.environment)


def only_comparison(document: Any) -> Any:
    (model,) = document["models"]
    (comparison,) = model["cuts"]  # one entry for each comparison
    return comparison


def change_conversion(trtbuild: CommandLine, identifier: str, change: Callable[[onnx.GraphProto], None]) -> None:
    """Replace the record of the convert step `identifier` by a valid record with a changed ONNX model."""
    store = LocalStore(trtbuild.cache)
    record = store.get_record(step(trtbuild("plan", identifier.partition("/")[0]), identifier)["key"])
    assert record is not None
    model = onnx.ModelProto.FromString(store.get_bytes(record.outputs["onnx"].sha256))
    before = model.SerializeToString(deterministic=True)
    change(model.graph)
    after = model.SerializeToString(deterministic=True)
    assert after != before
    store.put_record(
        dataclasses.replace(record, outputs={**record.outputs, "onnx": store.put_bytes(after)}), replace=True
    )


def provenance_path_and_digest(trtbuild: CommandLine) -> tuple[Path, str]:
    """Return the path of the provenance file in the package of `net`, and the digest of the package."""
    root = trtbuild.project / "dist" / "net"
    return root / provenance.PROVENANCE_FILE, hashlib.sha256((root / "index.json").read_bytes()).hexdigest()


#: `OnnxRuntime` needs a point (sizes and a seed) as an argument, but does not read it.
ANY_POINT = Point(0, "any", (), 0)


class FakeOpenEngines:
    """Fake engines of a package: PyTorch or onnxruntime runs its programs, and `spoil` changes the results."""

    spoil = staticmethod(lambda value: value)
    inputs_seen: ClassVar[list[Any]] = []

    def __init__(self, package: Package, gpu: TargetGpu) -> None:
        self.memory = FakeMemory()
        target = package.index.targets[gpu.target]
        blobs = packages._PackageBlobs(package, target)
        programs = {graph: package.index.files[path].sha256 for graph, path in target.programs.items()}
        weights = Weights(
            [blobs.weight(slot) for slot in range(max(package.index.weights, default=-1) + 1)], blobs.read
        )
        by_onnx = OnnxRuntime(lambda graph: blobs.read(programs[graph]), weights)
        by_torch = TorchReference(programs, weights, blobs.read)
        self._run = (lambda part, values: by_onnx(part, values, ANY_POINT)) if blobs.has_onnx else by_torch.run_part

    def part(self, partition: Partition, *, cuda_graphs: bool) -> Any:
        def run(values: Any, call: Any) -> list[Any]:
            self.inputs_seen.extend(values)
            return [self.spoil(value) for value in self._run(partition, values)]

        return run

    def __enter__(self) -> FakeOpenEngines:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[FakeOpenEngines]:
    """Let trtbuild find a GPU for every target, and open fake engines on it."""
    monkeypatch.setattr(FakeOpenEngines, "spoil", staticmethod(lambda value: value))
    monkeypatch.setattr(FakeOpenEngines, "inputs_seen", [])
    monkeypatch.setattr(engine_verification, "OpenEngines", FakeOpenEngines)
    monkeypatch.setattr(engine_verification, "reason_without_torch", lambda: None)
    monkeypatch.setattr(
        engine_verification,
        "gpus_for_targets",
        lambda package, targets, device: [(name, TargetGpu(name, 0, 89)) for name in targets],
    )
    monkeypatch.setattr(
        engine_verification, "machine_facts", lambda gpu, platform: {"platform": platform, "device": "FakeGPU"}
    )
    return FakeOpenEngines


def verify_here(trtbuild: CommandLine, monkeypatch: pytest.MonkeyPatch, model: str = "net") -> Verification:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(trtbuild.cache))
    monkeypatch.setenv("TRTBUILD_REMOTES", "")
    return verify(Request(trtbuild.project, models=(model,)), Options(), Watcher())


def verify_folders(*folders: Path, targets: Sequence[str] = ()) -> Verification:
    return packages.verify_packages(folders, targets, Options(), Watcher())
