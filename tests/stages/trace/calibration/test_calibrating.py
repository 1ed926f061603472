"""Calibrations in this process: chosen layers, refusals, and results equal to those of Model Optimizer's model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.trace.conftest import make_job
from trtbuild.core.model.quantization import Calibration, Quantization
from trtbuild.core.model.spec import Source
from trtbuild.errors import SourceError
from trtbuild.stages.trace.calibration import run
from trtbuild.stages.trace.calibration.changed_weights import ChangedWeights
from trtbuild.stages.trace.calibration.job import CalibrateJob
from trtbuild.stages.trace.calibration.layers import chosen_layers, configuration
from trtbuild.stages.trace.quantization.attaching import attach_quantizers
from trtbuild.stages.trace.quantization.stored import StoredQuantizers
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.owners import FileOwners

DATA = """
import torch


def batches():
    return [(torch.randn(2, 256) * torch.linspace(0.1, 8, 256),) for _ in range(3)]
"""


class Net(nn.Module):
    """Linear layers, a layer that is never called, and a weight that two modules use."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 128), nn.ReLU())
        self.table = nn.Embedding(8, 128)
        self.head = nn.Linear(128, 8, bias=False)
        self.head.weight = self.table.weight
        self.unused = nn.Linear(256, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)) + self.table.weight.sum()


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def job(name: str, method: str = "max", exclude: tuple[str, ...] = (), *, needs_data: bool = True) -> CalibrateJob:
    calibration = Calibration("calibration_data:batches") if needs_data else None
    model = replace(make_job({"x": ((1, 256), (4, 256), (8, 256))}), source=Source("python", "m:build"))
    return CalibrateJob(model, Quantization(name, method, calibration, exclude))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("modelopt.torch.quantization")
    (tmp_path / "calibration_data.py").write_text(DATA)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("int8", "max"),
        ("int8", "entropy"),
        ("int8", "smoothquant"),
        ("fp8", "max"),
        ("int8_weight_only", "max"),
        ("int4_weight_only", "max"),
        ("int4_weight_only", "awq"),
    ],
)
def test_the_stored_quantizers_compute_what_model_optimizer_computes(project: Path, name: str, method: str) -> None:
    calibration = job(name, method, needs_data=Quantization(name, method).needs_data)
    quantized, rebuilt = net(), net()
    with torch.no_grad():
        stored, _ = run.find_quantizers(quantized, calibration, project, Frames(FileOwners(), project))
        data = stored.to_bytes()
        assert StoredQuantizers.from_bytes(data).to_bytes() == data
        attach_quantizers(rebuilt, data, calibration.model)
        x = torch.randn(4, 256) * torch.linspace(0.1, 8, 256)
        expected, results, floats = quantized(x), rebuilt(x), net()(x)
    torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-4)
    assert float((results - floats).abs().max()) > 1e-4  # something was rounded
    assert set(rebuilt.state_dict()) == set(net().state_dict())


def test_a_method_that_changes_weights_skips_layers_with_shared_weights() -> None:
    assert chosen_layers(net(), job("int8", "smoothquant")) == ["body.0", "unused"]
    assert chosen_layers(net(), job("int8")) == ["body.0", "head", "unused"]


