"""Models whose operators become TensorRT plugins. The plugins do not exist, so no engine is compiled here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.conftest import CommandLine, ran
from tests.programs import program

MODULE = """\
import torch


@torch.library.custom_op("mylib::roi", mutates_args=())
def roi(x: torch.Tensor, boxes: torch.Tensor, height: int, scale: float = 1.0, exact: bool = True) -> torch.Tensor:
    pooled = x.mean((2, 3), keepdim=True) * scale + boxes.sum()
    return pooled.expand(-1, -1, height, height).contiguous()


@roi.register_fake
def _(x, boxes, height, scale=1.0, exact=True):
    return x.new_empty(x.shape[0], x.shape[1], height, height)


@torch.library.custom_op("mylib::both", mutates_args=())
def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.flip(1), x.to(torch.int32)


@both.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 2, 1)

    def forward(self, x, boxes):
        y = torch.ops.mylib.roi(torch.relu(self.first(x)), boxes, 3)
        return torch.relu(self.last(y))


class Both(torch.nn.Module):
    def forward(self, x):
        flipped, whole = torch.ops.mylib.both(x * 2)
        return torch.relu(flipped), whole + 1


class Sized(torch.nn.Module):
    def forward(self, x, boxes):
        return torch.relu(torch.ops.mylib.roi(x, boxes, x.shape[0]))


def net():
    return Net().eval()


def pair():
    return Both().eval()


def sized():
    return Sized().eval()
"""
MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles:
  images: {x: {min: [1, 3, 8, 8], opt: [2, 3, 8, 8], max: [4, 3, 8, 8]}, boxes: {shape: [2, 4]}}
  alone: {x: {min: [2, 3], opt: [4, 3], max: [8, 3]}}
defaults: {targets: [ada]}
models:
  net:
    source: {python: "nets:net"}
    inputs: {x: , boxes: }
    profiles: [images]
    plugins:
      library: libroi.so
      operators:
        "mylib::roi": {plugin: RoiPlugin, namespace: mine, arguments: {height: size, exact: null}, attributes: {mode: 1}}
  pair:
    source: {python: "nets:pair"}
    inputs: {x: }
    profiles: [alone]
    plugins: {operators: {"mylib::both": Both}}
  sized:
    source: {python: "nets:sized"}
    inputs: {x: , boxes: }
    profiles: [images]
    plugins: {operators: {"mylib::roi": RoiPlugin}}
"""


def compile_library(folder: Path, code: str, *options: str, name: str = "libroi.so") -> None:
    """Compile C code to the shared library `name` in `folder`. If g++ is missing, skip the test, or fail it in CI."""
    (folder / "roi.c").write_text(code)
    subprocess.run(
        [program("g++"), "-shared", "-fPIC", "-xc", "roi.c", "-xnone", *options, "-o", name], cwd=folder, check=True
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    root = tmp_path_factory.mktemp("plugins")
    project = root / "project"
    project.mkdir()
    (project / "nets.py").write_text(MODULE)
    (project / "trtbuild.yaml").write_text(MANIFEST)
    compile_library(project, "int version(void) { return 1; }")
    command = CommandLine(project, root / "cache")
    assert command("build", "net", "pair", "--until", "convert")["ok"]
    return command


def keys(command: CommandLine, model: str) -> dict[str, str]:
    """Step id → key, for each planned step that has a key."""
    return {step["id"]: step["key"] for step in command("plan", model)["steps"] if step["key"] is not None}


def models_with_plugins(command: CommandLine) -> list[Any]:
    models = []
    for path in (command.project.parent / "cache").rglob("*"):
        data = path.read_bytes() if path.is_file() and path.stat().st_size < 100_000 else b""
        if b"trt.plugins" in data and data[:1] == b"\x08":  # an ONNX file begins with the tag of its field ir_version
            models.append(onnx.ModelProto.FromString(data))
    return models


def only_node(command: CommandLine, operator: str) -> Any:
    """The node with this operator. Fails unless there is exactly one in the cache."""
    found = [node for model in models_with_plugins(command) for node in model.graph.node if node.op_type == operator]
    assert len(found) == 1
    return found[0]


def test_a_call_is_a_node_of_one_engine_with_the_arguments_as_attributes(built: CommandLine) -> None:
    roi = only_node(built, "RoiPlugin")
    values = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in roi.attribute}
    assert values == {"size": 3, "scale": 1.0, "mode": 1, "plugin_version": b"1", "plugin_namespace": b"mine"}
    assert (roi.domain, len(roi.input), len(roi.output)) == ("trt.plugins", 2, 1)
    assert [id_ for id_ in keys(built, "net") if "/engine/" in id_] == ["net/engine/model@ada"]


def test_an_operator_with_two_results_is_one_node(built: CommandLine) -> None:
    both = only_node(built, "Both")
    assert (len(both.input), len(both.output)) == (1, 2)
    (model,) = [model for model in models_with_plugins(built) if both in model.graph.node]
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    assert [types[name] for name in both.output] == [onnx.TensorProto.FLOAT, onnx.TensorProto.INT32]


