"""`trtbuild verify` on real builds: what is right, what was made wrong on purpose, and what is not done twice."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import onnx
import pytest
import torch

import trtbuild as trtbuild_package
from tests.conftest import CommandLine, step
from tests.driver.test_verification_engines import FakeMemory
from trtbuild.cli.verifications import verified
from trtbuild.core import provenance
from trtbuild.core.partitions import Partition
from trtbuild.core.record import Record
from trtbuild.core.verification import Point
from trtbuild.driver import provenance_file, verification, verification_package
from trtbuild.driver import verification_engines as engines_here
from trtbuild.driver import verification_records as records
from trtbuild.driver.verification_engines import Fit
from trtbuild.driver.watcher import Watcher
from trtbuild.driver.workspace import Request, Workspace
from trtbuild.errors import ToolchainMissing
from trtbuild.runtime.package import Package
from trtbuild.stages.verify import inputs
from trtbuild.stages.verify.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.running import Torch, Unchecked, Weights
from trtbuild.store.local import LocalStore

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
defaults: {targets: [ada], profiles: [rows], reference: true}
profiles:
  rows:
    x: {min: [1, 16], opt: [4, 16], max: [8, 16]}
  ids:
    ids: {min: [1, 3], opt: [4, 3], max: [8, 3]}
models:
  net:
    source: {python: "net:Net"}
    inputs: {x: {}}
    partition: {granularity: ["first", "second"], min_block_size: 1}
  angle:
    source: {python: "net:Angle"}
    inputs: {x: {dtype: int64}}
  zeros:
    source: {python: "net:Angle"}
    inputs: {x: {}}
  words:
    source: {onnx: words.onnx}
    inputs: {ids: {dtype: int64}}
    dims: {rows: ids.0}
    profiles: [ids]
"""

NET = """\
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return torch.tanh(self.linear(x)) + 0.5 * x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Block(), Block()
        self.eval()

    def forward(self, x):
        return torch.sigmoid(self.second(self.first(x)))


class Angle(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x):
        return torch.atan2(x, x.flip(-1) - 1)
"""


def write_words(path: Path) -> None:
    """Rows of a table of 20, chosen by integers."""
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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    base = tmp_path_factory.mktemp("verification")
    (base / "project").mkdir()
    (base / "project" / "trtbuild.yaml").write_text(MANIFEST)
    (base / "project" / "net.py").write_text(NET)
    write_words(base / "project" / "words.onnx")
    line = CommandLine(base / "project", base / "cache", {"TRTBUILD_REMOTES": ""})
    line("build")
    return line


@pytest.fixture
def trtbuild(built: CommandLine, tmp_path: Path) -> CommandLine:
    """A copy of the project and its cache, to be spoiled."""
    shutil.copytree(built.project, tmp_path / "project")
    shutil.copytree(built.cache, tmp_path / "cache")
    return CommandLine(tmp_path / "project", tmp_path / "cache", built.environment)


def only(document: Any) -> Any:
    """The one comparison of a document's one model."""
    (model,) = document["models"]
    (cut,) = model["cuts"]
    return cut


def alter(line: CommandLine, identifier: str, change: Callable[[onnx.GraphProto], None]) -> None:
    """Replace a conversion's record by one that is as valid, of another model."""
    store = LocalStore(line.cache)
    honest = store.get_record(step(line("plan", "net"), identifier)["key"])
    assert honest is not None
    model = onnx.ModelProto.FromString(store.get_bytes(honest.outputs["onnx"].sha256))
    before = model.SerializeToString(deterministic=True)
    change(model.graph)
    after = model.SerializeToString(deterministic=True)
    assert after != before
    store.put_record(
        dataclasses.replace(honest, outputs={**honest.outputs, "onnx": store.put_bytes(after)}), replace=True
    )


def package(line: CommandLine) -> tuple[Path, str]:
    """The provenance file of net's package, and the package's digest."""
    root = line.project / "dist" / "net"
    return root / provenance.NAME, hashlib.sha256((root / "index.json").read_bytes()).hexdigest()