@pytest.mark.parametrize("name", ["int8", "int8_weight_only"])
def test_the_layers_of_an_encoder_are_rounded(project: Path, name: str) -> None:
    """The fast path of nn.TransformerEncoderLayer calls none of the inner layers, so a calibration switches it off."""

    def encoder() -> nn.Module:
        torch.manual_seed(0)
        return nn.TransformerEncoderLayer(256, 4, 64, batch_first=True).eval()

    (project / "calibration_data.py").write_text(DATA.replace("(2, 256)", "(2, 3, 256)"))
    sys.modules.pop("calibration_data", None)  # another test may have imported this module with the other shape
    model = make_job({"x": ((1, 3, 256), (2, 3, 256), (4, 3, 256))})
    calibration = replace(job(name, needs_data=name == "int8"), model=model)
    quantized, rebuilt = encoder(), encoder()
    with torch.no_grad():
        stored, _ = run.find_quantizers(quantized, calibration, project, Frames(FileOwners(), project))
        attach_quantizers(rebuilt, stored.to_bytes(), model)
        x = torch.randn(2, 3, 256)
        torch.testing.assert_close(rebuilt(x), quantized(x), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(rebuilt(x), encoder()(x), atol=1e-5)
    assert {"linear1", "linear2"} <= set(stored.layers)


def test_rejects_a_changed_weight_that_the_model_reads_without_its_layer(project: Path) -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(256, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) @ self.layer.weight

    torch.manual_seed(0)
    with torch.no_grad(), pytest.raises(SourceError, match="changes the results of the model"):
        run.find_quantizers(Reading().eval(), job("int8", "smoothquant"), project, Frames(FileOwners(), project))


@pytest.mark.parametrize(
    ("before", "after", "is_rejected"),
    [
        ([1.0, float("-inf")], [1.001, float("-inf")], False),
        ([1.0, float("-inf")], [2.0, float("-inf")], True),
        ([1.0, float("-inf")], [1.0, float("inf")], True),
        ([1.0, float("nan")], [1.0, float("nan")], False),
        ([1.0, 2.0], [1.0, float("nan")], True),
        ([float("inf")], [float("inf")], False),
    ],
)
def test_outputs_with_infinities_and_nan_are_compared(
    before: list[float], after: list[float], is_rejected: bool
) -> None:
    """The difference of two equal infinities is NaN, and NaN is never greater than a tolerance."""
    outputs = iter((torch.tensor(before), torch.tensor(after)))
    changed_weights = ChangedWeights(nn.Linear(2, 2), lambda: next(outputs))
    if is_rejected:
        with pytest.raises(SourceError, match="changes the results of the model"):
            changed_weights.find(job("int8", "smoothquant"))
    else:
        assert changed_weights.find(job("int8", "smoothquant")) == {}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("x.to_sparse()", "sparse_coo"),
        ("x.to_mkldnn()", "_mkldnn"),
        ("torch.nested.nested_tensor([x])", "nested"),
        ("x.to('meta')", "meta"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_rejects_samples_without_plain_numbers(
    project: Path, monkeypatch: pytest.MonkeyPatch, change: str, kind: str
) -> None:
    (project / "calibration_data.py").write_text(
        DATA
        + f"""

def odd():
    x = torch.randn(2, 256)
    return [({change},)]
"""
    )
    monkeypatch.delitem(sys.modules, "calibration_data", raising=False)
    odd = replace(job("int8"), quantization=Quantization("int8", "max", Calibration("calibration_data:odd")))
    with pytest.raises(SourceError, match=f"input 'x' of sample 0 is a {kind} tensor"):
        run.find_quantizers(net(), odd, project, Frames(FileOwners(), project))


def test_a_layer_whose_weight_is_computed_is_skipped() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(256, 8)), nn.Linear(8, 8))
    assert chosen_layers(model, job("int8")) == ["1"]


def test_a_layer_that_is_never_called_stays_in_float(project: Path) -> None:
    with torch.no_grad():
        stored, uncalibrated = run.find_quantizers(net(), job("int8"), project, Frames(FileOwners(), project))
    assert uncalibrated == ("unused",) and set(stored.layers) == {"body.0", "head"}


def test_excluded_modules_stay_in_float() -> None:
    assert chosen_layers(net(), job("int8", exclude=("bo*",))) == ["head", "unused"]
    with pytest.raises(SourceError, match="no module of the model matches 'heads'") as caught:
        chosen_layers(net(), job("int8", exclude=("heads",)))
    assert "'head'" in str(caught.value.hint)


