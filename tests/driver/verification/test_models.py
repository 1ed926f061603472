"""`trtbuild verify` of models that are really built: right, wrong and recorded results."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch

import trtbuild as trtbuild_package
from tests.conftest import CommandLine
from tests.driver.verification.conftest import (
    FakeOpenEngines,
    change_conversion,
    only_comparison,
    provenance_path_and_digest,
    verify_folders,
    verify_here,
)
from tests.projects import edit
from trtbuild.cli.screens.verifications import verify_lines
from trtbuild.core.packages import provenance
from trtbuild.core.recipes.record import Record
from trtbuild.driver.gpu_comparisons import engines as engine_verification
from trtbuild.driver.packages import provenance_file
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.stages.verify import inputs
from trtbuild.store.local.local import LocalStore


def test_a_right_result_is_recorded_and_the_second_verification_is_a_hit(trtbuild: CommandLine) -> None:
    document = trtbuild("verify", "net")
    assert document["schema"] == "trtbuild.verify/1" and document["ok"] and document["errors"] == []
    comparison = only_comparison(document)
    assert (comparison["by"], comparison["status"], comparison["verdict"], comparison["tolerance"]) == (
        "onnxruntime",
        "right",
        "run",
        1e-5,
    )
    names = [part["partition"] for part in comparison["partitions"]]
    assert names[:2] == ["first", "second"] and all(0 <= part["error"] <= 1e-5 for part in comparison["partitions"])
    assert comparison["whole"]["status"] == comparison["lowered"]["status"] == "right"
    assert [point["which"] for point in comparison["points"]] == ["min", "opt", "max", "random 1", "random 2"]
    assert comparison["points"][0]["dims"] == {"x_0": 1} and comparison["points"][2]["dims"] == {"x_0": 8}
    assert (trtbuild.project / comparison["worst_input"]).is_file()
    assert document["models"][0]["not_run"] == [{"target": "ada", "reason": "no GPU was found"}]
    second = only_comparison(trtbuild("verify", "net"))
    assert (
        second["verdict"] == "hit"
        and second["partitions"] == comparison["partitions"]
        and second["key"] == comparison["key"]
    )
    other = only_comparison(trtbuild("verify", "net", "--tolerance", "0.5", "--points", "0"))
    assert other["verdict"] == "run" and other["key"] != comparison["key"] and len(other["points"]) == 3


def test_float16_layers_of_the_module_have_the_tolerance_of_float16(trtbuild: CommandLine) -> None:
    """The manifest has no `precision`, so the types in the module decide."""
    manifest = trtbuild.project / "trtbuild.yaml"
    manifest.write_text(
        manifest.read_text() + '  half:\n    source: {python: "net:Half"}\n    inputs: {x: {}}\n    targets: [ada]\n'
        '    partition: {granularity: ["first", "second"], min_block_size: 1}\n'
    )
    with (trtbuild.project / "net.py").open("a") as file:
        file.write(
            "\n\nclass Half(Net):\n    def __init__(self):\n        super().__init__()\n        self.second.half()\n\n"
            "    def forward(self, x):\n        return self.second(self.first(x).half()).float()\n"
        )
    trtbuild("build", "half")
    document = trtbuild("verify", "half")
    (model,) = document["models"]
    assert document["ok"] and model["precision"] == "float32"
    comparison = only_comparison(document)
    precisions = {part["partition"]: (part["precision"], part["tolerance"]) for part in comparison["partitions"]}
    assert precisions["first"] == ("float32", 1e-5) and precisions["second"] == ("float16", 5e-3)
    assert comparison["whole"]["tolerance"] == comparison["lowered"]["tolerance"] == comparison["tolerance"] == 5e-3
    (entry,) = provenance.parse(*_provenance_of(trtbuild, "half")).verified
    assert [part["tolerance"] for part in entry["partitions"]] == [
        part["tolerance"] for part in comparison["partitions"]
    ]
    with_tolerance = only_comparison(trtbuild("verify", "half", "--tolerance", "0.25"))
    assert {with_tolerance["tolerance"], *(part["tolerance"] for part in with_tolerance["partitions"])} == {0.25}


def _provenance_of(trtbuild: CommandLine, model: str) -> tuple[bytes, str]:
    """Return the bytes of a package's provenance file, and the digest of its index."""
    folder = trtbuild.project / "dist" / model
    return (folder / provenance.PROVENANCE_FILE).read_bytes(), hashlib.sha256(
        (folder / "index.json").read_bytes()
    ).hexdigest()


