"""The trace rejects models that an export would change without a message: training mode, writes, random operators, …"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trtbuild.errors import SourceError
from trtbuild.stages.trace.export.checks import refuse_training_mode

SHAPES = {"x": ((1, 4), (2, 4), (8, 4))}


def error_of(traced, job_of, module, shapes=SHAPES) -> SourceError:
    with pytest.raises(SourceError) as caught:
        traced(module, job_of(shapes))
    return caught.value


def test_rejects_a_module_in_training_mode(job_of) -> None:
    with pytest.raises(SourceError) as caught:
        refuse_training_mode(nn.Linear(4, 4), job_of(SHAPES))
    assert caught.value.code == "training-mode" and ".eval()" in caught.value.hint


def test_a_module_of_torch_export_gets_a_hint_without_eval(job_of) -> None:
    module = torch.export.export(nn.Linear(4, 4).eval(), (torch.ones(2, 4),)).module()
    with pytest.raises(NotImplementedError):
        module.eval()
    with pytest.raises(SourceError, match="as is every") as caught:
        refuse_training_mode(module, job_of(SHAPES))
    assert "exported_program" in caught.value.hint and ".eval()" not in caught.value.hint


def test_rejects_a_submodule_in_training_mode_and_names_it(job_of) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    model[1].train()
    with pytest.raises(SourceError, match=r"1 \(Dropout\)"):
        refuse_training_mode(model, job_of(SHAPES))
    refuse_training_mode(model.eval(), job_of(SHAPES))


def test_rejects_a_write_to_a_buffer_and_names_it(traced, job_of) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls.add_(1)
            return x + self.calls

    error = error_of(traced, job_of, Model().eval())
    assert error.code == "mutated-buffer" and "'calls'" in error.text


def test_rejects_a_write_to_a_buffer_that_happens_at_one_size_only(traced, job_of) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            if x.shape[0] == 1:
                self.calls.add_(1)
            return x * 2

    error = error_of(traced, job_of, Model().eval())
    assert error.code == "mutated-buffer" and "'calls'" in error.text


def test_rejects_a_write_to_an_input_and_names_it(traced, job_of) -> None:
    class Model(nn.Module):
        def forward(self, x):
            x.mul_(2)
            return x + 1

    error = error_of(traced, job_of, Model().eval())
    assert error.code == "mutated-input" and "'x'" in error.text
    assert error.file.endswith("test_checks.py") and error.line == Model.forward.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: nn.functional.dropout(x, 0.5), "dropout"),
        (lambda x: x + torch.rand(4), "rand"),
        (lambda x: x + torch.randn_like(x), "randn_like"),
        (lambda x: torch.multinomial(x.softmax(-1), 1), "multinomial"),
        (lambda x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5), "scaled_dot_product"),
    ],
)
def test_rejects_a_random_operator_and_names_the_users_line(traced, job_of, function, operator) -> None:
    class Model(nn.Module):
        def forward(self, x):
            return function(x)  # torch records this line, not the line of `function`

    error = error_of(traced, job_of, Model().eval())
    assert error.code == "random-operator" and operator in error.text
    assert error.file == "tests/stages/trace/export/test_checks.py"
    assert error.line == Model.forward.__code__.co_firstlineno + 1


def test_accepts_dropout_that_is_switched_off(traced, job_of) -> None:
    def without_dropout(x):
        y = nn.functional.dropout(x, 0.5, training=False)
        return nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=0.0)

    traced(without_dropout, job_of(SHAPES))


def test_accepts_in_place_writes_to_views(traced, job_of) -> None:
    def write(x):
        y = x.clone()
        y[:, 0] = 22.0
        y[:, 1:3].mul_(3)
        return y.t()[0], y

    result = traced(write, job_of(SHAPES))
    assert len(result.interface["outputs"]) == 2
    assert "copy_" not in result.graph and "mul_." not in result.graph


def test_rejects_a_model_that_returns_numbers_only(traced, job_of) -> None:
    error = error_of(traced, job_of, lambda x: (x.shape[0], None))
    assert error.code == "output" and "numbers" in error.text and "the caller can compute sizes" in error.hint


def test_rejects_a_model_that_returns_no_tensor(traced, job_of) -> None:
    assert error_of(traced, job_of, lambda x: (None, 3)).code == "output"


def test_rejects_a_python_attribute_that_counts_calls(traced, job_of) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    assert error_of(traced, job_of, Model().eval()).code == "state"


class Resizing(nn.Module):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x):
        return (x * 2).resize_(self.sizes)


def test_rejects_a_resize_to_more_elements(traced, job_of) -> None:
    error = error_of(traced, job_of, Resizing(3, 4), {"x": ((2, 4), (2, 4), (2, 4))})
    assert error.code == "resized" and "8 elements to 12 (aten.resize_)" in error.text


def test_rejects_a_resize_of_a_dynamic_tensor(traced, job_of) -> None:
    error = error_of(traced, job_of, Resizing(1, 4))
    assert error.code == "export" and "aten.resize_" in error.text and "static" in error.hint


def test_a_resize_to_fewer_elements_is_traced(traced, job_of) -> None:
    traced(Resizing(3, 2), job_of({"x": ((2, 4), (2, 4), (2, 4))}))
