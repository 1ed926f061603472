"""Models that differ in one detail never have the same canonical text. Names and weight values are not in the text.

The keys of the steps after the trace contain the SHA-256 of such texts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program, functional
from trtbuild.stages.program.text import module_paths, program_text

Function = Callable[..., object]


class FunctionModule(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> object:
        return self.function(*args)


def text_of(module: nn.Module, *args: torch.Tensor, high: int = 8, low: int = 2) -> str:
    """The canonical text. The first axis of each input has the range `low` to `high`."""
    batch = Dim("batch", min=low, max=high)
    shapes = tuple({0: batch} for _ in args)
    dynamic = (shapes,) if isinstance(module, FunctionModule) else shapes  # *args is one argument to torch.export
    exported = export(module.eval(), args, dynamic_shapes=dynamic)
    program, _ = functional(exported.run_decompositions({}))  # as in the trace step
    return program_text(program)


X, Y = torch.ones(4, 6), torch.full((4, 6), 2.0)

PAIRS: dict[str, tuple[Function, Function]] = {
    "a softmax dim": (lambda x: x.softmax(0), lambda x: x.softmax(1)),
    "operand order": (lambda x, y: x - y, lambda x, y: y - x),
    "operand order of a product": (lambda x, y: x @ y.T, lambda x, y: y @ x.T),
    "a constant": (lambda x: x * 2, lambda x: x * 3),
    "an int constant and a float constant": (lambda x: x * 2, lambda x: x * 2.0),
    "a constant's sign of zero": (lambda x: x * 0.0, lambda x: x * -0.0),
    "a constant in its last bit": (lambda x: x * 0.1, lambda x: x * 0.10000000000000002),
    "a constant tensor's value": (
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 7.0]),
    ),
    "a clamp bound": (lambda x: x.clamp(0, 1), lambda x: x.clamp(0, 6)),
    "a clamp's open side": (lambda x: x.clamp(min=0), lambda x: x.clamp(max=0)),
    "an operator": (lambda x: x.sin(), lambda x: x.cos()),
    "an overload": (lambda x: x + 1, lambda x: x + torch.ones(6)),
    "a dtype inside": (lambda x: x.half().float(), lambda x: x.bfloat16().float()),
    "an output order": (lambda x: (x + 1, x + 2), lambda x: (x + 2, x + 1)),
    "an output that is left out": (lambda x: (x + 1, x + 2), lambda x: (x + 1,)),
    "an input that is returned": (lambda x, y: (x, x + y), lambda x, y: (y, x + y)),
    "an edge": (lambda x: (x + 1) * (x + 2) + (x + 1), lambda x: (x + 1) * (x + 2) + (x + 2)),
    "a stride inside": (lambda x: x.t().contiguous(), lambda x: x.t()),
    "a permutation": (
        lambda x: x.unflatten(1, (2, 3)).permute(0, 2, 1),
        lambda x: x.unflatten(1, (2, 3)).permute(0, 1, 2),
    ),
    "a rounding mode": (
        lambda x: torch.div(x, 2, rounding_mode="floor"),
        lambda x: torch.div(x, 2, rounding_mode="trunc"),
    ),
    "an infinity": (lambda x: x.masked_fill(x > 0, float("inf")), lambda x: x.masked_fill(x > 0, float("-inf"))),
    "keepdim": (lambda x: x.sum(1, keepdim=True).squeeze(1), lambda x: x.sum(1)),
}


@pytest.mark.parametrize("difference", PAIRS)
def test_two_graphs_that_differ_in_one_thing_have_different_texts(difference: str) -> None:
    first, second = PAIRS[difference]
    count = first.__code__.co_argcount
    assert text_of(FunctionModule(first), *(X, Y)[:count]) != text_of(FunctionModule(second), *(X, Y)[:count])


def conv(**settings: object) -> str:
    torch.manual_seed(0)
    module = nn.Conv2d(2, 2, 3, **settings)  # type: ignore[arg-type]
    program, _ = functional(export(module.eval(), (torch.ones(1, 2, 16, 16),)))
    return program_text(program)


def test_a_dilation_a_stride_a_padding_and_groups_are_in_the_text() -> None:
    settings: list[dict[str, object]] = [
        {},
        {"dilation": 2},
        {"stride": 2},
        {"padding": 1},
        {"groups": 2},
        {"bias": False},
    ]
    assert len({conv(**setting) for setting in settings}) == len(settings)


def test_a_dtype_a_dim_range_and_a_static_dim_are_in_the_text() -> None:
    double = lambda x: x * 2  # noqa: E731
    texts = [
        text_of(FunctionModule(double), X),
        text_of(FunctionModule(double), X.half()),
        text_of(FunctionModule(double), X.to(torch.int64)),
        text_of(FunctionModule(double), X, high=16),
        text_of(FunctionModule(double), X, low=1),
        text_of(FunctionModule(double), torch.ones(4, 7)),
        program_text(functional(export(FunctionModule(double).eval(), (X,)))[0]),
    ]
    assert len(set(texts)) == len(texts)


def test_a_stride_of_a_weight_is_in_the_text_and_its_value_is_not() -> None:
    def linear(weight: torch.Tensor) -> str:
        module = nn.Linear(6, 6, bias=False)
        module.weight = nn.Parameter(weight)
        return text_of(module, X)

    square = torch.arange(36.0).reshape(6, 6)
    assert linear(square) == linear(square + 1)
    assert linear(square) != linear(square.t())


def test_a_shared_dim_and_two_dims_have_different_texts() -> None:
    add = FunctionModule(lambda x, y: (x * 2, y * 2))
    first, second = Dim("first", min=2, max=8), Dim("second", min=2, max=8)
    shared = functional(export(add, (X, Y), dynamic_shapes=(({0: first}, {0: first}),)))[0]
    separate = functional(export(add, (X, torch.ones(5, 6)), dynamic_shapes=(({0: first}, {0: second}),)))[0]
    assert program_text(shared) != program_text(separate)


class Tied(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def test_tied_weights_change_the_text() -> None:
    assert text_of(Tied(True), X) != text_of(Tied(False), X)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Linear(6, 6)
        self.beta = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.alpha(x))
        return self.beta(hidden) + 1


class Renamed(nn.Module):
    """`Named` with other names of attributes, variables and class, and other line numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, 6)
        self.right = nn.Linear(6, 6)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        # a comment
        a = self.left(value)
        b = torch.relu(a)
        return self.right(b) + 1