def test_provenance_is_valid_for_its_package_only(trtbuild: CommandLine) -> None:
    path, digest = provenance_path_and_digest(trtbuild)
    trtbuild("verify", "net")
    written, mtime_ns = path.read_bytes(), path.stat().st_mtime_ns
    parsed = provenance.parse(written, digest)
    (entry,) = parsed.verified
    assert parsed.void is None and entry["status"] == "right" and entry["finished"] and entry["builder"]
    assert trtbuild_package.load(path.parent, device="cpu").provenance == parsed
    assert trtbuild("inspect", "net")["provenance"] == {"verified": [entry], "void": None}
    index = json.loads((path.parent / "index.json").read_bytes())
    plans = {part["partition"]: part["plans"]["ada"] for part in entry["partitions"]}
    assert plans == {name: index["files"][plan]["sha256"] for name, plan in index["targets"]["ada"]["engines"].items()}
    trtbuild("verify", "net")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (written, mtime_ns)
    edit(trtbuild.project / "trtbuild.yaml", "max: [8, 16]", "max: [9, 16]")
    trtbuild("build", "net")
    outdated = provenance.parse(path.read_bytes(), provenance_path_and_digest(trtbuild)[1])
    assert not outdated.verified and "another package" in str(outdated.void)
    assert trtbuild_package.load(path.parent, device="cpu").provenance == outdated
    trtbuild("verify", "net")
    assert provenance.parse(path.read_bytes(), provenance_path_and_digest(trtbuild)[1]).verified


def flip_add(graph: onnx.GraphProto) -> None:
    """Change the addition after the hyperbolic tangent into a subtraction."""
    tangent = next(node for node in graph.node if node.op_type == "Tanh")
    (node,) = [node for node in graph.node if node.op_type == "Add" and tangent.output[0] in node.input]
    node.op_type = "Sub"


def change_constant(graph: onnx.GraphProto) -> None:
    """Add 0.001 to the first float32 constant inside the ONNX model."""
    for tensor in graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.data_type == onnx.TensorProto.FLOAT:
            value = onnx.numpy_helper.to_array(tensor) + 0.001
            tensor.CopyFrom(onnx.numpy_helper.from_array(value.astype("float32"), tensor.name))
            return
    raise AssertionError("no constant")


@pytest.mark.parametrize(
    ("change", "operator", "module"),
    [
        (flip_add, "aten.add.Tensor", "first"),
        (change_constant, "aten.mul.Tensor", "first"),
    ],
)
def test_the_wrong_operator_of_a_conversion_is_reported(
    trtbuild: CommandLine, change: Callable[[onnx.GraphProto], None], operator: str, module: str
) -> None:
    change_conversion(trtbuild, "net/convert/first", change)
    rebuilt = trtbuild("build", "net")
    assert rebuilt["totals"]["engine"]["run"] >= 1  # the engines were built from the wrong conversion
    document = trtbuild("verify", "net", expect=1)
    assert not document["ok"]
    comparison = only_comparison(document)
    assert (
        comparison["status"] == "wrong"
        and comparison["whole"]["status"] == "wrong"
        and comparison["lowered"]["status"] == "right"
    )
    wrong = {part["partition"]: part for part in comparison["partitions"] if part["status"] == "wrong"}
    assert list(wrong) == ["first", "second"]  # equal layers share the conversion
    place = wrong["first"]["place"]
    assert (place["first"]["operator"], place["first"]["module"]) == (operator, module)
    assert not (trtbuild.project / "dist" / "net" / provenance.PROVENANCE_FILE).exists()
    replayed = trtbuild("verify", "net", "--replay", comparison["worst_input"], expect=1)
    assert [point["which"] for point in only_comparison(replayed)["points"]] == ["replay"]
    assert only_comparison(replayed)["status"] == "wrong"


