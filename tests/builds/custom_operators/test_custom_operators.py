"""The examples of manifests/operators are built, loaded, run and verified. They call operators from outside PyTorch."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import trtbuild
from tests.conftest import CommandLine, ran
from tests.programs import REQUIRE_PROGRAMS, program
from tests.projects import edit
from trtbuild.errors import OperatorMismatch, OperatorMissing

EXAMPLES = Path(__file__).parents[3] / "manifests" / "operators"
#: An operator that returns 1 image instead of 3, although its fake implementation declares 3. The trace does not notice
#: this, because no profile has 3 images at min, opt or max.
LATE = """\
import torch
from nets import Around, build_seeded


@torch.library.custom_op("boxes::late", mutates_args=())
def late(x: torch.Tensor) -> torch.Tensor:
    return x[:1].clone() if len(x) == 3 else x.clone()


late.register_fake(torch.empty_like)


def build():
    return build_seeded(lambda: Around(late))
"""
SHAPES = ((1, 3, 8, 12), (2, 3, 20, 12), (5, 3, 24, 12))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    root = tmp_path_factory.mktemp("operators")
    ignored = shutil.ignore_patterns("__pycache__", "dist", ".trtbuild", "*.so")
    project = Path(shutil.copytree(EXAMPLES, root / "project", ignore=ignored, copy_function=shutil.copyfile))
    (project / "late.py").write_text(LATE)
    with (project / "trtbuild.yaml").open("a") as manifest:
        manifest.write('  late: {source: {python: "late:build"}}\n')
    models = ["boxes", "half", "detector", "on_gpu", "late"]
    if shutil.which("g++") or os.environ.get(REQUIRE_PROGRAMS):
        make = [program("make"), "libnegated.so", f"PYTHON={sys.executable}", f"CXX={program('g++')}"]
        subprocess.run(make, cwd=project, check=True, capture_output=True)
        models.append("moved")
    command = CommandLine(project, root / "cache")
    document = command("build", *models)
    assert document["ok"]
    (root / "document.json").write_text(json.dumps(document))
    return command


@pytest.fixture(scope="module")
def nets(built: CommandLine) -> Iterator[Any]:
    """The module `nets` of the project. Its import registers the operators in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(built.project))
        for name in ("operators", "nets", "late"):
            patch.delitem(sys.modules, name, raising=False)
        yield importlib.import_module("nets")
        for name in ("operators", "nets", "late"):
            sys.modules.pop(name, None)


def index(built: CommandLine, model: str) -> Any:
    return json.loads((built.project / "dist" / model / "index.json").read_bytes())


def partitions(built: CommandLine, model: str) -> Any:
    return index(built, model)["targets"]["ada"]["partitions"]["partitions"]


def test_an_operators_module_must_be_imported_before_the_package_is_loaded(built: CommandLine, tmp_path: Path) -> None:
    script = (
        "import sys, trtbuild\n"
        "from trtbuild.errors import OperatorMissing\n"
        "try: trtbuild.load(sys.argv[1], device='cpu')\n"
        "except OperatorMissing as error: print(error)\n"
        "assert 'operators' not in sys.modules\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "trtbuild.load(sys.argv[1], device='cpu', import_operators=True)\n"
        "assert 'operators' in sys.modules\n"
    )
    package = str(built.project / "dist/boxes")
    completed = subprocess.run(
        [sys.executable, "-c", script, package, str(built.project)], cwd=tmp_path, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
    assert "the operator boxes::halves, which is not registered: it comes from the module operators" in completed.stdout
    assert "`import operators` first, or load with `import_operators=True`" in completed.stdout


def test_the_operators_stay_in_pytorch_and_the_layers_do_not(built: CommandLine) -> None:
    kinds = [part["kind"] for part in partitions(built, "boxes")]
    assert kinds.count("tensorrt") >= 2
    torch_operators = {name for part in partitions(built, "boxes") for name in part["reasons"]}
    assert {"boxes.halves.default", "boxes.positive.default"} <= torch_operators
    assert not {"aten.conv2d.default", "aten.linear.default"} & torch_operators


def test_the_package_lists_the_operators_and_their_modules(built: CommandLine) -> None:
    assert index(built, "boxes")["operators"] == [
        {
            "name": "boxes.halves.default",
            "module": "operators",
            "schema": "boxes::halves(Tensor x, SymInt rows, float factor) -> Tensor",
        },
        {
            "name": "boxes.positive.default",
            "module": "operators",
            "schema": "boxes::positive(Tensor x) -> (Tensor, Tensor)",
        },
    ]


@torch.no_grad()
@pytest.mark.parametrize(("model", "tolerance"), [("boxes", 1e-5), ("half", 1e-2)])
def test_a_package_returns_what_the_model_returns(built: CommandLine, nets: Any, model: str, tolerance: float) -> None:
    original = nets.boxes()
    with trtbuild.load(built.project / "dist" / model, device="cpu") as loaded:
        for shape in SHAPES:
            x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
            (image, boxes, rows), (expected_image, expected_boxes, expected_rows) = loaded.module()(x), original(x)
            torch.testing.assert_close(image, expected_image, rtol=tolerance, atol=tolerance)
            assert len(boxes) == len(rows)
            if model != "half":  # in float16, `positive` may select different boxes
                assert torch.equal(rows, expected_rows)
                torch.testing.assert_close(boxes, expected_boxes)


@torch.no_grad()
def test_a_detector_returns_the_boxes_and_classes_of_the_model(built: CommandLine, nets: Any) -> None:
    original, counts = nets.detector(), set()
    with trtbuild.load(built.project / "dist/detector", device="cpu") as loaded:
        for height, width in ((16, 16), (24, 32), (48, 32)):
            x = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(height))
            (boxes, classes), (expected_boxes, expected_classes) = loaded.module()(x), original(x)
            torch.testing.assert_close(boxes, expected_boxes)
            torch.testing.assert_close(classes, expected_classes)
            counts.add(len(boxes))
    assert len(counts) > 1  # the number of boxes depends on data