def test_names_of_modules_weights_and_variables_are_not_in_the_text() -> None:
    assert text_of(Named(), X) == text_of(Renamed(), X)


def test_a_stored_program_has_the_same_text() -> None:
    program, _ = functional(export(Named().eval(), (X,)))
    stored = program.to_bytes()
    assert program_text(Program.from_bytes(stored)) == program_text(program)
    assert b"test_soundness" not in stored, (
        "the stored program contains a file name, so the program would change when its source moves"
    )


CHILD = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import torch
from torch.export import Dim, export
from a_model import Model
from trtbuild.stages.program.functional import functional
from trtbuild.stages.program.text import program_text

batch = Dim("batch", min=2, max=8)
program, _ = functional(export(Model().eval(), (torch.ones(4, 6),), dynamic_shapes=({0: batch},)))
print(hashlib.sha256(program_text(program).encode()).hexdigest())
"""

MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x):
        return {name: self.linear(x) * k for k, name in enumerate(["a", "b", "c"])}
"""


def test_the_digest_does_not_depend_on_path_hash_seed_user_locale_and_time_zone(tmp_path: Path) -> None:
    digests = set()
    for place, seed, variables in (
        ("here", "0", {}),
        (
            "a path with spaces",
            "4242",
            {"LC_ALL": "C", "LANG": "C", "TZ": "Asia/Tokyo", "USER": "other", "HOME": "/tmp"},
        ),
    ):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "a_model.py").write_text(MODEL)
        environment = {**os.environ, "PYTHONHASHSEED": seed, **variables}
        completed = subprocess.run(
            [sys.executable, "-c", CHILD, str(folder)],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(completed.stdout.strip())
    (digest,) = digests
    assert len(digest) == 64


class AppliesLinearTwice(nn.Module):
    """Applies one linear layer twice: the second time as a module call, or as a function with the same weights."""

    def __init__(self, as_module: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.as_module = as_module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return self.layer(x) if self.as_module else nn.functional.linear(x, self.layer.weight, self.layer.bias)


def test_module_paths_are_not_in_the_text() -> None:
    programs = [
        functional(export(AppliesLinearTwice(as_module).eval(), (X,)).run_decompositions({}))[0]
        for as_module in (True, False)
    ]
    assert program_text(programs[0]) == program_text(programs[1])
    assert module_paths(programs[0]) != module_paths(programs[1])
    _, (_, _, module_keys_of_second_call) = module_paths(programs[0])
    assert module_keys_of_second_call.endswith("@1")


def test_a_size_that_is_a_rounded_product_is_written_with_whole_numbers() -> None:
    grow = FunctionModule(lambda x: nn.functional.interpolate(x[None], scale_factor=1.5))
    batch = Dim("batch", min=2, max=8)
    exported = export(grow.eval(), (torch.ones(4, 6),), dynamic_shapes=(({1: batch},),)).run_decompositions({})
    assert "floordiv" in program_text(functional(exported)[0])


def test_rejects_a_size_that_is_not_an_integer_expression() -> None:
    grow = FunctionModule(lambda x: nn.functional.interpolate(x[None], scale_factor=1.5))
    batch = Dim("batch", min=2)  # a fraction replaces the float 1.5 only in a bounded range
    exported = export(grow.eval(), (torch.ones(4, 6),), dynamic_shapes=(({1: batch},),)).run_decompositions({})
    with pytest.raises(SourceError) as caught:
        program_text(functional(exported)[0])
    assert caught.value.code == "size-expression"