class Aliases(nn.Module):
    """A layer with two paths, and another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 8)
        self.again = self.first
        self.other = nn.Linear(256, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.again(x) + self.other(x)


def test_a_layer_with_two_paths_is_excluded_by_either_and_shares_its_weight_with_nobody() -> None:
    assert chosen_layers(Aliases(), job("int8", exclude=("again",))) == ["other"]
    assert chosen_layers(Aliases(), job("int8", exclude=("first",))) == ["other"]
    assert chosen_layers(Aliases(), job("int8", "smoothquant")) == ["first", "other"]


def test_a_path_with_brackets_is_no_pattern(project: Path) -> None:
    """Model Optimizer matches names as `fnmatch` does. A layer that its pattern does not match would stay in float."""
    module = nn.Sequential()
    module.add_module("a[0]", nn.Linear(256, 8))
    module.add_module("b*", nn.Linear(8, 8))
    with torch.no_grad():
        stored, _ = run.find_quantizers(
            module.eval(), job("int8_weight_only", needs_data=False), project, Frames(FileOwners(), project)
        )
    assert {path: list(roles) for path, roles in stored.layers.items()} == {"a[0]": ["weight"], "b*": ["weight"]}


def test_a_forward_of_the_layer_itself_rounds_its_input_too(project: Path) -> None:
    """accelerate's hooks set such a forward. Python calls it instead of the forward of the class."""

    def hooked() -> nn.Module:
        torch.manual_seed(0)
        layer = nn.Linear(256, 8)
        forward = layer.forward
        layer.forward = lambda *args, **kwargs: forward(*args, **kwargs) + 1  # type: ignore[method-assign]
        return nn.Sequential(layer).eval()

    quantized, rebuilt = hooked(), hooked()
    calibration = job("int8")
    with torch.no_grad():
        stored, _ = run.find_quantizers(quantized, calibration, project, Frames(FileOwners(), project))
        assert list(stored.layers["0"]) == ["input", "weight"]
        attach_quantizers(rebuilt, stored.to_bytes(), calibration.model)
        x = torch.randn(4, 256)
        torch.testing.assert_close(rebuilt(x), quantized(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(rebuilt[0](input=x), rebuilt(x), rtol=0, atol=0)  # type: ignore[index]


@pytest.mark.parametrize("name", ["int8", "fp8", "int8_weight_only", "int4_weight_only", "nvfp4"])
@pytest.mark.parametrize("factor", [0.0, 1e-9])
def test_a_weight_of_zeros_needs_no_exclusion(project: Path, name: str, factor: float) -> None:
    """Zeros stay zero with any scale. Model Optimizer rounds a weight that is nearly 0 to zeros, except with NVFP4."""
    module = nn.Sequential(nn.Linear(256, 1))
    with torch.no_grad():
        module[0].weight *= factor
        calibration = job(name, needs_data=Quantization(name).needs_data)
        stored, _ = run.find_quantizers(module.eval(), calibration, project, Frames(FileOwners(), project))
        rounded = stored.layers["0"]["weight"](module[0]._parameters["weight"])
    assert float(rounded.abs().max()) <= (1e-9 if name == "nvfp4" else 0)


def test_an_input_of_zeros_is_an_error_that_advises_to_exclude_the_layer(project: Path) -> None:
    module = nn.Sequential(nn.Linear(256, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    with torch.no_grad(), pytest.raises(SourceError, match=r"'2\.input_quantizer' .* has a scale of 0") as caught:
        module[0].bias.fill_(-1e6)
        run.find_quantizers(module, job("int8"), project, Frames(FileOwners(), project))
    assert "'2' in `exclude`" in str(caught.value.hint)


def test_rejects_a_model_without_the_calibrated_layers() -> None:
    class Other(nn.Module):
        pass

    layers: Any = {"body.0": {}}
    with pytest.raises(SourceError, match=r"the model has no 'body\.0'"):
        attach_quantizers(Other(), StoredQuantizers(layers).to_bytes(), job("int8").model)


@pytest.mark.parametrize(("name", "axes"), [("int8", [0, 0, 1]), ("fp8", [None] * 3), ("int8_weight_only", [0, 0, 1])])
def test_weights_have_a_scale_for_each_output_channel_or_one_scale(name: str, axes: list[int | None]) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Conv2d(4, 2, 1), nn.ConvTranspose2d(2, 4, 1))
    calibration = job(name)
    entries = configuration(module, chosen_layers(module, calibration), calibration)["quant_cfg"]
    settings = [entry["cfg"] for entry in entries if entry["quantizer_name"].endswith(".weight_quantizer")]
    assert [setting["axis"] for setting in settings] == axes