def test_a_changed_library_reruns_only_the_engine_and_package_steps(built: CommandLine) -> None:
    before, pair_before = keys(built, "net"), keys(built, "pair")
    original = (built.project / "libroi.so").read_bytes()
    compile_library(built.project, "int version(void) { return 2; }")
    after = keys(built, "net")
    assert {id_ for id_ in before if before[id_] != after.get(id_)} == {"net/engine/model@ada", "net/package"}
    assert keys(built, "pair") == pair_before  # the model `pair` names no library
    document = built("plan", "net")
    assert ran(document) == {"engine": 1, "package": 1}
    (built.project / "libroi.so").write_bytes(original)


def test_a_changed_attribute_of_a_plugin_reruns_the_partition_and_convert_steps(built: CommandLine) -> None:
    manifest = built.project / "trtbuild.yaml"
    manifest.write_text(MANIFEST.replace("mode: 1", "mode: 0"))
    try:
        assert "partition" in ran(built("plan", "net")) and "trace" not in ran(built("plan", "net"))
        assert ran(built("build", "net", "--until", "convert")) == {"partition": 1, "convert": 1}
    finally:
        manifest.write_text(MANIFEST)


def test_the_error_of_a_missing_plugin_says_that_the_library_registers_none(built: CommandLine) -> None:
    failed = built.run("build", "net")
    assert "there is no plugin RoiPlugin, version 1, namespace mine: the library of plugins registers no plugin" in (
        failed.stdout + failed.stderr
    )


def test_an_argument_that_depends_on_sizes_cannot_be_a_field_of_a_plugin(built: CommandLine) -> None:
    failed = built.run("build", "sized")
    assert "the argument 'height' of mylib::roi depends on the sizes of inputs" in failed.stdout + failed.stderr
    assert "trtbuild.yaml:" in failed.stdout + failed.stderr


@pytest.mark.parametrize(
    ("change", "library", "text"),
    [
        (("libroi.so", "libnone.so"), None, "the library of plugins 'libnone.so' cannot be read: no such file"),
        (("libroi.so", "nets.py"), None, "is not a shared library (ELF, 64 bits)"),
        (None, "aarch64", "is for aarch64, and the target 'ada' runs on linux-x86_64"),
        (None, "libnvinfer.so.8", "needs libnvinfer.so.8, and the target 'ada' has tensorrt-rtx"),
        (None, "libtensorrt_rtx.so.99", "needs libtensorrt_rtx.so.99, and the target 'ada' has tensorrt-rtx"),
        (('"mylib::roi": {', '"aten::roll": {'), None, "is an operator of PyTorch"),
        (('"mylib::roi": {', '"mylib::rio": {'), None, "the model never calls the operator mylib::rio"),
        (("RoiPlugin, name", "Relu, name"), None, "Relu is an operator of ONNX"),
        (("{height: size", "{heigth: size"), None, "the operator mylib::roi has no argument 'heigth'"),
        (("mode: 1", "plugin_version: 1"), None, "plugin_version cannot be a field of a plugin"),
        (("mode: 1", "mode: [1, a]"), None, "the field 'mode' is"),
        (
            ("    inputs: {x: , boxes: }\n", "    inputs: {x: , boxes: }\n    outputs: {pt2: a.pt2}\n"),
            None,
            "write a package",
        ),
    ],
)
def test_wrong_plugins_are_errors_with_the_manifests_line(
    built: CommandLine, change: tuple[str, str] | None, library: str | None, text: str
) -> None:
    """`change`: the old and the new text in the manifest. `library`: a library that libroi.so needs.

    If `library` is "aarch64", libroi.so is for that architecture instead.
    """
    manifest, plugins = built.project / "trtbuild.yaml", built.project / "libroi.so"
    original = plugins.read_bytes()
    try:
        if change is not None:
            manifest.write_text(MANIFEST.replace(*change, 1))
        if library == "aarch64":
            aarch64 = (183).to_bytes(2, "little")  # e_machine in the header of an ELF file: EM_AARCH64, at byte 18
            plugins.write_bytes(original[:18] + aarch64 + original[20:])
        elif library is not None:
            compile_library(built.project, "int v(void) { return 0; }", f"-Wl,-soname,{library}", name=library)
            compile_library(built.project, "int v(void); int w(void) { return v(); }", library)
        failed = built.run("build", "net", "--until", "convert")
        assert failed.returncode != 0
        assert text in " ".join((failed.stdout + failed.stderr).split())
        assert "trtbuild.yaml:" in failed.stdout + failed.stderr
    finally:
        manifest.write_text(MANIFEST)
        plugins.write_bytes(original)


def test_only_python_models_can_have_plugins(built: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    (tmp_path / "trtbuild.yaml").write_text(
        "version: 1\ntargets: {ada: {sm: 89}}\nprofiles: {p: {x: {shape: [1]}}}\nmodels:\n  m:\n"
        "    source: {onnx: m.onnx}\n"
        '    inputs: {x: }\n    profiles: [p]\n    targets: [ada]\n    plugins: {operators: {"a::b": C}}\n'
    )
    failed = CommandLine(tmp_path, tmp_path / "cache").run("plan")
    assert "`plugins` are for operators of a PyTorch model, and model 'm' comes from `onnx`" in (
        failed.stdout + failed.stderr
    )
