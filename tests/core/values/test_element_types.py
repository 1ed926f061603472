"""The table of element types has the names, numbers and sizes that the libraries use."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch

from trtbuild.core.values.element_types import ELEMENT_TYPES, ENGINE_TYPES, ElementType

DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def types_with(column: str) -> list[ElementType]:
    return [element for element in ELEMENT_TYPES.values() if getattr(element, column) is not None]


def test_names_and_sizes_are_those_of_torch() -> None:
    assert {name: DTYPES[name].itemsize for name in ELEMENT_TYPES} == {
        name: element.itemsize for name, element in ELEMENT_TYPES.items()
    }
    floating = {name for name, dtype in DTYPES.items() if dtype.is_floating_point or dtype.is_complex}
    missing = {str(DTYPES[name]).removeprefix("torch.") for name in floating} - ELEMENT_TYPES.keys()
    assert missing <= {"float4_e2m1fn_x2"}  # not supported, because each byte contains two elements


@pytest.mark.parametrize("element", types_with("onnx"), ids=lambda element: element.name)
def test_numbers_are_those_of_onnx(element: ElementType) -> None:
    name = onnx.TensorProto.DataType.Name(element.onnx).lower()
    assert {"float": "float32", "double": "float64", "float8e8m0": "float8e8m0fnu"}.get(name, name) == (
        element.name.replace("_", "")
    )


@pytest.mark.parametrize("element", types_with("safetensors"), ids=lambda element: element.name)
def test_names_in_files_are_those_of_safetensors(element: ElementType) -> None:
    data = safetensors.torch.save({"x": torch.zeros(1, dtype=DTYPES[element.name])})
    assert f'"dtype":"{element.safetensors}"'.encode() in data


@pytest.mark.parametrize("element", types_with("typestr"), ids=lambda element: element.name)
def test_type_strings_are_those_of_numpy(element: ElementType) -> None:
    assert np.dtype(element.typestr).name == element.name


def test_types_of_engines_have_names_in_onnx_and_tensorrt() -> None:
    assert {*ENGINE_TYPES} <= {element.name for element in types_with("onnx")} & {
        element.name for element in types_with("tensorrt")
    }
