"""Each entry of `CALLS` has a model in the project, and its inputs show a wrong translation into ONNX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks.gpu.cases import cases
from benchmarks.gpu.models.operator_calls import CALLS, Tensors, build
from benchmarks.gpu.project import Hardware
from benchmarks.gpu.subjects.operators import write_operators
from benchmarks.gpu.subjects.shapes import error_of

_HOPPER = Hardware(90, "tensorrt", "8.6.0", tactic_sources=())


def test_every_model_has_inputs_within_its_profile(tmp_path: Path) -> None:
    cases_by_name = {case.name: case for case in cases(write_operators(tmp_path, _HOPPER))}
    assert set(cases_by_name) == set(CALLS)
    for name, calls in CALLS.items():
        case = cases_by_name[name]
        for point, size in zip(case.points(count=0), calls.sizes, strict=True):
            drawn = calls.inputs(size, torch.Generator().manual_seed(size))
            declared, _ = case.inputs(point, "cpu")
            assert [(value.shape, value.dtype) for value in drawn] == [
                (value.shape, value.dtype) for value in declared
            ], name
            for value, entry in zip(drawn, case.model.inputs, strict=True):
                if entry.range is not None:
                    assert entry.range[0] <= value.min() and value.max() <= entry.range[1]
            assert case.eager("cpu")(*drawn)


@pytest.mark.parametrize(
    ("name", "translation"),
    [
        ("near_zero", lambda x: ((x.exp() - 1) / x, (x + 1).log() / x)),
        ("log_softmax", lambda x: (F.softmax(x, 1).log(),)),
        ("log_sums", lambda x: (x.exp().sum(1).log(),)),
        ("crossed_bounds", lambda x: (x.clamp(max=2).clamp(min=5),)),
        ("infinite_keys", lambda x: (x.gather(1, torch.full_like(x, 5, dtype=torch.int64)).nan_to_num(0, 0, 0),)),
        ("integer_division", lambda x, y: ((x.float() / -3).floor().int(), (x.float() / 3).trunc().int())),
        ("mean_of_integers", lambda x: (x.float().mean(1).int().float(),)),
        ("nearest_exact", lambda x: (F.interpolate(x, scale_factor=1.7, mode="nearest"),)),
        ("average_pools", lambda x: (F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),)),
        ("negative_sizes", lambda x: (x * (x.shape[0] // 2), x * -((x.shape[0] - 3) // 4))),
    ],
)
def test_inputs_show_a_wrong_translation(name: str, translation: Callable[..., Tensors]) -> None:
    calls = CALLS[name]
    inputs = calls.inputs(calls.sizes[1] + 1, torch.Generator().manual_seed(0))
    # A translation may have only the first outputs of its model.
    for wrong, right in zip(translation(*inputs), build(name)(*inputs), strict=False):
        assert error_of(wrong, right) > 1e-2