def test_what_is_right_is_recorded_and_not_done_again(trtbuild: CommandLine) -> None:
    document = trtbuild("verify", "net")
    assert document["schema"] == "trtbuild.verify/1" and document["ok"] and document["errors"] == []
    cut = only(document)
    assert (cut["by"], cut["status"], cut["verdict"], cut["tolerance"]) == ("onnxruntime", "right", "run", 1e-5)
    names = [part["partition"] for part in cut["partitions"]]
    assert names[:2] == ["first", "second"] and all(0 <= part["error"] <= 1e-5 for part in cut["partitions"])
    assert cut["whole"]["status"] == cut["lowered"]["status"] == "right"
    assert [point["which"] for point in cut["points"]] == ["min", "opt", "max", "random 1", "random 2"]
    assert cut["points"][0]["dims"] == {"x_0": 1} and cut["points"][2]["dims"] == {"x_0": 8}
    assert (trtbuild.project / cut["worst_input"]).is_file()
    assert document["models"][0]["not_run"] == [{"target": "ada", "reason": "no GPU was found"}]
    again = only(trtbuild("verify", "net"))
    assert again["verdict"] == "hit" and again["partitions"] == cut["partitions"] and again["key"] == cut["key"]
    other = only(trtbuild("verify", "net", "--tolerance", "0.5", "--points", "0"))
    assert other["verdict"] == "run" and other["key"] != cut["key"] and len(other["points"]) == 3


def test_provenance_is_of_the_package_in_place_and_of_no_other(trtbuild: CommandLine) -> None:
    place, digest = package(trtbuild)
    trtbuild("verify", "net")
    written, stamp = place.read_bytes(), place.stat().st_mtime_ns
    found = provenance.of(written, digest)
    (entry,) = found.verified
    assert found.void is None and entry["status"] == "right" and entry["finished"] and entry["builder"]
    assert trtbuild_package.load(place.parent, device="cpu").provenance == found
    assert trtbuild("inspect", "net")["provenance"] == {"verified": [entry], "void": None}
    index = json.loads((place.parent / "index.json").read_bytes())
    plans = {part["partition"]: part["plans"]["ada"] for part in entry["partitions"]}
    assert plans == {name: index["files"][path]["sha256"] for name, path in index["targets"]["ada"]["engines"].items()}
    trtbuild("verify", "net")
    assert (place.read_bytes(), place.stat().st_mtime_ns) == (written, stamp)
    manifest = trtbuild.project / "trtbuild.yaml"
    manifest.write_text(MANIFEST.replace("max: [8, 16]", "max: [9, 16]"))
    trtbuild("build", "net")
    void = provenance.of(place.read_bytes(), package(trtbuild)[1])
    assert not void.verified and "another package" in str(void.void)
    assert trtbuild_package.load(place.parent, device="cpu").provenance == void
    trtbuild("verify", "net")
    assert provenance.of(place.read_bytes(), package(trtbuild)[1]).verified


def flip_add(graph: onnx.GraphProto) -> None:
    """The addition after the hyperbolic tangent becomes a subtraction."""
    tangent = next(node for node in graph.node if node.op_type == "Tanh")
    (node,) = [node for node in graph.node if node.op_type == "Add" and tangent.output[0] in node.input]
    node.op_type = "Sub"


def change_constant(graph: onnx.GraphProto) -> None:
    """A half becomes a half and a bit."""
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
def test_a_conversion_that_was_made_wrong_is_found_and_located(
    trtbuild: CommandLine, change: Callable[[onnx.GraphProto], None], operator: str, module: str
) -> None:
    alter(trtbuild, "net/convert/first", change)
    rebuilt = trtbuild("build", "net")
    assert rebuilt["totals"]["engine"]["run"] >= 1  # the fault was delivered: engines are made of it
    document = trtbuild("verify", "net", expect=1)
    assert not document["ok"]
    cut = only(document)
    assert cut["status"] == "wrong" and cut["whole"]["status"] == "wrong" and cut["lowered"]["status"] == "right"
    wrong = {part["partition"]: part for part in cut["partitions"] if part["status"] == "wrong"}
    assert list(wrong) == ["first", "second"]  # equal layers share the conversion
    place = wrong["first"]["place"]
    assert (place["first"]["operator"], place["first"]["module"]) == (operator, module)
    assert not (trtbuild.project / "dist" / "net" / provenance.NAME).exists()
    replayed = trtbuild("verify", "net", "--replay", cut["worst_input"], expect=1)
    assert [point["which"] for point in only(replayed)["points"]] == ["replay"]
    assert only(replayed)["status"] == "wrong"


