"""`trtbuild.compile` of modules of TorchScript, and the values of `ir`."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trtbuild
from tests.conftest import ran
from trtbuild import Input
from trtbuild.errors import SourceError, UsageError

Compile = Callable[..., Any]
ROWS = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return y, y * scale


class Loops(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x[0, 0])):
            x = x + 1
        return x


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def call(module: Any, rows: int) -> Any:
    torch.manual_seed(rows)
    return module(torch.randn(rows, 8), torch.randn(4))


def call_by_name(module: Any, rows: int) -> Any:
    torch.manual_seed(rows)
    return module(torch.randn(rows, 8), scale=torch.randn(4))


@pytest.mark.parametrize("ir", [None, "default", "ts", "torchscript"])
def test_a_scripted_module_is_compiled(compile_module: Compile, ir: str | None) -> None:
    script = torch.jit.script(Scaled().eval())
    before = str(script.graph)
    model = compile_module(script, [ROWS, Input((4,))], ir=ir)
    assert model.package.index.model == "Scaled"
    assert [entry.name for entry in model.package.index.inputs] == ["x", "scale"]
    for rows in (1, 5, 16):
        torch.testing.assert_close(call(model, rows), call(script, rows))
    assert str(script.graph) == before


def test_a_traced_module_is_compiled(compile_module: Compile) -> None:
    script = torch.jit.trace(Scaled().eval(), (torch.ones(4, 8), torch.ones(4)))
    model = compile_module(script, [ROWS], {"scale": torch.ones(4)})
    for rows in (1, 16):
        torch.testing.assert_close(call_by_name(model, rows), call(script, rows))


def test_ir_ts_scripts_an_nn_module(compile_module: Compile) -> None:
    net = Scaled().eval()
    compiled_script = compile_module(torch.jit.script(net), [ROWS, Input((4,))])
    model = compile_module(net, [ROWS, Input((4,))], ir="ts")
    assert ran(model.report) == {}
    torch.testing.assert_close(call(model, 3), call(compiled_script, 3))


def test_a_script_is_traced_to_a_program() -> None:
    script = torch.jit.script(Scaled().eval())
    program = trtbuild.trace(script, [ROWS, Input((4,))])
    for rows in (1, 16):
        torch.testing.assert_close(call(program.module(), rows), call(script, rows))


@pytest.mark.parametrize("ir", ["dynamo", "exported_program", "default", None])
def test_a_program_is_compiled_with_each_ir_that_fits_it(compile_module: Compile, ir: str | None) -> None:
    program = torch.export.export(torch.nn.Linear(8, 4).eval(), (torch.ones(4, 8),))
    assert compile_module(program, ir=ir)(torch.ones(4, 8)).shape == (4, 4)


@pytest.mark.parametrize(
    ("make", "ir", "text", "hint"),
    [
        (lambda net: net, "exported_program", "is not for an nn.Module", "trtbuild.trace"),
        (torch.jit.script, "dynamo", "is not for a module of TorchScript", 'ir="ts"'),
        (
            lambda net: torch.export.export(net, (torch.ones(4, 8), torch.ones(4))),
            "ts",
            "is not for an ExportedProgram",
            'ir="dynamo"',
        ),
        (lambda net: net, "torch_compile", "trtbuild has no ir='torch_compile'", "torch.compile(module, backend="),
        (lambda net: net, "fx", "trtbuild has no ir='fx'", "leave ir out"),
        (lambda net: net, "onnx", "ir must be one of 'default', 'dynamo'", "leave it out"),
        (lambda net: net, 3, "ir must be one of", "leave it out"),
    ],
)
def test_rejects_an_ir_for_another_kind_of_module(
    compile_module: Compile, make: Callable[[Any], Any], ir: Any, text: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        compile_module(make(Scaled().eval()), [ROWS, Input((4,))], ir=ir)
    assert text in caught.value.text
    assert hint in str(caught.value.hint)


def test_rejects_a_script_whose_loop_depends_on_values(compile_module: Compile) -> None:
    with pytest.raises(
        SourceError, match="Loops has a loop that PyTorch's converter from TorchScript cannot"
    ) as caught:
        compile_module(torch.jit.script(Loops().eval()), [ROWS])
    assert "test_torchscript.py:" in caught.value.text
    assert caught.value.hint is not None
    assert "nn.Module" in caught.value.hint


def test_rejects_a_script_in_training_mode_and_wrong_inputs(compile_module: Compile) -> None:
    with pytest.raises(SourceError, match="is in training mode"):
        compile_module(torch.jit.script(Scaled()), [ROWS, Input((4,))])
    with pytest.raises(SourceError, match=r"Scaled takes \(x, scale\); inputs are x"):
        compile_module(torch.jit.script(Scaled().eval()), [ROWS])


def test_rejects_functions_of_torchscript_and_modules_that_cannot_be_scripted(compile_module: Compile) -> None:
    with pytest.raises(UsageError, match="a function of TorchScript cannot be compiled"):
        compile_module(torch.jit.script(double), [ROWS])

    class Variadic(torch.nn.Module):
        def forward(self, *x: torch.Tensor) -> torch.Tensor:
            return x[0]

    with pytest.raises(SourceError, match=r"torch\.jit\.script cannot script Variadic") as caught:
        compile_module(Variadic().eval(), [ROWS], ir="ts")
    assert 'ir="ts"' in str(caught.value.hint)


def test_rejects_a_torchscript_file_of_a_later_version(tmp_path: Path) -> None:
    """The file is the source of a model in a manifest, because `trtbuild.compile` takes no files."""
    from tests.stages.trace.sources.test_torchscript import trace_script

    torch.jit.save(torch.jit.script(torch.nn.Linear(8, 4).eval()), tmp_path / "current.ts")
    with zipfile.ZipFile(tmp_path / "current.ts") as current, zipfile.ZipFile(tmp_path / "net.ts", "w") as later:
        for name in current.namelist():
            later.writestr(name, b"999\n" if name.endswith("/version") else current.read(name))
    with pytest.raises(SourceError, match=r"torch\.jit\.load cannot read net\.ts") as caught:
        trace_script(tmp_path, {"input": ([1, 8], [4, 8], [4, 8])})
    assert "version" in caught.value.text
