"""``torch.compile(model, backend="trtbuild")``: the engines and their ranges, and the graphs that stay in PyTorch."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from trtbuild.driver.in_program import compiling, dynamo
from trtbuild.errors import SourceError, UsageError


@pytest.fixture(autouse=True)
def reset_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The inputs of each successful build of a graph, in order."""
    inputs_of_builds: list[Any] = []

    def build(module: Any, inputs: Any, *rest: Any) -> Any:
        result = compiling.build_module(module, inputs, *rest)
        inputs_of_builds.append(inputs)
        return result

    monkeypatch.setattr(dynamo, "build_module", build)
    return inputs_of_builds


@pytest.fixture
def compile_(program_cache: Path) -> Callable[..., Any]:

    def run(module: Any, **options: Any) -> Any:
        options = {"target": 89, "cache_dir": str(program_cache), "pass_through_build_failures": True, **options}
        return torch.compile(module, backend="trtbuild", options=options)

    return run


class MixedOutputs(torch.nn.Module):
    """A module whose outputs include a size, None, and one tensor twice. Its inputs include an integer and a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("bias", torch.ones(3))

    def forward(self, x: torch.Tensor, times: int = 2, *, scale: torch.Tensor | None = None) -> Any:
        y = self.linear(x) * times + self.bias
        y = y if scale is None else y * scale
        return {"y": y, "rows": x.shape[0], "again": y, "none": None, "flat": y.reshape(-1)}


@pytest.fixture
def mixed() -> torch.nn.Module:
    torch.manual_seed(1)
    return MixedOutputs().eval()


def ranges(described: Any) -> dict[str, tuple[int, ...]]:
    """Input → min, opt and max of its first axis in the only profile."""
    (profile,) = described.profiles
    return {name: (shape.min[0], shape.opt[0], shape.max[0]) for name, shape in profile.shapes}


def check_equal(result: Any, expected: Any) -> None:
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(result[name], value)
        else:
            assert result[name] == value


@torch.no_grad()
def test_a_marked_dim_is_one_engine_for_its_whole_range(compile_: Any, mixed: Any, built: list[Any]) -> None:
    model = compile_(mixed)
    x = torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    for rows in (5, 2, 8):
        batch = x if rows == 5 else torch.randn(rows, 4)
        check_equal(model(batch), mixed(batch))
    assert [ranges(inputs) for inputs in built] == [{"x": (2, 5, 8)}]


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:trtbuild")
def test_a_size_outside_of_the_marked_range_has_another_engine(compile_: Any, mixed: Any, built: list[Any]) -> None:
    model, x = compile_(mixed), torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    for batch in (x, torch.randn(9, 4)):
        check_equal(model(batch), mixed(batch))
    assert [ranges(inputs)["x"] for inputs in built] == [(2, 5, 8), (9, 9, 9)]


@torch.no_grad()
def test_a_marked_range_may_begin_at_1(compile_: Any, mixed: Any, built: list[Any]) -> None:
    x = torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0, min=1, max=8)
    check_equal(compile_(mixed)(x), mixed(x))
    assert [ranges(inputs) for inputs in built] == [{"x": (1, 5, 8)}]


@torch.no_grad()
def test_without_marks_each_shape_has_an_engine(compile_: Any, mixed: Any, built: list[Any]) -> None:
    model = compile_(mixed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (3, 6):
            x = torch.randn(rows, 4)
            check_equal(model(x), mixed(x))
    assert [ranges(inputs)["x"] for inputs in built] == [(3, 3, 3), (6, 6, 6)]
    assert [warning.filename for warning in caught if "mark_dynamic" in str(warning.message)] == [__file__]


@torch.no_grad()
def test_an_integer_and_a_keyword_are_accepted(compile_: Any, mixed: Any) -> None:
    model, x, scale = compile_(mixed, max_specializations=1), torch.randn(3, 4), torch.full((1,), 0.5)
    # at the second call, dynamo makes the integer dynamic; the third value is beyond `max_specializations`
    for times in (3, 4, 5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_equal(model(x, times, scale=scale), mixed(x, times, scale=scale))


@torch.no_grad()
def test_a_graph_with_changed_weights_is_built_again(compile_: Any, mixed: Any, built: list[Any]) -> None:
    model, x = compile_(mixed), torch.randn(3, 4)
    check_equal(model(x), mixed(x))
    mixed.linear.weight.mul_(2)
    check_equal(model(x), mixed(x))
    assert len(built) == 2
    mixed.linear.weight.data = torch.randn_like(mixed.linear.weight)  # the same parameter with other memory
    check_equal(model(x), mixed(x))
    assert len(built) == 3


def test_two_threads_build_a_graph_once(mixed: Any, built: list[Any], program_cache: Path) -> None:
    calls: list[tuple[Any, tuple[Any, ...]]] = []

    def keep_call(graph: Any, examples: Any) -> Any:
        run = dynamo.backend(graph, examples, options={"target": 89, "cache_dir": str(program_cache)})

        def forward(*arguments: Any) -> Any:
            calls.append((run, arguments))
            return graph.forward(*arguments)

        return forward

    both_began = threading.Barrier(2)

    def call(_: int) -> Any:
        with torch.no_grad():
            both_began.wait()
            return run(*arguments)

    with torch.no_grad():
        expected = torch.compile(mixed, backend=keep_call)(torch.randn(3, 4))
    ((run, arguments),) = calls
    with ThreadPoolExecutor(2) as threads:
        for result in threads.map(call, range(2)):
            torch.testing.assert_close(result[0], expected["y"])
    assert len(built) == 1


@torch.no_grad()
def test_a_graph_whose_weights_change_often_runs_in_pytorch(compile_: Any, mixed: Any, built: list[Any]) -> None:
    model, x = compile_(mixed), torch.randn(3, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):
            check_equal(model(x), mixed(x))
            mixed.linear.weight.mul_(1.1)
    assert len(built) == 1 + dynamo.MAX_CHANGES
    (warning,) = [entry for entry in caught if "runs in PyTorch from now on" in str(entry.message)]
    assert warning.filename == __file__


@torch.no_grad()
def test_a_graph_whose_weights_change_after_many_calls_is_built_again_each_time(
    compile_: Any, mixed: Any, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamo, "SETTLED_CALLS", 3)
    model, x = compile_(mixed), torch.randn(3, 4)
    for _ in range(4):
        for _ in range(5):
            check_equal(model(x), mixed(x))
        mixed.linear.weight.mul_(1.1)
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


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:trtbuild")
@pytest.mark.parametrize("marked", [False, True])
def test_a_write_to_a_view_of_an_input_after_a_graph_break_changes_the_input(
    compile_: Any, monkeypatch: pytest.MonkeyPatch, marked: bool
) -> None:
    def build(*arguments: Any) -> Any:
        module = compiling.build_module(*arguments)
        return lambda *inputs: [output.clone() for output in module(*inputs)]  # an engine's outputs are new tensors

    class Writer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            columns, row, y = x[1:, 1:], self.table[1], torch.relu(x)
            torch._dynamo.graph_break()
            columns.mul_(3)
            row.add_(1)
            return x + y.sum() + self.table.sum()

    monkeypatch.setattr(dynamo, "build_module", build)
    module = Writer().eval()
    model = compile_(copy.deepcopy(module), pass_through_build_failures=False)
    x = torch.randn(5, 4)
    expected_input = x.clone()
    if marked:
        torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    torch.testing.assert_close(model(x), module(expected_input))
    torch.testing.assert_close(x, expected_input)


def test_graphs_with_gradients_run_in_pytorch(compile_: Any, mixed: Any, built: list[Any]) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    compile_(mixed)(x)["y"].sum().backward()
    assert x.grad is not None
    assert built == []


@torch.no_grad()
def test_a_graph_that_cannot_be_built_runs_in_pytorch_with_a_warning(compile_: Any) -> None:
    class Random(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    x = torch.zeros(3, 4)
    with pytest.warns(RuntimeWarning, match="runs in PyTorch") as caught:
        assert compile_(Random().eval(), pass_through_build_failures=False)(x).shape == (3, 4)
    assert {entry.filename for entry in caught if "trtbuild" in str(entry.message)} == {__file__}
    torch._dynamo.reset()
    with pytest.raises(SourceError, match="draws random numbers"):
        compile_(Random().eval())(x)


@torch.no_grad()
def test_a_compiled_model_also_works_in_inference_mode(compile_: Any, mixed: Any) -> None:
    x = torch.randn(3, 4)
    with torch.inference_mode():
        check_equal(compile_(mixed)(x), mixed(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "x"}, "is not a target"),
        ({"speed": 3}, "no setting 'speed'"),
        ({"max_specializations": "x"}, "max_specializations is 'x'"),
    ],
)
def test_rejects_wrong_options(mixed: Any, options: dict[str, Any], message: str) -> None:
    model = torch.compile(mixed, backend="trtbuild", options={"target": 89, **options})
    with pytest.raises(Exception, match=message) as caught:
        model(torch.zeros(3, 4))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), UsageError)
