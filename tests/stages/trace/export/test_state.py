"""State buffers become inputs and outputs of the traced program. Tensors that cannot be a state are rejected."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.trace.conftest import make_job, trace_in_process
from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program

SHAPES = {"x": ((1, 4), (2, 4), (8, 4))}


class Sums(nn.Module):
    """Adds the rows of its inputs to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.full((4,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        return x + self.total


def traced(module: nn.Module, *state: str, shapes: Any = SHAPES) -> Any:
    return trace_in_process(module.eval(), replace(make_job(shapes), state=state))


def state_error(module: nn.Module, *state: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        traced(module, *state)
    assert caught.value.code == "state"
    return caught.value


def run(result: Any, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The outputs that the traced program computes from `inputs` and the traced weights and states."""
    program = Program.from_bytes(result.program)
    values = dict(result.weights)
    slots = [values[slot] for slot in range(len(values))]  # the weights, then the states
    return list(program.exported.graph_module(*slots[: program.weights], *inputs, *slots[program.weights :]))


def test_a_state_is_an_input_and_an_output_with_the_values_of_the_module() -> None:
    result = traced(Sums(), "total")
    (state,) = result.interface["state"]
    assert state == {"name": "total", "slot": 0, "output": 1, "range": [0.0, 3.0]}
    assert [entry["name"] for entry in result.interface["inputs"]] == ["x"]
    assert len(result.interface["outputs"]) == 1 and result.interface["output_tree"] == {"kind": "tensor", "index": 0}
    x = torch.randn(3, 4)
    out, total = run(result, x)
    torch.testing.assert_close(total, 3 + x.sum(0))
    torch.testing.assert_close(out, x + total)


def test_a_state_that_the_model_returns_is_one_output() -> None:
    class Returned(Sums):
        def forward(self, x):
            self.total = self.total + x.sum(0)
            return {"total": self.total, "x": x + 1}

    result = traced(Returned(), "total")
    assert result.interface["state"][0]["output"] == 0
    assert [entry["name"] for entry in result.interface["outputs"]] == ["total", "x_out"]


def test_other_objects_that_refer_to_the_tensor_get_the_state() -> None:
    class Kept(nn.Module):
        """The buffer is also in a list, in an object, and in a list inside a tuple. A dict contains these three."""

        def __init__(self):
            super().__init__()
            tensor = torch.zeros(1, 4)
            self.register_buffer("kept", tensor)
            self.places = {"list": [tensor], "object": SimpleNamespace(tensor=tensor), "tuple": ([tensor],)}

        def forward(self, x):
            self.places["list"][0].add_(x[:1])
            self.places["object"].tensor.mul_(2)
            return x + self.places["tuple"][0][0] + self.kept

    x = torch.randn(3, 4)
    out, kept = run(traced(Kept(), "kept"), x)
    torch.testing.assert_close(kept, 2 * x[:1])
    torch.testing.assert_close(out, x + 4 * x[:1])


def test_a_pattern_names_buffers_of_modules_inside() -> None:
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Sums(), Sums()])
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x * self.scale

    result = traced(Outer(), "layers.*")
    assert [entry["name"] for entry in result.interface["state"]] == ["layers.0.total", "layers.1.total"]
    assert [entry["name"] for entry in result.interface["weights"]] == ["scale", "layers.0.total", "layers.1.total"]


def test_rejects_a_branch_that_writes_another_value_at_one_size() -> None:
    class Branch(Sums):
        def forward(self, x):
            if x.shape[0] == 1:
                self.total += 1
            else:
                self.total += x.sum(0)
            return x * 2

    with pytest.raises(SourceError) as caught:
        traced(Branch(), "total")
    assert caught.value.code == "frozen-branch"


def test_rejects_a_pattern_that_names_no_buffer() -> None:
    error = state_error(Sums(), "totals")
    assert "no buffer of the model matches 'totals'" in error.text and "'total'" in error.hint


def test_rejects_a_parameter() -> None:
    class Parameter(nn.Module):
        def __init__(self):
            super().__init__()
            self.total = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return x + self.total

    assert "is a parameter" in state_error(Parameter(), "total").text


def test_rejects_a_buffer_that_is_not_written() -> None:
    class Read(Sums):
        def forward(self, x):
            return x + self.total

    assert "does not write to the buffer 'total'" in state_error(Read(), "*").text


def test_rejects_a_state_that_changes_its_shape() -> None:
    class Growing(Sums):
        def forward(self, x):
            self.total = torch.cat([self.total, self.total])
            return x

    error = state_error(Growing(), "total")
    assert "float32 [4] before a call and float32 [8] after it" in error.text


def test_rejects_a_state_that_changes_its_type() -> None:
    class Doubled(Sums):
        def forward(self, x):
            self.total = self.total.double() + 1
            return x

    assert "float32 [4] before a call and float64 [4] after it" in state_error(Doubled(), "total").text


def test_rejects_two_buffers_that_are_one_tensor() -> None:
    class Tied(Sums):
        def __init__(self):
            super().__init__()
            self.register_buffer("other", self.total)

    assert "'total' and 'other' are one tensor" in state_error(Tied(), "total").text


def test_rejects_a_tensor_that_is_replaced_in_one_of_its_places() -> None:
    class Torn(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))
            self.places = [self.total]

        def forward(self, x):
            self.total = self.total + 1
            return x + self.places[0]

    assert "replaces the state 'total' in one place" in state_error(Torn(), "total").text


def test_rejects_a_model_with_forward_hooks() -> None:
    module = Sums()
    module.register_forward_hook(lambda *_: None)
    assert "forward hooks" in state_error(module, "total").text


def test_rejects_a_write_to_a_buffer_that_no_pattern_names_and_suggests_the_field() -> None:
    with pytest.raises(SourceError) as caught:
        traced(Sums())
    assert caught.value.code == "mutated-buffer" and "`state: [total]`" in caught.value.hint


def test_a_state_in_a_weights_file_is_not_stored_by_the_trace() -> None:
    job = replace(make_job(SHAPES, weights=(("total", "float32", (4,)),)), state=("total",))
    result = trace_in_process(Sums().eval(), job)
    assert result.weights == [] and result.interface["weights"][0]["persistent"] is True


def test_a_state_of_zeros_has_no_negative_random_values_also_with_a_weights_file() -> None:
    module = Sums()
    module.total.zero_()
    job = replace(make_job(SHAPES, weights=(("total", "float32", (4,)),)), state=("total",))
    assert trace_in_process(module.eval(), job).interface["state"][0]["range"] == [0.0, 1.0]


def test_rejects_a_state_that_a_closure_refers_to() -> None:
    class Hidden(Sums):
        def __init__(self):
            super().__init__()
            total = self.total
            self.read = lambda: total + 0

        def forward(self, x):
            self.total += 1
            return x + self.read()

    assert "call 1 of the model gives other results" in state_error(Hidden(), "total").text


def test_rejects_a_number_that_the_module_counts_up() -> None:
    class Counting(Sums):
        calls = 0

        def forward(self, x):
            self.calls += 1
            self.total += x.sum(0)
            return x * self.calls

    with pytest.raises(SourceError) as caught:
        traced(Counting(), "total")
    assert caught.value.code in ("state", "frozen-branch")