@torch.no_grad()
def test_a_pt2_file_calls_the_operators(built: CommandLine, nets: Any) -> None:
    module = torch.export.load(built.project / "dist/boxes.pt2").module()
    x = torch.randn(SHAPES[1])
    torch.testing.assert_close(module(x)[0], nets.boxes()(x)[0])


@torch.no_grad()
def test_a_model_with_an_operator_in_cpp_returns_the_results_of_the_model(built: CommandLine, nets: Any) -> None:
    program("g++")
    (operator,) = index(built, "moved")["operators"]
    assert (operator["name"], operator["module"]) == ("boxes.negated.default", "operators")
    with trtbuild.load(built.project / "dist/moved", device="cpu") as loaded:
        for shape in SHAPES:
            x = torch.randn(shape)
            torch.testing.assert_close(loaded.module()(x), nets.moved()(x))


@torch.no_grad()
def test_a_call_is_an_error_if_an_operator_returns_another_size_than_declared(built: CommandLine, nets: Any) -> None:
    late = importlib.import_module("late")
    with trtbuild.load(built.project / "dist/late", device="cpu") as loaded:
        x = torch.randn(2, 3, 8, 12)
        torch.testing.assert_close(loaded.module()(x), late.build()(x))
        with pytest.raises(
            OperatorMismatch, match=r"boxes::late returns float32\[1, 12, 4, 8\], but .*\[3, 12, 4, 8\]"
        ):
            loaded.module()(torch.randn(3, 3, 8, 12))


def test_another_schema_is_an_error(built: CommandLine, nets: Any, tmp_path: Path) -> None:
    shutil.copytree(built.project / "dist/boxes", tmp_path / "package")
    edit(tmp_path / "package/index.json", "SymInt rows, float factor", "SymInt rows, float ratio")
    with pytest.raises(OperatorMissing, match=r"has the schema .*factor.*built with .*ratio"):
        trtbuild.load(tmp_path / "package", device="cpu")


def test_an_operator_without_a_cpu_kernel_does_not_run_on_the_cpu(built: CommandLine, nets: Any) -> None:
    with pytest.raises(OperatorMissing, match="boxes::on_gpu, which has no kernel for the CPU"):
        trtbuild.load(built.project / "dist/on_gpu", device="cpu")


def test_inspect_lists_the_operators(built: CommandLine) -> None:
    printed = built.run("inspect", "boxes").stdout
    assert "operators from outside PyTorch\n  boxes::halves    import operators\n" in printed


def test_verify_compares_models_with_operators(built: CommandLine) -> None:
    document = built("verify", "boxes", "half", "detector", "on_gpu")
    assert [model["status"] for model in document["models"]] == ["right"] * 4
    (warning,) = document["warnings"]
    assert warning == (
        "on_gpu: boxes::on_gpu has no kernel for the CPU: "
        "the build and `trtbuild verify` compare its calls, not its results"
    )
    build_document = json.loads((built.project.parent / "document.json").read_text())
    assert warning in build_document["warnings"]


def test_run_imports_operators_only_with_the_flag(built: CommandLine) -> None:
    refused = built("run", "boxes", "--device", "cpu", expect=1)
    assert "--import-operators" in refused["errors"][0]["text"] + str(refused["errors"][0].get("hint"))
    assert built("run", "boxes", "--device", "cpu", "--import-operators")["outputs"][0]["shape"] == [2, 4, 8, 12]


def test_an_edited_operator_is_traced_and_verified_again_and_engines_are_reused(built: CommandLine) -> None:
    edit(built.project / "operators.py", "flip(1) * factor", "flip(1) * factor * 3")
    document = built("build", "boxes")
    assert ran(document) == {"trace": 1, "lower": 1}
    verified = built("verify", "boxes")
    # a cut is one way to divide a model into partitions
    assert verified["ok"] and verified["models"][0]["cuts"][0]["verdict"] == "run"
