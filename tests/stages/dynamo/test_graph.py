"""`read_graph` reads the graphs of dynamo, and `convert_to_module` creates modules from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from trtbuild.stages.dynamo.graph import CapturedGraph, NotSupported, read_graph
from trtbuild.stages.dynamo.rewriting import convert_to_module


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Reset dynamo before each test, and run the test without autograd."""
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def captured(function: Callable[..., Any], *args: Any) -> tuple[CapturedGraph, Sequence[Any]]:
    """The captured graph of a call, and the arguments with which dynamo calls the graph."""
    calls: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        content = read_graph(graph)

        def run(*arguments: Any) -> Any:
            calls.append((content, arguments))
            return graph.forward(*arguments)

        return run

    torch.compile(function, backend=backend)(*args)
    ((content, arguments),) = calls
    return content, arguments


def recording_backend(graphs: list[CapturedGraph]) -> Callable[..., Any]:
    """A backend of torch.compile that appends each captured graph to `graphs`."""

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(read_graph(graph))
        return graph.forward

    return backend


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 3)])
        self.register_buffer("bias", torch.ones(3))

    def forward(self, x: torch.Tensor, times: int = 1) -> Any:
        y = self.layers[0](x) * times + self.bias
        return y, x.shape[0], x.shape[0] * 3, y.reshape(-1), y


def rows(low: int = 2, high: int = 8) -> torch.Tensor:
    """A tensor [5, 4] whose first axis is marked as dynamic, with a range."""
    x = torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0, min=low, max=high)
    return x


def test_parameters_and_buffers_are_weights_under_their_names() -> None:
    graph, _ = captured(Net().eval(), torch.randn(5, 4))
    assert [(weight.name, weight.is_parameter) for weight in graph.weights] == [
        ("layers.0.weight", True),
        ("layers.0.bias", True),
        ("bias", False),
    ]
    assert [(entry.name, entry.dtype, entry.shape) for entry in graph.tensors] == [("x", torch.float32, (5, 4))]
    assert graph.dims == ()
    assert graph.open_symbols == ()


@pytest.mark.parametrize("low", [1, 2, 3])
def test_a_marked_dim_has_its_range(low: int) -> None:
    graph, arguments = captured(Net().eval(), rows(low))
    (dim,) = graph.dims
    # `axes` has (input, axis, factor) for each axis whose size is `factor` times the dim
    assert (dim.low, dim.high, dim.marked_low, dim.axes) == (max(2, low), 8, low, ((0, 0, 1),))
    assert graph.open_symbols == ()
    assert graph.sizes(arguments) == {dim.symbol: 5}


def test_the_marked_range_of_an_axis_is_divided_by_its_factor() -> None:
    x, y = torch.randn(8, 4), torch.randn(4, 4)
    torch._dynamo.mark_dynamic(x, 0, min=7, max=16)
    torch._dynamo.mark_dynamic(y, 0)
    graph, _ = captured(lambda x, y: x.view(y.shape[0], 2, 4).sum(1) + y, x, y)
    (dim,) = graph.dims
    assert dim.axes == ((0, 0, 2), (1, 0, 1))
    assert (dim.low, dim.high, dim.marked_low) == (4, 8, 4)


def test_a_dim_without_a_bound_and_an_integer_are_open() -> None:
    x = torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0)
    graph, _ = captured(Net().eval(), x)
    assert [dim.high for dim in graph.dims] == [None]
    assert len(graph.open_symbols) == 1
    torch._dynamo.reset()
    graphs: list[CapturedGraph] = []
    function = torch.compile(lambda x, k: x * k, backend=recording_backend(graphs))
    for number in (2, 3):  # with the second number, dynamo makes the integer dynamic
        function(torch.ones(2, 2), number)
    assert [len(graph.open_symbols) for graph in graphs] == [0, 1]


