"""`trtbuild verify PACKAGE`. No GPU: what runs in the place of engines is the package's own reference."""

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
    package,
    verify_folders,
    verify_here,
)
from trtbuild.core.model.verified import NotRun
from trtbuild.core.packages import provenance
from trtbuild.driver.building.events import Watcher
from trtbuild.driver.verification import engines as engines_here
from trtbuild.driver.verification import packages
from trtbuild.driver.verification.document import Options
from trtbuild.errors import ToolchainMissing
from trtbuild.stages.verify.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.running import Unchecked


def test_a_package_alone_is_verified_and_what_was_known_of_it_stays(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trtbuild("verify", "net")
    alone = tmp_path / "alone"
    shutil.copytree(trtbuild.project / "dist" / "net", alone)
    document = packages.verify_packages([alone], [], Options(), Watcher())
    assert document.ok, document
    (engine,) = document.models[0].cuts
    assert (engine.by, engine.status, engine.key) == ("engine", "right", None)
    assert [point.which for point in engine.points] == ["min", "opt", "max", "random 1", "random 2"]
    found = trtbuild_package.load(alone, device="cpu").provenance
    assert [entry["by"] for entry in found.verified] == ["onnxruntime", "engine"]
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value + 1))
    wrong = packages.verify_packages([alone], ["ada"], Options(), Watcher())
    assert not wrong.ok and wrong.models[0].status == "wrong"
    assert not (alone / provenance.NAME).exists()


def test_what_a_gpu_has_found_of_the_same_engines_stays_where_there_is_none(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trtbuild.project / "dist" / "net"
    assert verify_folders(folder).ok
    place, digest = package(trtbuild)
    (engine,) = provenance.parse(place.read_bytes(), digest).verified
    trtbuild("verify", "net")  # in a child process, which has no GPU
    assert [entry["by"] for entry in provenance.parse(place.read_bytes(), digest).verified] == ["onnxruntime", "engine"]
    assert provenance.parse(place.read_bytes(), digest).verified[1] == engine
    trtbuild("verify", "net")
    assert [entry["by"] for entry in provenance.parse(place.read_bytes(), digest).verified] == ["onnxruntime", "engine"]
    # an entry that is about other plans, and one that is about nothing
    other = json.loads(json.dumps(engine))
    other["partitions"][0]["plans"]["ada"] = "0" * 64
    few = {**engine, "partitions": engine["partitions"][:1]}
    made = provenance.document("net", digest, [other, few, {"by": "engine", "targets": ["nowhere"]}, {"by": "engine"}])
    place.write_bytes(provenance.to_bytes(made))
    trtbuild("verify", "net")
    assert [entry["by"] for entry in provenance.parse(place.read_bytes(), digest).verified] == ["onnxruntime"]
    # this machine's own answer takes the place of the other's
    place.write_bytes(provenance.to_bytes(provenance.document("net", digest, [{**engine, "builder": "another"}])))
    assert verify_here(trtbuild, monkeypatch).ok
    found = provenance.parse(place.read_bytes(), digest).verified
    assert [entry["by"] for entry in found] == ["onnxruntime", "engine"] and found[1]["builder"] != "another"


def test_what_a_gpu_has_found_of_an_onnx_model_stays_where_nothing_was_compared(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines]
) -> None:
    folder = trtbuild.project / "dist" / "words"
    assert verify_folders(folder).ok
    before = (folder / provenance.NAME).read_bytes()
    trtbuild("verify", "words")
    assert (folder / provenance.NAME).read_bytes() == before


def test_what_was_not_compared_of_a_package_is_not_right(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchecked(value: Any) -> Any:
        raise Unchecked("no kernel")

    monkeypatch.setattr(gpu, "spoil", staticmethod(unchecked))
    document = packages.verify_packages([trtbuild.project / "dist" / "net"], [], Options(), Watcher())
    assert not document.ok and document.models[0].status == "unchecked"


def test_engines_of_an_onnx_model_are_compared_with_what_onnxruntime_computes(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trtbuild.project / "dist" / "words"
    by_folder, by_model = verify_folders(folder), verify_here(trtbuild, monkeypatch, "words")
    for document in (by_folder, by_model):
        assert document.ok, document
        (cut,) = document.models[0].cuts
        assert (cut.by, cut.against, cut.status) == ("engine", "onnxruntime", "right")
        assert max(part.points for part in cut.partitions) == 5
    assert max(int(ids.max()) for ids in gpu.seen) > 10  # all rows of the table
    assert verify_here(trtbuild, monkeypatch, "words").models[0].cuts[0].verdict == "hit"
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value * 1.1))
    wrong = verify_folders(folder)
    assert wrong.models[0].status == "wrong" and not wrong.ok
    assert wrong.models[0].cuts[0].partitions[0].place is None
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    (model,) = verify_folders(folder).models
    assert model.status == "unchecked" and "onnxruntime is not installed" in model.not_run[0].reason