def test_a_conversion_that_does_not_run_is_wrong(trtbuild: CommandLine) -> None:
    def rename(graph: onnx.GraphProto) -> None:
        next(node for node in graph.node if node.op_type == "Tanh").op_type = "NoSuchOperator"

    alter(trtbuild, "net/convert/first", rename)
    cut = only(trtbuild("verify", "net", expect=1))
    first = cut["partitions"][0]
    assert first["status"] == "wrong" and "NoSuchOperator" in first["text"] and first["error"] is None


def test_a_report_that_says_wrong_is_not_gone_by(trtbuild: CommandLine) -> None:
    """Somebody put a record of a failure there, or damaged one: it is done again."""
    key = only(trtbuild("verify", "net"))["key"]
    store = LocalStore(trtbuild.cache)
    record = store.get_record(key)
    assert record is not None
    report = json.loads(store.get_bytes(record.outputs["report"].sha256))
    report["whole"]["status"] = "wrong"
    for bad in (json.dumps(report).encode(), b"[]"):
        store.put_record(Record(record.recipe, {"report": store.put_bytes(bad)}), replace=True)
        assert only(trtbuild("verify", "net"))["verdict"] == "run"


def test_translations_that_are_known_to_be_wrong_are_found(trtbuild: CommandLine) -> None:
    """atan2 of integers; of floats only where both are zero, which is what the points with zeros are for."""
    document = trtbuild("verify", "angle", "zeros", expect=1)
    for model in document["models"]:
        (part,) = model["cuts"][0]["partitions"]
        assert part["status"] == "wrong" and part["place"]["first"]["operator"] == "aten.atan2.default"
    assert document["models"][1]["cuts"][0]["partitions"][0]["worst"]["zeros"]


def test_what_is_not_built_is_said(trtbuild: CommandLine) -> None:
    shutil.rmtree(trtbuild.cache)
    document = trtbuild("verify", "net", expect=1)
    (model,) = document["models"]
    assert model["status"] == "missing" and model["missing"][0] == "net/trace"
    assert "trtbuild build net" in trtbuild.run("verify", "net").stdout


def test_a_build_verifies_and_fails_for_what_is_wrong(trtbuild: CommandLine) -> None:
    document = trtbuild("build", "net", "--verify")
    assert document["ok"] and only(document["verification"])["status"] == "right"
    assert (trtbuild.project / "dist" / "net" / provenance.NAME).is_file()
    failed = trtbuild("build", "angle", "--verify", expect=1)
    (error,) = failed["errors"]
    assert not failed["ok"] and error["type"] == "VerificationFailed"
    assert "model 'angle', partition 'model' is wrong" in error["text"] and "aten.atan2.default" in error["text"]
    assert "--replay .trtbuild/verify/angle.safetensors" in error["hint"]


def test_without_the_flag_nothing_is_verified(trtbuild: CommandLine) -> None:
    assert "verification" not in trtbuild("build", "angle")


def test_replay_takes_what_a_profile_takes(trtbuild: CommandLine, tmp_path: Path) -> None:
    worst = only(trtbuild("verify", "net"))["worst_input"]
    found = only(trtbuild("verify", "net", "--replay", worst))
    assert (found["status"], len(found["points"])) == ("right", 1)
    assert "is for one model" in trtbuild.run("verify", "--replay", worst).stderr
    assert "no file of inputs" in trtbuild.run("verify", "net", "--replay", "net.py").stderr
    assert "cannot be read" in trtbuild.run("verify", "net", "--replay", "nowhere").stderr
    inputs.write(tmp_path / "nine.safetensors", {"x": torch.zeros(9, 16)}, {})
    inputs.write(tmp_path / "odd.safetensors", {"x": torch.zeros(4, 17)}, {})
    inputs.write(tmp_path / "y.safetensors", {"y": torch.zeros(4, 16)}, {})
    for name, said in (("nine", "no profile"), ("odd", "does not take"), ("y", "has no input 'x'")):
        done = trtbuild.run("verify", "net", "--replay", str(tmp_path / f"{name}.safetensors"))
        assert done.returncode == 2 and said in done.stderr, done.stderr


