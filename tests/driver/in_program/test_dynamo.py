"""``torch.compile(model, backend="trtbuild")``: what is built, for which ranges, and what stays in PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trtbuild.driver.in_program import compiling, dynamo
from trtbuild.errors import SourceError, UsageError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The descriptions of the graphs that are built, in order."""
    found: list[Any] = []

    def build(module: Any, inputs: Any, *rest: Any) -> Any:
        made = compiling.build_module(module, inputs, *rest)
        found.append(inputs)
        return made

    monkeypatch.setattr(dynamo, "build_module", build)
    return found


@pytest.fixture
def compile_(program_cache: Path) -> Callable[..., Any]:
    """``torch.compile`` with the backend found by its name, as any program finds it."""

    def run(module: Any, **options: Any) -> Any:
        options = {"target": 89, "cache_dir": str(program_cache), "pass_through_build_failures": True, **options}
        return torch.compile(module, backend="trtbuild", options=options)

    return run


class Odd(torch.nn.Module):
    """Returns a size, a constant and the same tensor twice; takes an integer and a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("bias", torch.ones(3))

    def forward(self, x: torch.Tensor, times: int = 2, *, scale: torch.Tensor | None = None) -> Any:
        y = self.linear(x) * times + self.bias
        y = y if scale is None else y * scale
        return {"y": y, "rows": x.shape[0], "again": y, "none": None, "flat": y.reshape(-1)}


@pytest.fixture
def odd() -> torch.nn.Module:
    torch.manual_seed(1)
    return Odd().eval()


def ranges(described: Any) -> dict[str, tuple[int, ...]]:
    """Input → min, opt and max of its first axis."""
    ((_, *rest),) = [(p.name, *p.shapes) for p in described.profiles]
    return {name: (shape.min[0], shape.opt[0], shape.max[0]) for name, shape in rest}


def same(found: Any, wanted: Any) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(found[name], value)
        else:
            assert found[name] == value


@torch.no_grad()
def test_a_marked_dim_is_one_engine_for_its_whole_range(compile_: Any, odd: Any, built: list[Any]) -> None:
    model = compile_(odd)
    x = torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    for rows in (5, 2, 8):
        given = x if rows == 5 else torch.randn(rows, 4)
        same(model(given), odd(given))
    assert [ranges(one) for one in built] == [{"x": (2, 5, 8)}]


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:trtbuild")
def test_a_size_beyond_the_mark_never_reaches_the_engine_of_the_range(
    compile_: Any, odd: Any, built: list[Any]
) -> None:
    model, x = compile_(odd), torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    for given in (x, torch.randn(9, 4)):
        same(model(given), odd(given))
    assert [ranges(one)["x"] for one in built] == [(2, 5, 8), (9, 9, 9)]


@torch.no_grad()
def test_a_mark_from_1_is_taken_at_its_word(compile_: Any, odd: Any, built: list[Any]) -> None:
    x = torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0, min=1, max=8)
    same(compile_(odd)(x), odd(x))
    assert [ranges(one) for one in built] == [{"x": (1, 5, 8)}]


@torch.no_grad()
def test_without_marks_shapes_are_static_and_another_has_an_engine_of_its_own(
    compile_: Any, odd: Any, built: list[Any]
) -> None:
    model = compile_(odd)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for rows in (3, 6):
            x = torch.randn(rows, 4)
            same(model(x), odd(x))
    assert [ranges(one)["x"] for one in built] == [(3, 3, 3), (6, 6, 6)]
    assert [warning.filename for warning in said if "mark_dynamic" in str(warning.message)] == [__file__]


@torch.no_grad()
def test_an_integer_and_a_keyword(compile_: Any, odd: Any) -> None:
    model, x, scale = compile_(odd, max_specializations=1), torch.randn(3, 4), torch.full((1,), 0.5)
    for times in (3, 4, 5):  # dynamo takes the second one for dynamic; the last one is PyTorch's
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same(model(x, times, scale=scale), odd(x, times, scale=scale))


@torch.no_grad()
def test_weights_that_change_are_noticed(compile_: Any, odd: Any, built: list[Any]) -> None:
    model, x = compile_(odd), torch.randn(3, 4)
    same(model(x), odd(x))
    odd.linear.weight.mul_(2)
    same(model(x), odd(x))
    assert len(built) == 2
    odd.linear.weight.data = torch.randn_like(odd.linear.weight)  # the same parameter, and not written to
    same(model(x), odd(x))
    assert len(built) == 3


@torch.no_grad()
def test_weights_that_are_trained_are_left_to_pytorch(compile_: Any, odd: Any, built: list[Any]) -> None:
    model, x = compile_(odd), torch.randn(3, 4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(6):
            same(model(x), odd(x))
            odd.linear.weight.mul_(1.1)
    assert len(built) == 1 + dynamo.CHANGES
    (warning,) = [one for one in said if "runs in PyTorch from now on" in str(one.message)]
    assert warning.filename == __file__


@torch.no_grad()
def test_weights_that_were_settled_may_change_as_often_as_they_like(
    compile_: Any, odd: Any, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamo, "SETTLED", 3)
    model, x = compile_(odd), torch.randn(3, 4)
    for _ in range(4):
        for _ in range(5):
            same(model(x), odd(x))
        odd.linear.weight.mul_(1.1)
    assert len(built) == 4


@torch.no_grad()
def test_a_graph_break_gives_two_graphs(compile_: Any, built: list[Any]) -> None:
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.one(x))
            torch._dynamo.graph_break()
            return torch.relu(self.two(x))

    module, x = Broken().eval(), torch.randn(3, 4)
    torch.testing.assert_close(compile_(module)(x), module(x))
    assert len(built) == 2


def test_gradients_are_left_to_pytorch(compile_: Any, odd: Any, built: list[Any]) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    compile_(odd)(x)["y"].sum().backward()
    assert x.grad is not None
    assert built == []


@torch.no_grad()
def test_what_has_no_engine_runs_in_pytorch_with_a_warning(compile_: Any) -> None:
    class Random(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    x = torch.zeros(3, 4)
    with pytest.warns(RuntimeWarning, match="runs in PyTorch") as said:
        assert compile_(Random().eval(), pass_through_build_failures=False)(x).shape == (3, 4)
    assert {one.filename for one in said if "trtbuild" in str(one.message)} == {__file__}
    torch._dynamo.reset()
    with pytest.raises(SourceError, match="draws random numbers"):
        compile_(Random().eval())(x)


@torch.no_grad()
def test_works_in_inference_mode_too(compile_: Any, odd: Any) -> None:
    x = torch.randn(3, 4)
    with torch.inference_mode():
        same(compile_(odd)(x), odd(x))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"target": "x"}, "is not a target"),
        ({"speed": 3}, "no setting 'speed'"),
        ({"max_specializations": "x"}, "max_specializations is 'x'"),
    ],
)
def test_rejects_wrong_options(odd: Any, options: dict[str, Any], says: str) -> None:
    model = torch.compile(odd, backend="trtbuild", options={"target": 89, **options})
    with pytest.raises(Exception, match=says) as caught:
        model(torch.zeros(3, 4))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), UsageError)