def test_what_onnxruntime_has_no_kernel_for_is_not_compared(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise Unchecked("onnxruntime refuses it: no kernel")

    monkeypatch.setattr(OnnxRuntime, "__call__", refuse)
    for document, ok in (
        (verify_folders(trtbuild.project / "dist" / "words"), False),
        (verify_here(trtbuild, monkeypatch, "words"), True),
    ):
        (model,) = document.models
        assert document.ok == ok and model.status == "unchecked" and model.cuts == []
        assert [*model.not_run] == [NotRun(target="ada", reason="onnxruntime refuses it: no kernel")]


def test_whether_a_program_is_onnx_is_known_by_its_bytes(trtbuild: CommandLine, gpu: type[FakeOpenEngines]) -> None:
    """Packages were written that call the model of an ONNX source ``torch/….pt2``."""
    folder = trtbuild.project / "dist" / "words"
    (found,) = folder.glob("onnx/*.onnx")
    (folder / "torch").mkdir()
    found.rename(folder / "torch" / f"{found.stem}.pt2")
    place = folder / "index.json"
    place.write_text(place.read_text().replace(f"onnx/{found.stem}.onnx", f"torch/{found.stem}.pt2"))
    document = verify_folders(folder)
    assert document.ok and document.models[0].cuts[0].against == "onnxruntime", document


def replace_program(folder: Path, data: bytes) -> None:
    """Give a package's first program other bytes; its index says so."""
    index = json.loads((folder / "index.json").read_text())
    before = next(iter(index["targets"]["ada"]["partitions"]["programs"].values()))
    after = hashlib.sha256(data).hexdigest()
    path = f"torch/{before[:32]}.pt2"
    (folder / path).unlink()
    (folder / path.replace(before[:32], after[:32])).write_bytes(data)
    index["files"][path] = {"sha256": after, "size": len(data)}
    (folder / "index.json").write_text(json.dumps(index).replace(before, after).replace(before[:32], after[:32]))


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"PK\x03\x04 and no archive", "InternalError"), (b"neither", "SourceError")],
)
def test_a_package_that_fails_keeps_no_other_from_being_verified(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], tmp_path: Path, data: bytes, said: str
) -> None:
    good = trtbuild.project / "dist" / "net"
    broken, missing = tmp_path / "broken", tmp_path / "missing"
    shutil.copytree(good, broken)
    replace_program(broken, data)
    document = verify_folders(missing, broken, good)
    assert not document.ok
    assert [(error.package, error.type) for error in document.errors] == [
        (str(missing), "PackageMissing"),
        (str(broken), said),
    ]
    (model,) = document.models
    assert (model.model, model.status) == ("net", "right")


def test_what_this_machine_lacks_for_every_package_ends_the_command(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(*_: Any) -> Any:
        raise ToolchainMissing("no torch")

    monkeypatch.setattr(engines_here, "OpenEngines", lacks)
    net, words = (trtbuild.project / "dist" / name for name in ("net", "words"))
    with pytest.raises(ToolchainMissing):
        verify_folders(net, words)
    monkeypatch.setattr(engines_here, "OpenEngines", lambda p, fit: lacks() if p.path == net else gpu(p, fit))
    document = verify_folders(net, words)
    assert [error.package for error in document.errors] == [str(net)]
    assert [model.status for model in document.models] == ["right"]


def test_a_package_where_no_gpu_is(trtbuild: CommandLine) -> None:
    document = trtbuild("verify", "dist/net", expect=1)
    (model,) = document["models"]
    assert model["status"] == "unchecked" and model["not_run"] == [{"target": "ada", "reason": "no GPU was found"}]
    assert "nothing was compared" in trtbuild.run("verify", "dist/net").stdout
    mixed = trtbuild.run("verify", "dist/net", "edge")
    assert mixed.returncode == 2 and "packages and models cannot be verified together" in mixed.stderr
