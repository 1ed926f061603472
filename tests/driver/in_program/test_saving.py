"""The packages and programs that `trtbuild.save` writes, and the arguments that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trtbuild
from trtbuild import Input
from trtbuild.errors import ConversionRefused, PackageDamaged, UsageError

ROWS = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))


def content(root: Path) -> dict[Path, bytes]:
    """The files of a directory: relative path → bytes."""
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def compiled_net(compile_module: Callable[..., Any], net: torch.nn.Module) -> Any:
    return compile_module(net, [ROWS])


def test_saving_a_compiled_and_a_loaded_module_gives_equal_packages(compiled_net: Any, tmp_path: Path) -> None:
    first = compiled_net.save(tmp_path / "first")
    with trtbuild.load(first, device="cpu") as loaded:
        second = trtbuild.save(loaded, tmp_path / "second")
        trtbuild.save(loaded, tmp_path / "loaded.pt2")
    assert content(first) == content(second)
    assert (tmp_path / "loaded.pt2").is_file()


def test_replacing_a_package_removes_its_files_and_keeps_other_files(
    compiled_net: Any, compile_module: Callable[..., Any], tmp_path: Path
) -> None:
    replaced, separate = tmp_path / "replaced", tmp_path / "separate"
    compiled_net.save(replaced)
    (replaced / "NOTES").write_text("a file of the user")
    before = set(content(replaced))
    other = compile_module(torch.nn.Linear(3, 2).eval(), [Input((4, 3))])
    other.save(replaced)
    other.save(separate)
    assert before - set(content(separate)) > {Path("NOTES")}  # the first package had files that the second lacks
    assert content(replaced) == content(separate) | {Path("NOTES"): b"a file of the user"}


def test_a_damaged_source_replaces_no_part_of_a_package(
    compiled_net: Any, compile_module: Callable[..., Any], tmp_path: Path
) -> None:
    good = compile_module(torch.nn.Linear(3, 2).eval(), [Input((4, 3))]).save(tmp_path / "good")
    before = content(good)
    damaged = compiled_net.save(tmp_path / "damaged")
    with trtbuild.load(damaged, device="cpu") as loaded:
        (damaged / "names.json").unlink()  # a file that `load` does not read
        for path in (good, damaged):
            with pytest.raises(PackageDamaged, match=r"names\.json is missing"):
                trtbuild.save(loaded, path)
    assert content(good) == before


def test_a_package_that_has_replaced_the_loaded_one_is_not_taken_for_it(
    compiled_net: Any, compile_module: Callable[..., Any], tmp_path: Path
) -> None:
    path = compiled_net.save(tmp_path / "net")
    with trtbuild.load(path, device="cpu") as loaded:
        assert trtbuild.save(loaded, path) == path
        compile_module(torch.nn.Linear(3, 2).eval(), [Input((4, 3))]).save(path)
        with pytest.raises(PackageDamaged):
            trtbuild.save(loaded, path)


def test_a_model_that_returns_a_text_has_no_pt2_file(compile_module: Callable[..., Any], tmp_path: Path) -> None:
    """torch.export.save would write a file that torch.export.load cannot read."""

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"y": x + 1, "about": [1.5, True, None, "a text"]}

    model = compile_module(Net().eval(), [Input((4, 3))])
    assert model(torch.ones(4, 3))["about"] == [1.5, True, None, "a text"]
    with pytest.raises(ConversionRefused, match="the model returns the text 'a text'"):
        model.save(tmp_path / "net.pt2")
    assert not (tmp_path / "net.pt2").exists()


@pytest.mark.parametrize("path", ["", 3, None])
def test_rejects_invalid_paths(compiled_net: Any, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty path would be the working directory."""
    monkeypatch.chdir(tmp_path)
    before = content(tmp_path)
    with pytest.raises(UsageError, match="path must be a path"):
        compiled_net.save(path)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "options"),
    [("model.ep", {}), ("model.pt2", {}), ("model.ts", {"output_format": "exported_program"})],
)
def test_the_format_follows_from_output_format_or_from_the_name(
    compiled_net: Any, net: torch.nn.Module, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    compiled_net.save(tmp_path / name, **options)
    extra = {"trtbuild.json": ""}
    program = torch.export.load(tmp_path / name, extra_files=extra)
    assert '"schema": "trtbuild.pt2/1"' in str(extra["trtbuild.json"])
    torch.testing.assert_close(program.module()(torch.ones(2, 8)), net(torch.ones(2, 8)))


BATCH = torch.export.Dim("batch", min=1, max=16)


@pytest.mark.parametrize(
    "inputs",
    [
        {"arg_inputs": [ROWS]},
        {"inputs": [torch.ones(3, 8)]},
        {"arg_inputs": [torch.ones(3, 8)], "kwarg_inputs": {}},
        {"arg_inputs": [torch.ones(3, 8)], "dynamic_shapes": {"x": {0: BATCH}}},
        {"dynamic_shapes": ({0: BATCH},)},
    ],
)
def test_inputs_that_the_module_was_compiled_for_change_nothing(
    compiled_net: Any, tmp_path: Path, inputs: dict[str, Any]
) -> None:
    compiled_net.save(tmp_path / "plain")
    trtbuild.save(compiled_net, tmp_path / "given", **inputs)
    assert content(tmp_path / "plain") == content(tmp_path / "given")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"arg_inputs": [torch.ones(17, 8)]},
            "input 'x' is [17, 8], and the module was compiled for [1, 8] to [16, 8]",
        ),
        ({"arg_inputs": [torch.ones(2, 8).half()]}, "input 'x' is float16 with 2 axes"),
        ({"arg_inputs": [torch.ones(8)]}, "input 'x' is float32 with 1 axes"),
        ({"arg_inputs": [ROWS, ROWS]}, "2 positional inputs are given, and the module was compiled for 1"),
        ({"kwarg_inputs": {"y": ROWS}}, "kwarg_inputs has 'y', and the module was compiled for no keyword input"),
        (
            {"arg_inputs": [Input(min_shape=(1, 8), opt_shape=(2, 8), max_shape=(8, 8))]},
            "input 'x' is [1, 8] to [8, 8], and the module was compiled for [1, 8] to [16, 8]",
        ),
        (
            {"dynamic_shapes": {"x": {0: torch.export.Dim("batch", min=1, max=32)}}},
            "in dynamic_shapes x.0 is 1 to 32, and the module was compiled for 1 to 16",
        ),
        ({"dynamic_shapes": {"x": {}}}, "in dynamic_shapes x.0 is static, and the module was compiled for 1 to 16"),
        ({"inputs": [ROWS], "arg_inputs": [ROWS]}, "both are given"),
        ({"arg_inputs": 3}, "inputs must be a list"),
    ],
)
def test_rejects_inputs_that_the_module_was_not_compiled_for(
    compiled_net: Any, tmp_path: Path, inputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        compiled_net.save(tmp_path / "model.pt2", **inputs)
    assert message in caught.value.text
    assert not (tmp_path / "model.pt2").exists()


@pytest.mark.parametrize("name", ["model.ts", "model.pt"])
def test_a_directory_with_the_ending_of_a_file_needs_the_format_package(
    compiled_net: Any, tmp_path: Path, name: str
) -> None:
    with pytest.raises(UsageError, match="has the ending of a file") as caught:
        compiled_net.save(tmp_path / name)
    assert "model.pt2" in str(caught.value.hint)
    assert not (tmp_path / name).exists()
    compiled_net.save(tmp_path / name, output_format="package")
    with trtbuild.load(tmp_path / name, device="cpu") as loaded:
        assert loaded.is_reference
    compiled_net.save(tmp_path / name)  # a directory that is already a package needs no format
    compiled_net.save(tmp_path / "v1.5")  # not the ending of a known format


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_format": "onnx"}, "there is no output_format 'onnx'"),
        ({"output_format": "torchscript"}, "trtbuild does not write output_format='torchscript'"),
        ({"target": "sm89"}, "a package directory contains all targets"),
        ({"output_format": "pt2", "target": "ada"}, "the package has no target 'ada'"),
    ],
)
def test_rejects_invalid_options(compiled_net: Any, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compiled_net.save(tmp_path / "place", **options)


def test_rejects_other_modules_and_paths_of_files(compiled_net: Any, net: torch.nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="trtbuild cannot save a Net"):
        trtbuild.save(net, tmp_path / "place")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file, but a package is a directory"):
        compiled_net.save(tmp_path / "file")
