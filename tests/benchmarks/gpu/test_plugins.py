"""The measurement of plugins: its operator computes ONNX's RoiAlign, and its model comes from its own project."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnxruntime
import pytest
import torch

from benchmarks.gpu.subjects.plugins import eager_model


@pytest.fixture(scope="module")
def regions() -> Any:
    return importlib.import_module("benchmarks.gpu.models.regions")


def test_the_operator_computes_onnx_roi_align(regions: Any) -> None:
    node = onnx.helper.make_node(
        "RoiAlign",
        ["maps", "boxes", "images"],
        ["y"],
        mode="avg",
        output_height=3,
        output_width=2,
        sampling_ratio=2,
        spatial_scale=0.5,
        coordinate_transformation_mode="half_pixel",
    )
    element_types = {"maps": onnx.TensorProto.FLOAT, "boxes": onnx.TensorProto.FLOAT, "images": onnx.TensorProto.INT64}
    inputs = [
        onnx.helper.make_tensor_value_info(name, element_type, None) for name, element_type in element_types.items()
    ]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([node], "g", inputs, [output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 3, 16, 20, generator=generator)
    corners = torch.rand(9, 4, generator=generator) * 32
    boxes = torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:] + 1], 1)  # some boxes end outside of the map
    images = torch.randint(0, 2, (9,), generator=generator, dtype=torch.int32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"maps": maps.numpy(), "boxes": boxes.numpy(), "images": images.long().numpy()})
    actual = regions.align(maps, boxes, images, 3, 2, 0.5, 2).numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_imports_the_model_of_its_project_if_another_project_has_a_package_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "models", ModuleType("models"))  # of another project
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "regions.py").write_text("def build():\n    return 'the model of the project'\n")
    assert eager_model(tmp_path) == "the model of the project"
