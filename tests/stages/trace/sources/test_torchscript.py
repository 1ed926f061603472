"""TorchScript sources are converted with the dims of the manifest. The proof compares the program with the script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from torch import nn

from tests.stages.trace.conftest import ChildTrace, make_job
from trtbuild.core.model.spec import Input, Source
from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program
from trtbuild.stages.trace.run import TraceResult, trace_module
from trtbuild.stages.trace.sources.reading import read
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.owners import FileOwners

ROWS = {"x": ([1, 4], [3, 4], [8, 4])}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("scale", torch.full((6,), 2.0))

    def forward(self, x: torch.Tensor, shift: float = 0.5) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        y = torch.relu(self.norm(self.first(x))) * self.scale + shift
        return y, {"sum": y.sum(-1) + torch.tensor([1.0])}


class Keyword(nn.Module):
    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return x * mask


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            return x * 2
        return x * 3


def save_script(module: nn.Module, folder: Path, *, training: bool = False) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    script = torch.jit.script(module.train(training))
    torch.jit.save(script, str(folder / "net.ts"))
    return script


def trace_script(
    folder: Path, shapes: Mapping[str, Any], inputs: Sequence[Input] | None = None, state: tuple[str, ...] = ()
) -> tuple[Any, TraceResult]:
    job = replace(make_job(shapes, inputs=inputs, source=Source("torchscript", "net.ts")), state=state)
    frames = Frames(FileOwners(), folder)
    with torch.no_grad():
        module = read(job, folder, frames)
        return module, trace_module(module, job, frames)


def test_weights_outputs_and_dims_are_those_of_the_script(tmp_path: Path) -> None:
    script = save_script(Net(), tmp_path)
    module, traced = trace_script(tmp_path, ROWS)
    assert {entry["name"] for entry in traced.interface["weights"] if entry["persistent"]} <= set(script.state_dict())
    # the tensor that forward creates is a weight, too: torch.tensor([1.0])
    assert len([entry for entry in traced.interface["weights"] if not entry["persistent"]]) == 1
    assert set(module.state_dict()) == set(script.state_dict())
    assert [entry["shape"] for entry in traced.interface["outputs"]] == [[["sym", 0], 6], [["sym", 0]]]
    assert traced.interface["output_tree"]["kind"] == "tuple"
    assert traced.interface["output_tree"]["items"][1]["kind"] == "dict"


def test_the_program_equals_the_script_at_other_sizes(tmp_path: Path) -> None:
    script = save_script(Net(), tmp_path)
    _, traced = trace_script(tmp_path, ROWS)
    program = Program.from_bytes(traced.program)
    constants = program.constants
    values = [value for _, value in traced.weights]
    x = torch.randn(5, 4)
    others = iter([*values, x])  # the values of the placeholders that are not constants
    arguments = [constants[node.name] if node.name in constants else next(others) for node in program.placeholders]
    results = program.exported.graph_module(*arguments)
    with torch.no_grad():
        y, sums = script(x)
    assert torch.allclose(results[0], y) and torch.allclose(results[1], sums["sum"])


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.copy_(self.total / 2 + x.sum(0))
        return x + self.total


class Assigner(Writer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total / 2 + x.sum(0)
        return x + self.total


@pytest.mark.parametrize("module", [Writer(), Assigner(), nn.Sequential(Writer())])
def test_a_script_may_have_a_state(module: nn.Module, tmp_path: Path) -> None:
    save_script(module, tmp_path)
    _, traced = trace_script(tmp_path, ROWS, state=("*total",))
    (value,) = (value for _, value in traced.weights)
    assert torch.equal(value, torch.zeros(4)), "the script ran before its first state was stored"
    assert [entry["shape"] for entry in traced.interface["outputs"]] == [[["sym", 0], 4]]


def test_a_frozen_script_is_traced(tmp_path: Path) -> None:
    """A frozen script has no attribute `training`."""
    torch.jit.save(torch.jit.freeze(torch.jit.script(Net().eval())), str(tmp_path / "net.ts"))
    _, traced = trace_script(tmp_path, ROWS)
    assert [entry["shape"] for entry in traced.interface["outputs"]] == [[["sym", 0], 6], [["sym", 0]]]


def test_keyword_only_arguments_are_matched_by_name(tmp_path: Path) -> None:
    save_script(Keyword(), tmp_path)
    inputs = [Input("mask", keyword=True), Input("x")]
    _, traced = trace_script(tmp_path, {"mask": [1, 4], "x": ROWS["x"]}, inputs)
    assert [(entry["name"], entry["keyword"]) for entry in traced.interface["inputs"]] == [("mask", True), ("x", False)]


def test_an_argument_may_have_any_name(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, _run: torch.Tensor, run: torch.Tensor) -> torch.Tensor:
            return _run + run

    save_script(Sum(), tmp_path)
    _, traced = trace_script(tmp_path, {"_run": [2, 4], "run": [4]})
    assert [entry["name"] for entry in traced.interface["inputs"]] == ["_run", "run"]


def test_rejects_a_branch_on_a_dynamic_size(tmp_path: Path) -> None:
    save_script(Branch(), tmp_path)
    with pytest.raises(SourceError, match=r"declared dynamic, but the model fixes it to 3") as caught:
        trace_script(tmp_path, ROWS)
    assert caught.value.code == "constraint"


def test_the_proof_compares_with_the_script_not_with_its_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._export.converter import TS2FXGraphConverter

    save_script(Net(), tmp_path)
    convert, changed = TS2FXGraphConverter.convert, []

    def wrong(self: Any) -> torch.fx.GraphModule:
        module = convert(self)
        for node in module.graph.nodes:
            if node.target is torch.ops.aten.relu.default:
                node.target = torch.ops.aten.tanh.default
                changed.append(node)
        module.recompile()
        return module

    monkeypatch.setattr(TS2FXGraphConverter, "convert", wrong)
    with pytest.raises(SourceError, match="the traced program is not the model"):
        trace_script(tmp_path, ROWS)
    assert changed


@pytest.mark.parametrize(
    ("write_file", "message"),
    [
        (lambda folder: (folder / "net.ts").write_text("no"), "torch.jit.load cannot read net.ts"),
        (lambda folder: None, "net.ts does not exist"),
        (lambda folder: save_script(Net(), folder, training=True), "is in training mode"),
        (lambda folder: save_script(Keyword(), folder), r"net.ts takes \(x, mask\); the manifest declares x"),
    ],
)
def test_rejects_invalid_files(tmp_path: Path, write_file: Callable[[Path], object], message: str) -> None:
    write_file(tmp_path)
    with pytest.raises(SourceError, match=message) as caught:
        trace_script(tmp_path, ROWS)
    assert caught.value.file == "trtbuild.yaml"


def test_an_unsupported_torchscript_model_is_an_error_with_hints(tmp_path: Path) -> None:
    save_script(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), tmp_path)
    with pytest.raises(SourceError, match="PyTorch's converter from TorchScript cannot convert") as caught:
        trace_script(tmp_path, {"src": ([1, 4, 8], [2, 4, 8], [4, 4, 8])}, [Input("src")])
    assert caught.value.hint is not None and "python:" in caught.value.hint


def test_the_file_is_a_dependency(tmp_path: Path, in_child: Callable[..., ChildTrace]) -> None:
    project = tmp_path / "project"
    project.mkdir()
    save_script(Net(), project)
    traced = in_child(make_job(ROWS, source=Source("torchscript", "net.ts")), project, tmp_path)
    assert traced.error is None
    assert len(traced.observations["file:net.ts"]) == 64


class Masked(nn.Module):
    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:  # noqa: UP045
        return x if mask is None else x * mask


def test_a_conversion_that_cannot_run_is_an_error_with_hints(tmp_path: Path) -> None:
    save_script(Masked(), tmp_path)
    inputs = [Input("x"), Input("mask", keyword=True)]
    with pytest.raises(SourceError, match=r"torch\.export cannot trace the model") as caught:
        trace_script(tmp_path, {"x": ROWS["x"], "mask": [1, 4]}, inputs)
    assert caught.value.hint is not None and "python:" in caught.value.hint