def test_a_conversion_that_does_not_run_is_wrong(trtbuild: CommandLine) -> None:
    def rename(graph: onnx.GraphProto) -> None:
        next(node for node in graph.node if node.op_type == "Tanh").op_type = "NoSuchOperator"

    change_conversion(trtbuild, "net/convert/first", rename)
    comparison = only_comparison(trtbuild("verify", "net", expect=1))
    first = comparison["partitions"][0]
    assert first["status"] == "wrong" and "NoSuchOperator" in first["text"] and first["error"] is None


def test_a_recorded_failure_or_a_damaged_report_is_verified_again(trtbuild: CommandLine) -> None:
    key = only_comparison(trtbuild("verify", "net"))["key"]
    store = LocalStore(trtbuild.cache)
    record = store.get_record(key)
    assert record is not None
    report = json.loads(store.get_bytes(record.outputs["report"].sha256))
    report["whole"]["status"] = "wrong"
    for invalid_report in (json.dumps(report).encode(), b"[]"):
        store.put_record(Record(record.recipe, {"report": store.put_bytes(invalid_report)}), replace=True)
        assert only_comparison(trtbuild("verify", "net"))["verdict"] == "run"


def exclude_zero(graph: onnx.GraphProto) -> None:
    """Make a conversion wrong at 0 only."""
    (node,) = [node for node in graph.node if node.op_type == "GreaterOrEqual"]
    node.op_type = "Greater"


def test_a_conversion_that_is_wrong_at_zero_only_is_reported(trtbuild: CommandLine) -> None:
    """Random floats are rarely 0, so some points contain zeros on purpose."""
    change_conversion(trtbuild, "edge/convert/model", exclude_zero)
    change_conversion(trtbuild, "zeros/convert/model", exclude_zero)
    document = trtbuild("verify", "edge", "zeros", expect=1)
    for model in document["models"]:
        (part,) = model["cuts"][0]["partitions"]
        assert part["status"] == "wrong" and part["place"]["first"]["operator"] == "aten.ge.Scalar"
    assert document["models"][1]["cuts"][0]["partitions"][0]["worst"]["zeros"]


def test_a_model_that_is_not_built_is_reported(trtbuild: CommandLine) -> None:
    shutil.rmtree(trtbuild.cache)
    document = trtbuild("verify", "net", expect=1)
    (model,) = document["models"]
    assert model["status"] == "missing" and model["missing"][0] == "net/trace"
    assert "trtbuild build net" in trtbuild.run("verify", "net").stdout


def test_a_build_with_verify_fails_if_a_result_is_wrong(trtbuild: CommandLine) -> None:
    document = trtbuild("build", "net", "--verify")
    assert document["ok"] and only_comparison(document["verification"])["status"] == "right"
    assert (trtbuild.project / "dist" / "net" / provenance.PROVENANCE_FILE).is_file()
    change_conversion(trtbuild, "edge/convert/model", exclude_zero)
    failed = trtbuild("build", "edge", "--verify", expect=1)
    (error,) = failed["errors"]
    assert not failed["ok"] and error["type"] == "VerificationFailed"
    assert "model 'edge', partition 'model' is wrong" in error["text"] and "aten.ge.Scalar" in error["text"]
    assert "--replay .trtbuild/verify/edge.safetensors" in error["hint"]


def test_without_the_flag_nothing_is_verified(trtbuild: CommandLine) -> None:
    assert "verification" not in trtbuild("build", "edge")


def test_replay_accepts_inputs_that_fit_a_profile(trtbuild: CommandLine, tmp_path: Path) -> None:
    worst = only_comparison(trtbuild("verify", "net"))["worst_input"]
    replayed = only_comparison(trtbuild("verify", "net", "--replay", worst))
    assert (replayed["status"], len(replayed["points"])) == ("right", 1)
    assert "is for one model" in trtbuild.run("verify", "--replay", worst).stderr
    assert "not a valid file of inputs" in trtbuild.run("verify", "net", "--replay", "net.py").stderr
    assert "cannot be read" in trtbuild.run("verify", "net", "--replay", "nowhere").stderr
    inputs.write_inputs(tmp_path / "nine.safetensors", {"x": torch.zeros(9, 16)}, {})
    inputs.write_inputs(tmp_path / "odd.safetensors", {"x": torch.zeros(4, 17)}, {})
    inputs.write_inputs(tmp_path / "y.safetensors", {"y": torch.zeros(4, 16)}, {})
    for name, message in (("nine", "no profile"), ("odd", "does not accept"), ("y", "has no input 'x'")):
        process = trtbuild.run("verify", "net", "--replay", str(tmp_path / f"{name}.safetensors"))
        assert process.returncode == 2 and message in process.stderr, process.stderr


