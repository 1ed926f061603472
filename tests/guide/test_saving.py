"""Models with dynamic shapes are saved and loaded, as `.pt2` files and as packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, export

import trtbuild
from tests.guide.conftest import assert_equals_eager
from tests.guide.test_ahead_of_time import MaskedAttention
from trtbuild import Input


@pytest.fixture(params=["dim", "input"])
def model(request: pytest.FixtureRequest, compile_module: Any, conv_net: Any) -> Any:
    """The model, compiled for a range of batch sizes, which a Dim of torch.export or an Input declares."""
    if request.param == "input":
        return compile_module(
            conv_net, [Input(min_shape=(1, 3, 16, 16), opt_shape=(4, 3, 16, 16), max_shape=(8, 3, 16, 16))]
        )
    exported = export(conv_net, (torch.randn(4, 3, 16, 16),), dynamic_shapes={"x": {0: Dim("batch", min=1, max=8)}})
    return compile_module(exported)


def test_a_pt2_file_keeps_the_dynamic_shapes(model: Any, conv_net: Any, tmp_path: Path) -> None:
    trtbuild.save(model, tmp_path / "model.pt2")
    exported = torch.export.load(tmp_path / "model.pt2")
    (bounds,) = exported.range_constraints.values()
    assert (bounds.lower, bounds.upper) == (1, 8)
    loaded = exported.module()
    for batch in (1, 4, 7, 8):
        assert_equals_eager(loaded, conv_net, torch.randn(batch, 3, 16, 16))
    with pytest.raises(RuntimeError, match="8"):
        loaded(torch.randn(9, 3, 16, 16))


def test_a_package_keeps_the_dynamic_shapes(model: Any, conv_net: Any, tmp_path: Path) -> None:
    model.save(tmp_path / "package")
    with trtbuild.load(tmp_path / "package", device="cpu") as package:
        loaded = package.module()
        for batch in (1, 4, 7, 8):
            assert_equals_eager(loaded, conv_net, torch.randn(batch, 3, 16, 16))
        with pytest.raises(ValueError, match="is 9, and allowed is 1 to 8"):
            loaded(torch.randn(9, 3, 16, 16))


def test_a_pt2_file_keeps_keyword_arguments(compile_module: Any, tmp_path: Path) -> None:
    eager = MaskedAttention().eval()
    model = compile_module(
        eager,
        [Input(min_shape=(1, 2, 8), opt_shape=(2, 6, 8), max_shape=(4, 12, 8))],
        {"mask": Input(min_shape=(1, 2), opt_shape=(2, 6), max_shape=(4, 12))},
        dims={"batch": ["x.0", "mask.0"], "length": ["x.1", "mask.1"]},
    )
    loaded = torch.export.load(model.save(tmp_path / "model.pt2")).module()
    for batch, length in ((1, 2), (4, 12), (3, 5)):
        assert_equals_eager(loaded, eager, torch.randn(batch, length, 8), mask=torch.randn(batch, length))
