"""Sources of the kinds `python` and `exported_program`, and errors about invalid sources."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from trtbuild.core.model.spec import Input, NamedDim, Source
from trtbuild.errors import SourceError
from trtbuild.stages.trace.sources.reading import read
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.owners import FileOwners

MODULE = """
import torch
class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.l = torch.nn.Linear(width, width)
        self.eval()
    def forward(self, x):
        return self.l(x)
def build(width=4):
    return Net(width)
def raising(**kwargs):
    raise KeyError("nothing")
def pair():
    return Net(), 3
def training():
    return Net().train()
def uninitialized():
    net = Net()
    net.l.weight = torch.nn.Parameter(torch.empty(4, 4))
    return net
ready = Net()
number = 3
"""


@pytest.fixture
def open_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_of: Callable[..., Any]
) -> Callable[..., nn.Module]:
    """A function that reads a source. The project has a module `source_module` with the code `MODULE`."""
    (tmp_path / "source_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "source_module", raising=False)

    def open_source(target: str, kind: Any = "python", shapes: Any = None, job: Any = None, **kwargs: Any) -> nn.Module:
        source = Source(kind, target, kwargs)
        job = job or job_of(shapes or {"x": ((1, 4), (2, 4), (8, 4))}, source=source)
        return read(job, tmp_path, Frames(FileOwners(), tmp_path))

    return open_source


def error_of(open_source: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        open_source(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize("target", ["build", "Net", "ready"])
def test_a_function_a_class_or_a_module_is_a_source(open_source: Callable[..., nn.Module], target: str) -> None:
    assert isinstance(open_source(f"source_module:{target}"), nn.Module)


def test_kwargs_reach_the_function(open_source: Callable[..., nn.Module]) -> None:
    assert open_source("source_module:build", width=8).l.in_features == 8


def test_a_missing_module_is_an_error_with_the_searched_folders(open_source: Callable[..., nn.Module]) -> None:
    error = error_of(open_source, "nowhere.at_all:build")
    assert error.code == "import" and "no module 'nowhere.at_all'" in error.text
    assert "searched in the project" in error.hint
    assert (error.file, error.line) == ("trtbuild.yaml", 3)


def test_the_error_about_a_missing_name_lists_the_names_of_the_module(open_source: Callable[..., nn.Module]) -> None:
    error = error_of(open_source, "source_module:bulid")
    assert "has no 'bulid'" in error.text and "build" in error.hint


@pytest.mark.parametrize(("target", "type_name"), [("pair", "tuple"), ("number", "int")])
def test_rejects_sources_that_are_not_modules(
    open_source: Callable[..., nn.Module], target: str, type_name: str
) -> None:
    error = error_of(open_source, f"source_module:{target}")
    assert error.code == "source" and type_name in error.text and "torch.nn.Module" in error.text


def test_a_source_that_raises_shows_the_users_line(open_source: Callable[..., nn.Module]) -> None:
    error = error_of(open_source, "source_module:raising", depth=2)
    assert "raising(depth=2) fails" in error.text and "KeyError" in error.text
    assert (error.file, error.line) == ("source_module.py", 13)


def test_rejects_a_source_in_training_mode(open_source: Callable[..., nn.Module]) -> None:
    assert error_of(open_source, "source_module:training").code == "training-mode"


def test_uninitialized_weights_are_nan(open_source: Callable[..., nn.Module]) -> None:
    """So the weights have the same values in every process."""
    assert bool(open_source("source_module:uninitialized").l.weight.isnan().all())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * mask + self.shift


@pytest.fixture
def pt2(tmp_path: Path) -> str:
    """The name of a file with the exported program of `Block`. Its batch sizes are the even numbers from 2 to 32."""
    batch = 2 * Dim("batch", min=1, max=16)
    shapes = {"x": {0: batch}, "mask": {0: batch}}
    arguments = ((torch.ones(4, 4),), {"mask": torch.ones(4, 4)})
    exported = torch.export.export(Block().eval(), *arguments, dynamic_shapes=shapes)
    torch.export.save(exported, tmp_path / "block.pt2")
    return "block.pt2"


def exported_program_job(
    job_of: Callable[..., Any], low: int, opt: int, high: int, multiple_of: int = 2, **job_fields: Any
) -> Any:
    inputs = (Input("x"), Input("mask", keyword=True))
    dims = [NamedDim("batch", (("x", 0), ("mask", 0)), multiple_of)] if low != high else []
    shapes = dict.fromkeys(("x", "mask"), ((low, 4), (opt, 4), (high, 4)))
    return job_of(shapes, inputs=inputs, dims=dims, source=Source("exported_program", "block.pt2"), **job_fields)


def test_an_exported_program_keeps_names_and_module_paths_under_narrower_dims(
    open_source: Callable[..., nn.Module], job_of: Callable[..., Any], traced: Callable[..., Any], pt2: str
) -> None:
    job = exported_program_job(job_of, 4, 8, 16, multiple_of=4)
    result = traced(open_source(pt2, job=job), job)
    assert [entry["name"] for entry in result.interface["weights"]] == ["inner.0.weight", "inner.0.bias", "shift"]
    assert [entry["persistent"] for entry in result.interface["weights"]] == [True, True, False]
    assert result.interface["inputs"][1]["shape"] == [["mul", 4, ["sym", 0]], 4]
    assert "symbol 0 in 1..4\n" in result.graph
    assert result.modules[0][:2] == ("inner.0", "aten.linear.default")


def test_the_manifest_can_make_an_exported_program_static(
    open_source: Callable[..., nn.Module], job_of: Callable[..., Any], traced: Callable[..., Any], pt2: str
) -> None:
    job = exported_program_job(job_of, 8, 8, 8)
    assert traced(open_source(pt2, job=job), job).interface["outputs"][0]["shape"] == [8, 4]


def test_an_exported_program_gives_the_same_graph_as_its_python_source(
    open_source: Callable[..., nn.Module], job_of: Callable[..., Any], traced: Callable[..., Any], pt2: str
) -> None:
    job = exported_program_job(job_of, 2, 4, 16)
    assert traced(open_source(pt2, job=job), job).graph == traced(Block().eval(), job).graph


class Affine(nn.Module):
    def forward(self, x: torch.Tensor, *, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * scale + shift


def test_keyword_inputs_of_an_exported_program_may_be_declared_in_any_order(
    open_source: Callable[..., nn.Module], job_of: Callable[..., Any], traced: Callable[..., Any], tmp_path: Path
) -> None:
    shapes = {name: {0: Dim("batch", min=1, max=16)} for name in ("x", "shift", "scale")}
    keywords = {"shift": torch.ones(4, 4), "scale": torch.ones(4, 4)}
    torch.export.save(
        torch.export.export(Affine().eval(), (torch.ones(4, 4),), keywords, dynamic_shapes=shapes),
        tmp_path / "affine.pt2",
    )
    inputs = (Input("x"), Input("scale", keyword=True), Input("shift", keyword=True))
    job = job_of(
        dict.fromkeys(("x", "scale", "shift"), ((1, 4), (4, 4), (16, 4))),
        inputs=inputs,
        dims=[NamedDim("batch", (("x", 0), ("scale", 0), ("shift", 0)))],
        source=Source("exported_program", "affine.pt2"),
    )
    result = traced(open_source("affine.pt2", job=job), job)
    assert [entry["name"] for entry in result.interface["inputs"]] == ["x", "scale", "shift"]
    assert result.graph == traced(Affine().eval(), job).graph


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.arange(4))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flags = torch.where(ids > 1, 1.0, 0.0) + torch.zeros(4)
        return ids / 3, self.steps / 2, flags, torch.tensor([0.5, 2.0])


@pytest.mark.parametrize("default", [torch.float32, torch.float64, torch.bfloat16])
def test_values_have_the_default_dtype_of_the_process_that_exported_the_program(
    open_source: Callable[..., nn.Module],
    job_of: Callable[..., Any],
    traced: Callable[..., Any],
    tmp_path: Path,
    default: torch.dtype,
) -> None:
    torch.set_default_dtype(default)
    try:
        arguments, shapes = (torch.arange(8).view(2, 4),), {"ids": {0: Dim("batch", min=1, max=16)}}
        exported = torch.export.export(Constants().eval(), arguments, dynamic_shapes=shapes)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.export.save(exported, tmp_path / "constants.pt2")
    inputs, source = [Input("ids", dtype="int64")], Source("exported_program", "constants.pt2")
    job = job_of({"ids": ((1, 4), (2, 4), (16, 4))}, inputs=inputs, source=source)
    result = traced(open_source("constants.pt2", job=job), job)
    assert {entry["dtype"] for entry in result.interface["outputs"]} == {str(default).removeprefix("torch.")}
    assert len(result.interface["outputs"]) == 4


def test_a_default_dtype_that_cannot_be_written_into_a_program_is_an_error(
    open_source: Callable[..., nn.Module], job_of: Callable[..., Any], pt2: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(module: nn.Module) -> None:
        raise ValueError("the result of aten.div.Tensor is torch.float64")

    monkeypatch.setattr("trtbuild.stages.trace.sources.exported_program.write_recorded_dtype", refuse)
    error = error_of(open_source, pt2, job=exported_program_job(job_of, 2, 4, 16))
    assert "block.pt2 was exported with another default dtype: the result of aten.div.Tensor" in error.text


def test_the_error_about_a_profile_outside_the_exported_range_names_both_ranges(
    open_source: Callable[..., nn.Module], job_of: Callable[..., Any], pt2: str
) -> None:
    error = error_of(open_source, pt2, job=exported_program_job(job_of, 2, 4, 64))
    assert error.code == "range" and "was exported for 2..32; the profiles say 2..64" in error.text
    assert (error.file, error.line) == ("trtbuild.yaml", 20)


def test_rejects_an_exported_multiple_that_is_not_declared(
    open_source: Callable[..., nn.Module], job_of: Callable[..., Any], pt2: str
) -> None:
    error = error_of(open_source, pt2, job=exported_program_job(job_of, 2, 4, 16, multiple_of=1))
    assert error.code == "range" and "multiple_of: 2" in error.hint


def test_rejects_a_range_for_a_static_axis_of_an_exported_program(
    open_source: Callable[..., nn.Module], job_of: Callable[..., Any], pt2: str
) -> None:
    inputs = (Input("x"), Input("mask", keyword=True))
    shapes = {"x": ((2, 2), (2, 4), (2, 8)), "mask": (2, 4)}
    error = error_of(
        open_source, pt2, job=job_of(shapes, inputs=inputs, source=Source("exported_program", "block.pt2"))
    )
    assert error.code == "range" and "x.1 of block.pt2 is fixed to 4; the profiles say 2..8" in error.text


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ((Input("x"), Input("mask")), "takes 1 positional inputs and the keyword inputs ['mask']"),
        ((Input("x", "float16"), Input("mask", keyword=True)), "input 'x' of block.pt2 is float32"),
    ],
)
def test_rejects_inputs_that_do_not_match_an_exported_program(
    open_source: Callable[..., nn.Module], job_of: Callable[..., Any], pt2: str, inputs: Any, text: str
) -> None:
    job = job_of({"x": (4, 4), "mask": (4, 4)}, inputs=inputs, source=Source("exported_program", "block.pt2"))
    error = error_of(open_source, pt2, job=job)
    assert error.code == "signature" and text in error.text


def test_rejects_files_that_are_not_exported_programs(open_source: Callable[..., nn.Module], tmp_path: Path) -> None:
    (tmp_path / "bad.pt2").write_bytes(b"no")
    assert "cannot read bad.pt2" in error_of(open_source, "bad.pt2", kind="exported_program").text
    assert "does not exist" in error_of(open_source, "none.pt2", kind="exported_program").text


def test_a_module_that_fails_while_it_is_imported_shows_the_users_line(
    open_source: Callable[..., nn.Module], tmp_path: Path
) -> None:
    (tmp_path / "source_broken.py").write_text("import torch\n\nraise ValueError('no such thing')\n")
    error = error_of(open_source, "source_broken:build")
    assert error.code == "import" and (error.file, error.line) == ("source_broken.py", 3)
    assert "ValueError: no such thing" in error.text