def test_onnxruntime_missing_is_said_with_what_to_install(trtbuild: CommandLine, tmp_path: Path) -> None:
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
    done = trtbuild.run("verify", "net", environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert "onnxruntime, which is not installed" in done.stderr and "pip install 'trtbuild[verify]'" in done.stderr


ANY_POINT = Point(0, "any", (), 0)


class FakeOpenEngines:
    """The engines of a package on a GPU, in whose place its reference computes; `spoil` changes what they give."""

    spoil = staticmethod(lambda value: value)
    seen: ClassVar[list[Any]] = []

    def __init__(self, package: Package, fit: Fit) -> None:
        self.memory = FakeMemory()
        target = package.index.targets[fit.target]
        blobs = verification_package._Blobs(package, target)
        programs = {graph: package.index.files[path].sha256 for graph, path in target.programs.items()}
        weights = Weights(
            [blobs.weight(slot) for slot in range(max(package.index.weights, default=-1) + 1)], blobs.read
        )
        right = OnnxRuntime(lambda graph: blobs.read(programs[graph]), weights)
        torch_ = Torch(programs, weights, blobs.read)
        self._run = (lambda part, values: right(part, values, ANY_POINT)) if blobs.has_onnx else torch_.part

    def part(self, partition: Partition, *, cuda_graphs: bool) -> Any:
        def run(values: Any, call: Any) -> list[Any]:
            self.seen.extend(values)
            return [self.spoil(value) for value in self._run(partition, values)]

        return run

    def __enter__(self) -> FakeOpenEngines:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[FakeOpenEngines]:
    """A machine with a GPU for the target."""
    monkeypatch.setattr(FakeOpenEngines, "spoil", staticmethod(lambda value: value))
    monkeypatch.setattr(FakeOpenEngines, "seen", [])
    monkeypatch.setattr(engines_here, "OpenEngines", FakeOpenEngines)
    monkeypatch.setattr(engines_here, "why_not_with_torch", lambda: None)
    monkeypatch.setattr(
        engines_here, "fitting", lambda package, targets: [(name, Fit(name, 0, 89)) for name in targets]
    )
    monkeypatch.setattr(engines_here, "machine", lambda fit, platform: {"platform": platform, "device": "FakeGPU"})
    return FakeOpenEngines


def verify_here(line: CommandLine, monkeypatch: pytest.MonkeyPatch, model: str = "net") -> Any:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(line.cache))
    monkeypatch.setenv("TRTBUILD_REMOTES", "")
    return verification.verify(Request(line.project, models=(model,)), verification.Options(), Watcher())


def verify_folders(*folders: Path, targets: Sequence[str] = ()) -> Any:
    return verification_package.verify_packages(folders, targets, verification.Options(), Watcher())


def test_engines_are_compared_where_a_gpu_fits(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    (model,) = verify_here(trtbuild, monkeypatch)["models"]
    by_onnx, engine = model["cuts"]
    assert (by_onnx["by"], engine["by"], engine["status"], engine["tolerance"]) == (
        "onnxruntime",
        "engine",
        "right",
        1e-3,
    )
    assert engine["machine"]["device"] == "FakeGPU" and model["not_run"] == []
    place, digest = package(trtbuild)
    assert [entry["by"] for entry in provenance.of(place.read_bytes(), digest).verified] == ["onnxruntime", "engine"]
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value * 1.1))
    again = verify_here(trtbuild, monkeypatch)
    assert [cut["verdict"] for cut in again["models"][0]["cuts"]] == ["hit", "hit"]  # these very plans, on this GPU


def test_an_engine_that_is_wrong_on_purpose_is_named(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value * 1.1))
    document = verify_here(trtbuild, monkeypatch)
    assert not document["ok"]
    by_onnx, engine = document["models"][0]["cuts"]
    assert by_onnx["status"] == "right" and engine["status"] == "wrong" and engine["worst_input"]
    assert {part["status"] for part in engine["partitions"]} == {"wrong"}
    assert all(part["place"] is None for part in engine["partitions"])  # what they were made of is right
    assert not any("hint" in part for part in engine["partitions"])
    assert not package(trtbuild)[0].exists()


def test_engines_whose_conversion_is_wrong_or_that_are_built_without_tf32_get_no_advice_about_it() -> None:
    wrong = {"status": "wrong", "error": 2e-3}
    engine = {"by": "engine", "status": "wrong", "targets": ["ada"], "tolerance": 1e-3, "partitions": [wrong]}
    engine["whole"] = wrong
    converted = {"by": "onnxruntime", "status": "right", "targets": ["ada", "blackwell"], "partitions": [], "whole": {}}

    def hints(cuts: list[Any], precision: str = "float32", tf32: bool | None = True) -> int:
        found = records.with_tf32_hints(cuts, precision, tf32)
        return sum("hint" in entry for cut in found for entry in (*cut["partitions"], cut["whole"]))

    assert hints([converted, engine]) == hints([engine], tf32=None) == 2
    assert hints([{**converted, "status": "wrong"}, engine]) == 0
    assert hints([{**converted, "status": "wrong", "targets": ["blackwell"]}, engine]) == 2
    assert hints([converted, engine], tf32=False) == hints([converted, engine], "float16") == 0


