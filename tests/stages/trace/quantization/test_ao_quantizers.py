"""A model from ``prepare_qat`` becomes an engine if its fake quantizers no longer observe their inputs.

`replace_fake_quantizers` replaces the forwards of such modules by forwards that torch.export can trace.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.fuzz.comparing import differences
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild.errors import SourceError
from trtbuild.stages.trace.quantization.ao_quantizers import has_fake_quantizers, replace_fake_quantizers

PLACE: dict[str, Any] = {"file": "nets.py", "line": 3}


def trained(kind: str = "FakeQuantize", *, observes: bool = False) -> nn.Module:
    """A small model after quantization-aware training, in evaluation mode."""
    from torch.ao import quantization as ao

    module = getattr(ao, kind)
    limits = {"quant_min": -128, "quant_max": 127, "dtype": torch.qint8}
    config = ao.QConfig(
        activation=module.with_args(
            observer=ao.MovingAverageMinMaxObserver, qscheme=torch.per_tensor_symmetric, **limits
        ),
        weight=module.with_args(
            observer=ao.MovingAveragePerChannelMinMaxObserver, qscheme=torch.per_channel_symmetric, ch_axis=0, **limits
        ),
    )
    torch.manual_seed(0)
    model = nn.Sequential(ao.QuantStub(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), ao.DeQuantStub()).train()
    model.qconfig = config  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared: nn.Module = ao.prepare_qat(model)
    prepared(torch.randn(8, 16))
    if not observes:
        prepared.apply(ao.disable_observer)
    return prepared.eval()


@pytest.mark.parametrize("kind", ["FakeQuantize", "FusedMovingAvgObsFakeQuantize"])
def test_a_trained_model_is_one_engine_with_the_results_of_the_original(kind: str) -> None:
    model, x = trained(kind), torch.randn(4, 16)
    assert has_fake_quantizers(model)
    expected = model(x)
    replace_fake_quantizers(model, PLACE)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    case = ModuleCase(model, [("float32", [(1, 3, 8), 16])])
    built = build(case)
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt"]
    assert not differences(case, built).differences


def test_a_module_that_does_not_round_returns_its_input() -> None:
    model, x = trained(), torch.randn(4, 16)
    model.apply(torch.ao.quantization.disable_fake_quant)
    replace_fake_quantizers(model, PLACE)
    assert torch.equal(model[0](x), x)  # type: ignore[index]


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_any_axis_may_have_a_scale_for_each_channel(axis: int) -> None:
    from torch.ao import quantization as ao

    quantizer = ao.FakeQuantize(
        ao.MovingAveragePerChannelMinMaxObserver,
        quant_min=-128,
        quant_max=127,
        dtype=torch.qint8,
        qscheme=torch.per_channel_symmetric,
        ch_axis=axis,
    )
    x = torch.randn(2, 3, 4, 5) * torch.arange(1, 6)
    quantizer(x)
    model = nn.Sequential(quantizer).apply(ao.disable_observer).eval()
    expected = model(x)
    replace_fake_quantizers(model, PLACE)
    assert "forward" in vars(quantizer) and torch.equal(model(x), expected)


def test_a_module_that_observes_is_an_error() -> None:
    with pytest.raises(SourceError, match=r"'0\.activation_post_process' still observes its input") as caught:
        replace_fake_quantizers(trained(observes=True), PLACE)
    assert "disable_observer" in str(caught.value.hint) and caught.value.line == 3


def test_a_module_with_other_arithmetic_is_an_error() -> None:
    model = trained()
    model[0].activation_post_process.register_forward_hook(lambda module, inputs, output: output * 2)  # type: ignore[index]
    with pytest.raises(SourceError, match="is a FakeQuantize that does not round as its settings say"):
        replace_fake_quantizers(model, PLACE)
