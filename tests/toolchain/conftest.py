"""ONNX models in the form that the convert step writes, and jobs to compile them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper as h

from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import ShapeRange, Target
from trtbuild.toolchain.libraries.table import installed_version


@dataclass(frozen=True)
class JobAndBlobs:
    """A job, and its blobs: ``onnx`` → the model, SHA-256 → a weight."""

    job: EngineJob
    blobs: Mapping[str, bytes]

    def with_changes(self, **changes: Any) -> JobAndBlobs:
        return JobAndBlobs(replace(self.job, **changes), self.blobs)

    def read(self, sha256: str) -> bytes:
        return self.blobs[sha256]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, Sequence[int | str]]],
    outputs: Sequence[str],
    weights: Sequence[np.ndarray],
    constants: Mapping[str, np.ndarray] | None = None,
    weight_types: Sequence[str] | None = None,
) -> bytes:
    """An ONNX model with inputs ``i0…``, outputs ``o0…``, nodes ``n0…`` and external weights ``w0…``.

    An input is an ONNX element type and a shape, an output is an element type. `constants` are stored in the model, under
    their names. `weight_types` replace the element types of `weights`: NumPy has no bfloat16, so such a weight is an array
    of uint16.
    """
    graph = onnx.GraphProto(name="partition")
    for index, node in enumerate(nodes):
        node.name = f"n{index}"
        graph.node.append(node)
    for index, (element, shape) in enumerate(inputs):
        element_type = onnx.TensorProto.DataType.Value(element)
        graph.input.append(h.make_tensor_value_info(f"i{index}", element_type, shape))
    for index, element in enumerate(outputs):
        element_type = onnx.TensorProto.DataType.Value(element)
        graph.output.append(h.make_tensor_value_info(f"o{index}", element_type, None))
    for index, value in enumerate(weights):
        element_type = h.np_dtype_to_tensor_dtype(value.dtype)
        if weight_types is not None:
            element_type = onnx.TensorProto.DataType.Value(weight_types[index])
        tensor = graph.initializer.add(name=f"w{index}", dims=value.shape, data_type=element_type)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=f"w{index}")
    for name, value in (constants or {}).items():
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=9)
    return proto.SerializeToString(deterministic=True)


def job_and_blobs(onnx_model: bytes, weights: Sequence[np.ndarray], *profiles: Sequence[ShapeRange]) -> JobAndBlobs:
    """A job that compiles `onnx_model` for SM 89 with these weights and profiles, and the job's blobs."""
    blobs = {"onnx": onnx_model}
    job_weights = []
    for value in weights:
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        blobs[digest] = value.tobytes()
        job_weights.append(Weight(str(value.dtype), value.shape, digest))
    version = installed_version("tensorrt-rtx")
    assert version is not None
    settings, target = BuilderSettings(), Target("ada", 89)
    job = EngineJob("onnx", tuple(job_weights), tuple(map(tuple, profiles)), settings, target, version)
    return JobAndBlobs(job, blobs)


def mlp(seed: int = 0, dtype: str = "float32") -> tuple[bytes, list[np.ndarray]]:
    """An ONNX model of two linear layers, and its weights. Its input and its output have the shape (d0, 8)."""
    random = np.random.default_rng(seed)
    weights = [random.standard_normal((8, 8)).astype(dtype) for _ in range(2)]
    weights += [np.zeros(8, dtype), np.zeros(8, dtype)]
    nodes = [
        h.make_node("MatMul", ["i0", "w0"], ["v0"]),
        h.make_node("Add", ["v0", "w2"], ["v1"]),
        h.make_node("Relu", ["v1"], ["v2"]),
        h.make_node("MatMul", ["v2", "w1"], ["v3"]),
        h.make_node("Add", ["v3", "w3"], ["o0"]),
    ]
    element = {"float32": "FLOAT", "float16": "FLOAT16"}[dtype]
    return model(nodes, [(element, ["d0", 8])], [element], weights), weights


#: The min, opt and max shape of the input of `mlp`.
ROWS = ShapeRange((1, 8), (4, 8), (16, 8))


@pytest.fixture(scope="session")
def mlp_job() -> JobAndBlobs:
    """A job that compiles `mlp` for SM 89, with one profile."""
    return job_and_blobs(*mlp(), (ROWS,))


@pytest.fixture(scope="session")
def make_model() -> Callable[..., bytes]:
    return model


@pytest.fixture(scope="session")
def make_job() -> Callable[..., JobAndBlobs]:
    return job_and_blobs


@pytest.fixture(scope="session")
def make_mlp() -> Callable[..., tuple[bytes, list[np.ndarray]]]:
    return mlp