def test_an_error_that_tf32_may_explain_says_so(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value * 1.002))
    by_folder = verify_folders(trtbuild.project / "dist" / "net")
    for document, known in ((by_folder, False), (verify_here(trtbuild, monkeypatch), True)):
        engine = document["models"][0]["cuts"][-1]
        assert engine["by"] == "engine" and engine["status"] == "wrong"
        for entry in (*engine["partitions"], engine["whole"]):
            assert "TF32" in entry["hint"] and entry["hint"].startswith("unless") != known
        assert "`builder: {tf32: false}`" in "\n".join(verified(document))


def test_a_package_alone_is_verified_and_what_was_known_of_it_stays(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trtbuild("verify", "net")
    alone = tmp_path / "alone"
    shutil.copytree(trtbuild.project / "dist" / "net", alone)
    document = verification_package.verify_packages([alone], [], verification.Options(), Watcher())
    assert document["ok"], document
    (engine,) = document["models"][0]["cuts"]
    assert (engine["by"], engine["status"], engine["key"]) == ("engine", "right", None)
    assert [point["which"] for point in engine["points"]] == ["min", "opt", "max", "random 1", "random 2"]
    found = trtbuild_package.load(alone, device="cpu").provenance
    assert [entry["by"] for entry in found.verified] == ["onnxruntime", "engine"]
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value + 1))
    wrong = verification_package.verify_packages([alone], ["ada"], verification.Options(), Watcher())
    assert not wrong["ok"] and wrong["models"][0]["status"] == "wrong"
    assert not (alone / provenance.NAME).exists()


def test_what_a_gpu_has_found_of_the_same_engines_stays_where_there_is_none(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trtbuild.project / "dist" / "net"
    assert verify_folders(folder)["ok"]
    place, digest = package(trtbuild)
    (engine,) = provenance.of(place.read_bytes(), digest).verified
    trtbuild("verify", "net")  # a process of its own, which has no GPU
    assert [entry["by"] for entry in provenance.of(place.read_bytes(), digest).verified] == ["onnxruntime", "engine"]
    assert provenance.of(place.read_bytes(), digest).verified[1] == engine
    trtbuild("verify", "net")
    assert [entry["by"] for entry in provenance.of(place.read_bytes(), digest).verified] == ["onnxruntime", "engine"]
    # an entry that is about other plans, and one that is about nothing
    other = json.loads(json.dumps(engine))
    other["partitions"][0]["plans"]["ada"] = "0" * 64
    few = {**engine, "partitions": engine["partitions"][:1]}
    made = provenance.document("net", digest, [other, few, {"by": "engine", "targets": ["nowhere"]}, {"by": "engine"}])
    place.write_bytes(provenance.to_bytes(made))
    trtbuild("verify", "net")
    assert [entry["by"] for entry in provenance.of(place.read_bytes(), digest).verified] == ["onnxruntime"]
    # this machine's own answer takes the place of the other's
    place.write_bytes(provenance.to_bytes(provenance.document("net", digest, [{**engine, "builder": "another"}])))
    assert verify_here(trtbuild, monkeypatch)["ok"]
    found = provenance.of(place.read_bytes(), digest).verified
    assert [entry["by"] for entry in found] == ["onnxruntime", "engine"] and found[1]["builder"] != "another"


def test_what_a_gpu_has_found_of_an_onnx_model_stays_where_nothing_was_compared(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines]
) -> None:
    folder = trtbuild.project / "dist" / "words"
    assert verify_folders(folder)["ok"]
    before = (folder / provenance.NAME).read_bytes()
    trtbuild("verify", "words")
    assert (folder / provenance.NAME).read_bytes() == before


