"""`trtbuild.trace` returns the program of torch.export that `trtbuild.compile` builds engines for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import trtbuild
from tests.conftest import CommandLine, ran
from trtbuild import Input
from trtbuild.errors import SourceError, UsageError

ROWS = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))

MANIFEST = """
version: 1
targets: {ada: {sm: 89}}
profiles:
  rows: {x: {min: [1, 8], opt: [4, 8], max: [16, 8]}, scale: {shape: [4]}}
models:
  net:
    source: {exported_program: net.pt2}
    inputs: {x: {dtype: float32}, scale: {dtype: float32, keyword: true}}
    profiles: [rows]
    targets: [ada]
"""


def test_the_program_is_called_like_the_module(net: torch.nn.Module) -> None:
    program = trtbuild.trace(net, [ROWS], {"scale": Input((4,))})
    assert isinstance(program, torch.export.ExportedProgram)
    (bounds,) = program.range_constraints.values()
    assert (bounds.lower, bounds.upper) == (1, 16)
    module = program.module()
    for rows in (1, 5, 16):
        x, scale = torch.randn(rows, 8), torch.randn(4)
        torch.testing.assert_close(module(x, scale=scale), net(x, scale=scale))
    with pytest.raises(Exception, match="<= 16"):
        module(torch.randn(17, 8), scale=torch.randn(4))


def test_the_range_is_the_declared_one_even_if_torch_traces_a_wider_one(net: torch.nn.Module) -> None:
    program = trtbuild.trace(net, [Input(min_shape=(1, 8), opt_shape=(1, 8), max_shape=(2, 8))])
    (bounds,) = program.range_constraints.values()
    assert (bounds.lower, bounds.upper) == (1, 2)
    with pytest.raises(Exception, match="<= 2"):
        program.module()(torch.randn(3, 8))


def test_the_program_has_the_multiples_and_the_shared_dims() -> None:
    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, -1) + y.reshape(2, -1)

    even = Input(min_shape=(4,), opt_shape=(8,), max_shape=(12,))
    dims = {"even": {"at": ["x.0", "y.0"], "multiple_of": 2}}
    program = trtbuild.trace(Halves().eval(), [even], {"y": even}, dims=dims)
    for size in (4, 10, 12):
        assert program.module()(torch.ones(size), y=torch.ones(size)).tolist() == [[2.0] * (size // 2)] * 2
    with pytest.raises(Exception):  # noqa: B017 (torch raises several types)
        program.module()(torch.ones(5), y=torch.ones(5))


def test_writes_inside_the_module_are_functionalized() -> None:
    class Writes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y[:, 0] = 0
            return y

    program = trtbuild.trace(Writes().eval(), [Input((2, 3))])
    # the name of an operator that writes into its input ends with _
    assert not [node for node in program.graph.nodes if "_.default" in str(node.target)]
    assert program.module()(torch.ones(2, 3)).tolist() == [[0, 1, 1]] * 2


def test_compile_builds_the_same_engines_for_the_traced_program(
    compile_module: Callable[..., Any], net: torch.nn.Module
) -> None:
    compile_module(net, [ROWS])
    model = compile_module(trtbuild.trace(net, [ROWS]), [ROWS])
    assert ran(model.report).get("engine") is None
    torch.testing.assert_close(model(torch.ones(3, 8)), net(torch.ones(3, 8)))


def test_a_manifest_accepts_the_saved_program(command_line: CommandLine, net: torch.nn.Module) -> None:
    program = trtbuild.trace(net, [ROWS], {"scale": Input((4,))})
    torch.export.save(program, command_line.project / "net.pt2")
    loaded = torch.export.load(command_line.project / "net.pt2")
    assert [(bounds.lower, bounds.upper) for bounds in loaded.range_constraints.values()] == [(1, 16)]
    (command_line.project / "trtbuild.yaml").write_text(MANIFEST)
    assert ran(command_line("build"))["engine"] == 1


def test_the_module_does_not_change(net: torch.nn.Module) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.random.get_rng_state()
    program = trtbuild.trace(net, arg_inputs=[ROWS])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert program.state_dict["first.weight"].data_ptr() == net.state_dict()["first.weight"].data_ptr()


class Draws(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 1 else x * 3


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (Draws().eval(), "random-operator"),
        (Counts().eval(), "mutated-buffer"),
        (torch.nn.Linear(8, 8), "training-mode"),
        (Branches().eval(), "frozen-branch"),
    ],
)
def test_rejects_modules_that_cannot_be_compiled(module: torch.nn.Module, code: str) -> None:
    with pytest.raises(SourceError) as caught:
        trtbuild.trace(module, [ROWS])
    assert caught.value.code == code
    assert (caught.value.file or "").endswith("test_tracing.py")


def test_rejects_missing_inputs(net: torch.nn.Module) -> None:
    with pytest.raises(UsageError, match="there are no inputs"):
        trtbuild.trace(net)
