"""A conversion is refused if ONNX infers other types for it than those of the program.

The optimizer drops an addition only if it adds exactly 0, and a multiplication only if its factor is exactly 1.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.helper
import pytest

from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild.errors import ConversionRefused
from trtbuild.stages.convert import conversion
from trtbuild.stages.convert.conversion import convert
from trtbuild.stages.convert.types import refuse_other_types
from trtbuild.stages.program.functional import Program


def program(body: str, dtype: str = "float32") -> Program:
    """The program of the only partition of a model.

    The model is the expression `body`. Its input ``x0`` has 2 to 8 rows of 4 numbers."""
    built = build(ModuleCase(module_from_text([], body, 1), [(dtype, [(2, 3, 8), 4])]))
    (part,) = built.partitions.partitions
    return Program.from_bytes(built.store.get_bytes(built.programs[part.graph]))


def error_after(original: Program, change: Callable[[onnx.ModelProto], None]) -> ConversionRefused:
    """The error after `change` has made a conversion of `original` wrong."""
    converted = convert(original, 20)
    model = onnx.ModelProto.FromString(converted.model)
    refuse_other_types(model, original, converted.origins)
    change(model)
    with pytest.raises(ConversionRefused) as caught:
        refuse_other_types(model, original, converted.origins)
    return caught.value


def test_rejects_another_dtype_of_an_output() -> None:
    def cast(model: onnx.ModelProto) -> None:
        model.graph.node[-1].output[0] = "before"
        model.graph.node.append(onnx.helper.make_node("Cast", ["before"], ["o0"], to=onnx.TensorProto.FLOAT16))

    error = error_after(program("x0 * 2 + 1"), cast)
    assert error.text == "the ONNX translation gives float16[2, 4] for an output that is float32[2, 4]"


def test_the_error_about_another_rank_names_the_call() -> None:
    def squeeze(model: onnx.ModelProto) -> None:
        node = model.graph.node[-1]
        del node.input[1:]
        node.op_type = "ReduceSum"
        del node.attribute[:]
        node.attribute.append(onnx.helper.make_attribute("keepdims", 0))

    error = error_after(program("(x0 * 2).relu() + 1"), squeeze)
    assert "aten.add.Tensor gives float[] where the model has float32[2, 4]" in error.text
    assert error.nodes == (2,)


def test_the_error_about_an_operand_of_a_wrong_type_names_the_call() -> None:
    def add_a_bool(model: onnx.ModelProto) -> None:
        (add,) = [node for node in model.graph.node if node.op_type == "Add"]
        model.graph.node.insert(0, onnx.helper.make_node("Cast", [add.input[0]], ["bits"], to=onnx.TensorProto.BOOL))
        add.input[0] = "bits"

    error = error_after(program("x0 + 1"), add_a_bool)
    assert (error.text, error.nodes) == ("ONNX's Add is not defined for bool", (0,))


@pytest.mark.parametrize("body", ["x0 + 1e-9", "x0 * 1.000001", "x0 / 1.000001", "x0 - 1e-9"])
def test_an_operand_close_to_0_or_1_is_kept(body: str) -> None:
    model = onnx.ModelProto.FromString(convert(program(body), 20).model)
    assert [node.op_type for node in model.graph.node] != ["Identity"]


@pytest.mark.parametrize("body", ["x0 + 0", "x0 * 1"])
def test_adding_0_and_multiplying_by_1_are_dropped(body: str) -> None:
    model = onnx.ModelProto.FromString(convert(program(body), 20).model)
    assert [node.op_type for node in model.graph.node] == ["Identity"]


def test_complex_numbers_do_not_cross_the_border_of_an_engine() -> None:
    inside = "torch.view_as_real(torch.view_as_complex(x0.reshape(-1, 2)) * 2)"
    assert convert(program(inside), 20)
    built = build(ModuleCase(module_from_text([], "torch.fft.rfft(x0).abs() + 1", 1), [("float32", [(2, 3, 8), 4])]))
    reasons = {name: text for part in built.partitions.partitions for name, text in part.reasons.items()}
    assert reasons["aten.abs.default"] == "an engine neither takes nor gives complex64"


def test_the_sum_of_a_float16_tensor_is_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    summed = program("x0.sum(1)", "float16")
    model = onnx.ModelProto.FromString(convert(summed, 20).model)
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    # without this function, the output is the float32 sum before its cast
    monkeypatch.setattr(conversion, "_name_outputs", lambda _: None)
    with pytest.raises(ConversionRefused, match="gives float"):
        convert(summed, 20)