def test_sizes_and_repeated_outputs_are_restored() -> None:
    model = Net().eval()
    x = rows()
    graph, arguments = captured(model, x)
    module = convert_to_module(graph, arguments, {})
    tensors = module(x)
    assert len(tensors) == 2
    expected_outputs = graph.module.forward(*arguments)
    for result, expected in zip(
        graph.assemble_outputs(tensors, arguments, graph.sizes(arguments)), expected_outputs, strict=True
    ):
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(result, expected)
        else:
            assert result == expected


def test_the_module_takes_tensors_only_and_accepts_any_size() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y.new_ones(x.shape[0], 2)], 1)

    graph, arguments = captured(function, rows(), torch.randn(3))
    module = convert_to_module(graph, arguments, {})
    inputs = {"x": torch.zeros(7, 4), "y": torch.zeros(3)}
    assert module(*[inputs[entry.name] for entry in graph.tensors])[0].shape == (7, 6)


def test_open_symbols_become_numbers() -> None:
    x = torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0)
    graph, arguments = captured(lambda x: x.new_ones(x.shape[0]) + x.sum(), x)
    (symbol,) = graph.open_symbols
    assert convert_to_module(graph, arguments, {symbol: 5})(x)[0].shape == (5,)


def test_rejects_graphs_without_tensors() -> None:
    with pytest.raises(Exception, match="none of its inputs is a tensor") as caught:
        captured(lambda: torch.ones(3) * 2)
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), NotSupported)


def test_a_size_that_a_layer_fixes_is_static_in_a_dynamic_graph() -> None:
    """With ``dynamic=True`` the number of features is a symbol at first. The weight of the Linear fixes this number."""
    graphs: list[CapturedGraph] = []
    compiled = torch.compile(torch.nn.Linear(4, 3).eval(), backend=recording_backend(graphs), dynamic=True)
    compiled(torch.randn(5, 4))
    (content,) = graphs
    (entry,) = content.tensors
    assert entry.shape[1] == 4 and isinstance(entry.shape[1], int)
    assert [dim.axes for dim in content.dims] == [((0, 0, 1),)]


def test_nested_graphs_compute_on_the_cpu() -> None:
    """The meta device takes the place of a GPU."""

    def add_rows(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4, device=torch.device("meta")).size(0)

    def model(x: torch.Tensor) -> torch.Tensor:
        y = add_rows(x)
        return torch.cond(y.sum() > 0, add_rows, torch.neg, (y,))

    graph, arguments = captured(model, torch.ones(2, 3))
    module = convert_to_module(graph, arguments, {})
    graphs = [nested for nested in module.modules() if isinstance(nested, torch.fx.GraphModule)]
    devices = {name: _devices(nested) for name, nested in graph.module.named_modules()}
    assert devices[""] == devices["cond_true_0"] == {"meta"}  # dynamo's graphs
    assert [_devices(nested) for nested in graphs if _devices(nested)] == [{"cpu"}, {"cpu"}]
    torch.testing.assert_close(module(torch.ones(2, 3))[0], torch.full((2, 3), 9.0))


def _devices(module: Any) -> set[str]:
    """The types of the devices among the arguments of a graph's nodes."""
    values = [value for node in module.graph.nodes for value in (*node.args, *node.kwargs.values())]
    return {value.type for value in values if isinstance(value, torch.device)}


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: (a + 1, b.t()),
        lambda a, b: (a + b, a.view(torch.int32)),
    ],
    ids=["shared memory", "another dtype"],
)
def test_a_view_of_an_input_that_no_later_call_can_repeat_is_refused(function: Callable[..., Any]) -> None:
    """In a later call, the two arguments may be separate tensors."""
    base = torch.zeros(6, 4)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="it returns a view of"):
        captured(function, base[0:3], base[3:6])


def test_rejects_a_returned_number_that_depends_on_values() -> None:
    with (
        torch._dynamo.config.patch(capture_scalar_outputs=True),
        pytest.raises(Exception, match="depends on the values of its inputs") as caught,
    ):
        captured(lambda x, n: (x + 1, n.item() * 2), torch.randn(5, 4), torch.tensor(3))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), NotSupported)