def test_what_was_not_compared_of_a_package_is_not_right(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchecked(value: Any) -> Any:
        raise Unchecked("no kernel")

    monkeypatch.setattr(gpu, "spoil", staticmethod(unchecked))
    document = verification_package.verify_packages(
        [trtbuild.project / "dist" / "net"], [], verification.Options(), Watcher()
    )
    assert not document["ok"] and document["models"][0]["status"] == "unchecked"


def test_engines_of_an_onnx_model_are_compared_with_what_onnxruntime_computes(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trtbuild.project / "dist" / "words"
    by_folder, by_model = verify_folders(folder), verify_here(trtbuild, monkeypatch, "words")
    for document in (by_folder, by_model):
        assert document["ok"], json.dumps(document)[:3000]
        (cut,) = document["models"][0]["cuts"]
        assert (cut["by"], cut["against"], cut["status"]) == ("engine", "onnxruntime", "right")
        assert max(part["points"] for part in cut["partitions"]) == 5
    assert max(int(ids.max()) for ids in gpu.seen) > 10  # all rows of the table
    assert verify_here(trtbuild, monkeypatch, "words")["models"][0]["cuts"][0]["verdict"] == "hit"
    monkeypatch.setattr(gpu, "spoil", staticmethod(lambda value: value * 1.1))
    wrong = verify_folders(folder)
    assert wrong["models"][0]["status"] == "wrong" and not wrong["ok"]
    assert wrong["models"][0]["cuts"][0]["partitions"][0]["place"] is None
    monkeypatch.setattr(verification_package, "find_spec", lambda name: None)
    (model,) = verify_folders(folder)["models"]
    assert model["status"] == "unchecked" and "onnxruntime is not installed" in model["not_run"][0]["reason"]


def test_an_onnx_model_has_no_conversion_to_be_compared_where_no_gpu_is(trtbuild: CommandLine) -> None:
    (model,) = trtbuild("verify", "words")["models"]
    assert model["status"] == "unchecked" and model["not_run"] == [{"target": "ada", "reason": "no GPU was found"}]


def test_whether_a_program_is_onnx_is_known_by_its_bytes(trtbuild: CommandLine, gpu: type[FakeOpenEngines]) -> None:
    """Packages were written that call the model of an ONNX source ``torch/….pt2``."""
    folder = trtbuild.project / "dist" / "words"
    (found,) = folder.glob("onnx/*.onnx")
    (folder / "torch").mkdir()
    found.rename(folder / "torch" / f"{found.stem}.pt2")
    place = folder / "index.json"
    place.write_text(place.read_text().replace(f"onnx/{found.stem}.onnx", f"torch/{found.stem}.pt2"))
    document = verify_folders(folder)
    assert document["ok"] and document["models"][0]["cuts"][0]["against"] == "onnxruntime", document


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
    assert not document["ok"]
    assert [(error["package"], error["type"]) for error in document["errors"]] == [
        (str(missing), "PackageMissing"),
        (str(broken), said),
    ]
    (model,) = document["models"]
    assert (model["model"], model["status"]) == ("net", "right")


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
    assert [error["package"] for error in document["errors"]] == [str(net)]
    assert [model["status"] for model in document["models"]] == ["right"]


def test_an_error_that_nobody_expected_is_one_models(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines_here, "OpenEngines", lambda *_: 1 / 0)
    document = verify_here(trtbuild, monkeypatch)
    assert not document["ok"] and document["models"][0]["status"] == "failed"
    (error,) = document["errors"]
    assert error["type"] == "InternalError" and "ZeroDivisionError" in error["text"]


def test_a_package_is_not_in_place_once_its_engines_were_built_again(
    trtbuild: CommandLine, gpu: type[FakeOpenEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is not the same bytes again, and a package that still has the one before."""
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(trtbuild.cache))
    workspace = Workspace(Request(trtbuild.project, models=("net",)))
    with workspace.store.session():
        plan = workspace.plan_elsewhere("net")
        assert provenance_file.package_in_place(trtbuild.project, plan) is not None
        assert plan.contents is not None
        first, *rest = plan.contents.engines
        assert first.plan is not None
        again = dataclasses.replace(first, plan=dataclasses.replace(first.plan, sha256="0" * 64))
        plan.contents = dataclasses.replace(plan.contents, engines=[again, *rest])
        assert provenance_file.package_in_place(trtbuild.project, plan) is None
    workspace.store.close()


def test_a_package_where_no_gpu_is(trtbuild: CommandLine) -> None:
    document = trtbuild("verify", "dist/net", expect=1)
    (model,) = document["models"]
    assert model["status"] == "unchecked" and model["not_run"] == [{"target": "ada", "reason": "no GPU was found"}]
    assert "nothing was compared" in trtbuild.run("verify", "dist/net").stdout
    mixed = trtbuild.run("verify", "dist/net", "angle")
    assert mixed.returncode == 2 and "some of these are packages" in mixed.stderr