def test_the_error_about_a_missing_onnxruntime_says_what_to_install(trtbuild: CommandLine, tmp_path: Path) -> None:
    hide = tmp_path / "sitecustomize.py"
    hide.write_text(
        "import importlib.metadata as m\n"
        "real = m.version\n"
        "def version(name):\n"
        "    if name.startswith('onnxruntime'):\n"
        "        raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
    )
    process = trtbuild.run("verify", "net", environment={"PYTHONPATH": str(tmp_path)})
    assert process.returncode == 2
    assert (
        "onnxruntime, which is not installed" in process.stderr and "pip install 'trtbuild[verify]'" in process.stderr
    )


def test_engines_are_compared_if_a_gpu_fits(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    (model,) = verify_here(trtbuild, monkeypatch).models
    by_onnx, engine = model.cuts
    assert (by_onnx.by, engine.by, engine.status, engine.tolerance) == (
        "onnxruntime",
        "engine",
        "right",
        2e-3,
    )
    assert engine.machine["device"] == "FakeGPU" and not model.not_run
    path, digest = provenance_path_and_digest(trtbuild)
    assert [entry["by"] for entry in provenance.parse(path.read_bytes(), digest).verified] == ["onnxruntime", "engine"]
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value * 1.1))
    second = verify_here(trtbuild, monkeypatch)
    assert [comparison.verdict for comparison in second.models[0].cuts] == [
        "hit",
        "hit",
    ]  # the same plans on the same GPU


def test_wrong_engines_are_reported(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value * 1.1))
    document = verify_here(trtbuild, monkeypatch)
    assert not document.ok
    by_onnx, engine = document.models[0].cuts
    assert by_onnx.status == "right" and engine.status == "wrong" and engine.worst_input
    assert {part.status for part in engine.partitions} == {"wrong"}
    assert all(part.place is None for part in engine.partitions)  # no operator is wrong: the conversions are right
    assert not any(part.hint for part in engine.partitions)
    assert not provenance_path_and_digest(trtbuild)[0].exists()


def test_an_error_that_tf32_may_explain_has_a_hint_about_tf32(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value * 1.004))
    by_folder = verify_folders(trtbuild.project / "dist" / "net")
    for document, uses_tf32 in ((by_folder, False), (verify_here(trtbuild, monkeypatch), True)):
        engine = document.models[0].cuts[-1]
        assert engine.by == "engine" and engine.status == "wrong"
        for entry in (*engine.partitions, engine.whole):
            assert "TF32" in entry.hint and entry.hint.startswith("unless") == (not uses_tf32)
        assert "`builder: {tf32: false}`" in "\n".join(verify_lines(document))


def test_an_onnx_model_is_not_compared_without_a_gpu(trtbuild: CommandLine) -> None:
    (model,) = trtbuild("verify", "words")["models"]
    assert model["status"] == "unchecked" and model["not_run"] == [{"target": "ada", "reason": "no GPU was found"}]


def test_an_unexpected_exception_fails_the_model(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_verification, "OpenEngines", lambda *_: 1 / 0)
    document = verify_here(trtbuild, monkeypatch)
    assert not document.ok and document.models[0].status == "failed"
    (error,) = document.errors
    assert error.type == "InternalError" and "ZeroDivisionError" in error.text


def test_a_package_is_not_in_place_if_an_engine_has_new_bytes(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine was built again with other bytes, but the package still has the earlier bytes."""
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(trtbuild.cache))
    workspace = Workspace(Request(trtbuild.project, models=("net",)))
    with workspace.store.session():
        plan = workspace.plan_without_outputs("net")
        assert provenance_file.package_in_place(trtbuild.project, plan) is not None
        assert plan.contents is not None
        first, *rest = plan.contents.engines
        assert first.plan is not None
        rebuilt = dataclasses.replace(first, plan=dataclasses.replace(first.plan, sha256="0" * 64))
        plan.contents = dataclasses.replace(plan.contents, engines=[rebuilt, *rest])
        assert provenance_file.package_in_place(trtbuild.project, plan) is None
    workspace.store.close()
