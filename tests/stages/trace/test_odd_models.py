"""Traces of unusual models. The errors are about the model: they are not reported as bugs of trtbuild."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from trtbuild.errors import SourceError
from trtbuild.stages.trace.proof import proving
from trtbuild.stages.trace.proof.at_point import prove_point

BATCH = {"x": ((1, 8), (2, 8), (8, 8))}


class TextRaises(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class TextIsNumber(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class WithBuffer(nn.Module):
    def __init__(self, function, value) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("value", value)
        self.eval()

    def forward(self, x):
        return self.function(x, self.value)


def raising(error: BaseException, *, only_eager: bool = False):
    def model(x):
        if not (only_eager and torch.compiler.is_exporting()):
            raise error
        return x * 2

    return model


def error_of(traced, job_of, model) -> SourceError:
    with pytest.raises(SourceError) as caught:
        traced(model, job_of(BATCH))
    return caught.value


@pytest.mark.parametrize("only_eager", [False, True], ids=["always", "eager"])
@pytest.mark.parametrize("kind", [TextRaises, TextIsNumber])
def test_reports_an_exception_whose_text_cannot_be_read(traced, job_of, kind, only_eager) -> None:
    error = error_of(traced, job_of, raising(kind(), only_eager=only_eager))
    assert error.code == "eager" and f"{kind.__name__}: (its text cannot be read: " in error.text
    assert "in model: raise error" in error.text


@pytest.mark.parametrize("only_eager", [False, True], ids=["always", "eager"])
def test_a_model_that_ends_the_process_is_an_error_with_its_line(traced, job_of, only_eager) -> None:
    error = error_of(traced, job_of, raising(SystemExit(3), only_eager=only_eager))
    assert "SystemExit: 3" in error.text and error.file and error.file.endswith("test_odd_models.py")
    assert "do not end the process" in str(error.hint)


def test_rejects_a_quantized_output(traced, job_of) -> None:
    error = error_of(traced, job_of, lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8))
    assert (error.code, error.text) == ("output", "output 0 of the model is a quantized tensor")


@torch.library.custom_op("odd_models::labelled", mutates_args=())
def labelled(x: torch.Tensor, label: torch.dtype) -> torch.Tensor:
    """An operator whose argument can be a dtype that torch.export.save cannot write, such as quint8."""
    return x + 1


@labelled.register_fake
def _(x, label):
    return torch.empty_like(x)


def test_rejects_a_call_that_torch_cannot_save(traced, job_of) -> None:
    error = error_of(traced, job_of, lambda x: labelled(x, torch.quint8))
    assert "torch cannot write the traced program" in error.text and "odd_models" in error.text
    assert "leave that call out" in str(error.hint)


def test_rejects_an_output_that_is_not_in_main_memory(traced, job_of) -> None:
    error = error_of(traced, job_of, lambda x: (x + 1, torch.ones(8, device="meta")))
    assert (error.code, error.text) == ("output", "output 1 of the model is on the device meta")
    assert "on the CPU" in str(error.hint)


def test_rejects_a_lazy_module_that_was_never_called(traced, job_of) -> None:
    error = error_of(traced, job_of, nn.Sequential(nn.LazyLinear(4)).eval())
    assert "'0.weight' of the model has no shape yet" in error.text and "call the model once" in str(error.hint)


def test_rejects_a_weight_on_the_meta_device(traced, job_of) -> None:
    error = error_of(traced, job_of, WithBuffer(lambda x, value: x + value, torch.ones(8, device="meta")))
    assert "'value' of the model is on the meta device" in error.text and "load the model's weights" in str(error.hint)


def test_rejects_a_lazily_conjugated_buffer(traced, job_of) -> None:
    value = torch.complex(torch.arange(8.0), torch.arange(8.0) + 1)
    error = error_of(traced, job_of, WithBuffer(lambda x, value: x + value.imag, value.conj()))
    assert "'value' of the model is the conjugate" in error.text and "resolve_conj()" in str(error.hint)


def test_a_lazily_negated_tensor_and_its_memory_are_two_weights(traced, job_of) -> None:
    pairs = torch.randn(8, 2)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("one", torch.view_as_complex(pairs).imag)
            self.register_buffer("other", torch.view_as_complex(pairs).conj().imag)
            assert self.other.is_neg() and self.one.data_ptr() == self.other.data_ptr()
            self.eval()

        def forward(self, x):
            return x * self.one + self.other

    stored = dict(traced(Both(), job_of(BATCH)).weights)
    assert not stored[1].is_neg() and torch.equal(stored[0], -stored[1]) and torch.equal(stored[0], pairs[:, 1])


@pytest.mark.parametrize("key", [None, 1.5, (1, 2), b"a", torch.float32], ids=repr)
def test_rejects_a_dict_whose_keys_a_package_cannot_store(traced, job_of, key) -> None:
    error = error_of(traced, job_of, lambda x: {key: x + 1})
    assert error.code == "output" and f"the key {key!r}" in error.text and "whole numbers" in str(error.hint)


def test_an_output_with_a_key_without_letters_gets_a_name(traced, job_of) -> None:
    interface = traced(lambda x: {"": x + 1, "-": x * 2, 3: x * 3}, job_of(BATCH)).interface
    assert [entry["name"] for entry in interface["outputs"]] == ["output", "_", "output_3"]
    assert interface["output_tree"]["keys"] == ["", "-", 3]


def test_a_trace_works_without_standard_output(traced, job_of, monkeypatch) -> None:
    """A trace flushes standard output before it forks the process that compares flows (operator calls, arguments)."""
    monkeypatch.setattr(proving, "FLOWS_WORTHWHILE_S", 0.0)  # compares flows in every trace
    monkeypatch.setattr(sys, "stdout", None)
    traced(lambda x: x + 1, job_of(BATCH))


def test_flows_contain_the_numbers_that_a_model_returns(traced, job_of, monkeypatch) -> None:
    monkeypatch.setattr(proving, "FLOWS_WORTHWHILE_S", 0.0)
    compared_points = []

    def record(point, *arguments) -> None:
        compared_points.append(point.sizes)
        prove_point(point, *arguments)

    monkeypatch.setattr(proving, "prove_point", record)
    traced(lambda x: (x + 1, x.shape[0] * 2, x.shape[0] / 3, x.shape[0] > 3), job_of(BATCH))
    assert len(compared_points) == 1  # at the other points the flows are equal
    with pytest.raises(SourceError, match="output 1 has other values"):
        traced(lambda x: (x + 1, x.shape[0] if x.shape[0] != 1 else 7), job_of(BATCH))
