"""Values that export freezes or loses without a message are typed errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trtbuild.errors import SourceError
from trtbuild.stages.trace.export.checks import refuse_training_mode

SHAPES = {"x": ((1, 4), (2, 4), (8, 4))}


def refused(traced, job_of, module, shapes=SHAPES) -> SourceError:
    with pytest.raises(SourceError) as caught:
        traced(module, job_of(shapes))
    return caught.value


def test_a_module_in_training_mode_is_refused(job_of) -> None:
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


def test_one_submodule_in_training_mode_is_refused_by_its_name(job_of) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    model[1].train()
    with pytest.raises(SourceError, match=r"1 \(Dropout\)"):
        refuse_training_mode(model, job_of(SHAPES))
    refuse_training_mode(model.eval(), job_of(SHAPES))


def test_a_mutated_buffer_is_refused_by_its_name(traced, job_of) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls.add_(1)
            return x + self.calls

    error = refused(traced, job_of, Model().eval())
    assert error.code == "mutated-buffer" and "'calls'" in error.text


def test_a_buffer_that_is_mutated_at_one_size_only_is_refused(traced, job_of) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            if x.shape[0] == 1:
                self.calls.add_(1)
            return x * 2

    error = refused(traced, job_of, Model().eval())
    assert error.code == "mutated-buffer" and "'calls'" in error.text


def test_a_mutated_input_is_refused_by_its_name(traced, job_of) -> None:
    class Model(nn.Module):
        def forward(self, x):
            x.mul_(2)
            return x + 1

    error = refused(traced, job_of, Model().eval())
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
def test_a_random_operator_is_refused_with_the_users_line(traced, job_of, function, operator) -> None:
    class Model(nn.Module):
        def forward(self, x):
            return function(x)  # torch keeps the line of the module's forward

    error = refused(traced, job_of, Model().eval())
    assert error.code == "random-operator" and operator in error.text
    assert error.file == "tests/stages/trace/export/test_checks.py"
    assert error.line == Model.forward.__code__.co_firstlineno + 1


def test_dropout_that_is_switched_off_is_not_random(traced, job_of) -> None:
    def quiet(x):
        y = nn.functional.dropout(x, 0.5, training=False)
        return nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=0.0)

    traced(quiet, job_of(SHAPES))


def test_in_place_writes_to_views_are_right(traced, job_of) -> None:
    def write(x):
        y = x.clone()
        y[:, 0] = 22.0
        y[:, 1:3].mul_(3)
        return y.t()[0], y

    found = traced(write, job_of(SHAPES))
    assert len(found.interface["outputs"]) == 2
    assert "copy_" not in found.graph and "mul_." not in found.graph


def test_a_size_among_the_outputs_is_refused(traced, job_of) -> None:
    error = refused(traced, job_of, lambda x: (x, x.shape[0]))
    assert error.code == "output" and "size" in error.text


def test_a_model_that_returns_no_tensor_is_refused(traced, job_of) -> None:
    assert refused(traced, job_of, lambda x: (None, 3)).code == "output"


def test_a_python_attribute_that_counts_calls_is_found_by_the_proof(traced, job_of) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    assert refused(traced, job_of, Model().eval()).code in ("frozen-branch", "export")


class Resizing(nn.Module):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x):
        return (x * 2).resize_(self.sizes)


def test_rejects_a_resize_to_more_elements(traced, job_of) -> None:
    error = refused(traced, job_of, Resizing(3, 4), {"x": ((2, 4), (2, 4), (2, 4))})
    assert error.code == "resized" and "8 elements to 12 (aten.resize_)" in error.text


def test_rejects_a_resize_of_a_dynamic_tensor(traced, job_of) -> None:
    error = refused(traced, job_of, Resizing(1, 4))
    assert error.code == "export" and "aten.resize_" in error.text and "static" in error.hint


def test_a_resize_to_fewer_elements_is_traced(traced, job_of) -> None:
    traced(Resizing(3, 2), job_of({"x": ((2, 4), (2, 4), (2, 4))}))
