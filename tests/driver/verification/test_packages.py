"""`trtbuild verify PACKAGE`. No test needs a GPU: the programs in a package take the place of its engines."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import trtbuild as trtbuild_package
from tests.conftest import CommandLine
from tests.driver.verification.conftest import (
    FakeOpenEngines,
    provenance_path_and_digest,
    verify_folders,
    verify_here,
)
from trtbuild.core.model.verified import NotRun
from trtbuild.core.packages import provenance
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.gpu_comparisons import engines as engine_verification
from trtbuild.driver.gpu_comparisons.engines import TargetGpu
from trtbuild.driver.verification import packages
from trtbuild.driver.verification.document import Options
from trtbuild.errors import ToolchainMissing
from trtbuild.runtime.packages.package import Package
from trtbuild.stages.verify.onnx_models.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.running import NotRunnable


def test_verifying_a_package_alone_keeps_its_earlier_results(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trtbuild("verify", "net")
    copy = tmp_path / "copy"
    shutil.copytree(trtbuild.project / "dist" / "net", copy)
    document = packages.verify_packages([copy], [], Options(), Watcher())
    assert document.ok, document
    (engine,) = document.models[0].cuts
    assert (engine.by, engine.status, engine.key) == ("engine", "right", None)
    assert [point.which for point in engine.points] == ["min", "opt", "max", "random 1", "random 2"]
    verifications = trtbuild_package.load(copy, device="cpu").provenance
    assert [entry["by"] for entry in verifications.verified] == ["onnxruntime", "engine"]
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value + 1))
    wrong = packages.verify_packages([copy], ["ada"], Options(), Watcher())
    assert not wrong.ok and wrong.models[0].status == "wrong"
    assert not (copy / provenance.PROVENANCE_FILE).exists()


def test_the_results_of_a_gpu_are_kept_by_a_machine_without_a_gpu(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trtbuild.project / "dist" / "net"
    assert verify_folders(folder).ok
    path, digest = provenance_path_and_digest(trtbuild)
    (engine,) = provenance.parse(path.read_bytes(), digest).verified
    trtbuild("verify", "net")  # runs in a child process, where the fake GPU does not exist
    assert [entry["by"] for entry in provenance.parse(path.read_bytes(), digest).verified] == ["onnxruntime", "engine"]
    assert provenance.parse(path.read_bytes(), digest).verified[1] == engine
    trtbuild("verify", "net")
    assert [entry["by"] for entry in provenance.parse(path.read_bytes(), digest).verified] == ["onnxruntime", "engine"]
    # entries about other engines, about only some partitions, and incomplete entries are removed
    other_plans = json.loads(json.dumps(engine))
    other_plans["partitions"][0]["plans"]["ada"] = "0" * 64
    too_few = {**engine, "partitions": engine["partitions"][:1]}
    document = provenance.document(
        "net", digest, [other_plans, too_few, {"by": "engine", "targets": ["nowhere"]}, {"by": "engine"}]
    )
    path.write_bytes(provenance.to_bytes(document))
    trtbuild("verify", "net")
    assert [entry["by"] for entry in provenance.parse(path.read_bytes(), digest).verified] == ["onnxruntime"]
    # a result of this machine replaces the result of another machine
    path.write_bytes(provenance.to_bytes(provenance.document("net", digest, [{**engine, "builder": "another"}])))
    assert verify_here(trtbuild, monkeypatch).ok
    verified = provenance.parse(path.read_bytes(), digest).verified
    assert [entry["by"] for entry in verified] == ["onnxruntime", "engine"] and verified[1]["builder"] != "another"


def test_the_results_of_a_gpu_for_an_onnx_model_are_kept_without_a_gpu(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines]
) -> None:
    folder = trtbuild.project / "dist" / "words"
    assert verify_folders(folder).ok
    before = (folder / provenance.PROVENANCE_FILE).read_bytes()
    trtbuild("verify", "words")
    assert (folder / provenance.PROVENANCE_FILE).read_bytes() == before


def test_a_package_that_was_not_compared_is_unchecked(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchecked(value: Any) -> Any:
        raise NotRunnable("no kernel")

    monkeypatch.setattr(gpu, "spoil", staticmethod(unchecked))
    document = packages.verify_packages([trtbuild.project / "dist" / "net"], [], Options(), Watcher())
    assert not document.ok and document.models[0].status == "unchecked"


def test_engines_of_an_onnx_model_are_compared_with_onnxruntime(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trtbuild.project / "dist" / "words"
    by_folder, by_model = verify_folders(folder), verify_here(trtbuild, monkeypatch, "words")
    for document in (by_folder, by_model):
        assert document.ok, document
        (comparison,) = document.models[0].cuts
        assert (comparison.by, comparison.against, comparison.status) == ("engine", "onnxruntime", "right")
        assert max(part.points for part in comparison.partitions) == 5
    assert max(int(ids.max()) for ids in gpu.inputs_seen) > 10  # the largest possible id is 19
    assert verify_here(trtbuild, monkeypatch, "words").models[0].cuts[0].verdict == "hit"
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value * 1.1))
    wrong = verify_folders(folder)
    assert wrong.models[0].status == "wrong" and not wrong.ok
    assert wrong.models[0].cuts[0].partitions[0].place is None
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    (model,) = verify_folders(folder).models
    assert model.status == "unchecked" and "onnx and onnxruntime are not installed" in model.not_run[0].reason


def test_a_model_that_onnxruntime_cannot_run_is_unchecked(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise NotRunnable("onnxruntime rejects the model: no kernel")

    monkeypatch.setattr(OnnxRuntime, "__call__", refuse)
    for document, ok in (
        (verify_folders(trtbuild.project / "dist" / "words"), False),
        (verify_here(trtbuild, monkeypatch, "words"), True),
    ):
        (model,) = document.models
        assert document.ok == ok and model.status == "unchecked" and model.cuts == []
        assert [*model.not_run] == [NotRun(target="ada", reason="onnxruntime rejects the model: no kernel")]


def test_an_onnx_program_is_recognized_by_its_bytes(trtbuild: CommandLine, gpu: type[FakeOpenEngines]) -> None:
    """Older packages have the program of an ONNX model in ``torch/….pt2``."""
    folder = trtbuild.project / "dist" / "words"
    (model,) = folder.glob("onnx/*.onnx")
    (folder / "torch").mkdir()
    model.rename(folder / "torch" / f"{model.stem}.pt2")
    index = folder / "index.json"
    index.write_text(index.read_text().replace(f"onnx/{model.stem}.onnx", f"torch/{model.stem}.pt2"))
    document = verify_folders(folder)
    assert document.ok and document.models[0].cuts[0].against == "onnxruntime", document


def replace_program(folder: Path, data: bytes) -> None:
    """Replace the first program of a package by `data`, and update the index of the package."""
    index = json.loads((folder / "index.json").read_text())
    before = next(iter(index["targets"]["ada"]["partitions"]["programs"].values()))
    after = hashlib.sha256(data).hexdigest()
    path = f"torch/{before[:32]}.pt2"
    (folder / path).unlink()
    (folder / path.replace(before[:32], after[:32])).write_bytes(data)
    index["files"][path] = {"sha256": after, "size": len(data)}
    (folder / "index.json").write_text(json.dumps(index).replace(before, after).replace(before[:32], after[:32]))


@pytest.mark.parametrize(
    ("data", "error_type"),
    [(b"PK\x03\x04 and no archive", "InternalError"), (b"neither", "SourceError")],
)
def test_other_packages_are_verified_after_a_package_fails(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], tmp_path: Path, data: bytes, error_type: str
) -> None:
    good = trtbuild.project / "dist" / "net"
    broken, missing = tmp_path / "broken", tmp_path / "missing"
    shutil.copytree(good, broken)
    replace_program(broken, data)
    document = verify_folders(missing, broken, good)
    assert not document.ok
    assert [(error.package, error.type) for error in document.errors] == [
        (str(missing), "PackageMissing"),
        (str(broken), error_type),
    ]
    (model,) = document.models
    assert (model.model, model.status) == ("net", "right")


def test_missing_software_is_an_error_if_every_package_needs_it(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_toolchain_missing(*_: Any) -> Any:
        raise ToolchainMissing("no torch")

    monkeypatch.setattr(engine_verification, "OpenEngines", raise_toolchain_missing)
    net, words = (trtbuild.project / "dist" / name for name in ("net", "words"))
    with pytest.raises(ToolchainMissing):
        verify_folders(net, words)

    def open_engines(opened: Package, target_gpu: TargetGpu) -> Any:
        return raise_toolchain_missing() if opened.path == net else gpu(opened, target_gpu)

    monkeypatch.setattr(engine_verification, "OpenEngines", open_engines)
    document = verify_folders(net, words)
    assert [error.package for error in document.errors] == [str(net)]
    assert [model.status for model in document.models] == ["right"]


def test_a_package_is_unchecked_without_a_gpu(trtbuild: CommandLine) -> None:
    document = trtbuild("verify", "dist/net", expect=1)
    (model,) = document["models"]
    assert model["status"] == "unchecked" and model["not_run"] == [{"target": "ada", "reason": "no GPU was found"}]
    assert "nothing was compared" in trtbuild.run("verify", "dist/net").stdout
    mixed = trtbuild.run("verify", "dist/net", "edge")
    assert mixed.returncode == 2 and "packages and models cannot be verified together" in mixed.stderr
