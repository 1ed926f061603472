"""The comparison finds planted faults, and finds nothing in a correct build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.fuzz import comparing
from tests.fuzz.comparing import differences
from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import Built, ModuleCase, build
from trtbuild.core.model.precisions import Precisions
from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.partition.partitions import Partition
from trtbuild.stages.lower import run as lowering
from trtbuild.stages.lower.passes import PASSES, Pass
from trtbuild.stages.lower.request import Request
from trtbuild.stages.partition import run as partitioning
from trtbuild.stages.program.functional import Program
from trtbuild.stages.verify import lowered


@pytest.fixture(scope="module")
def case() -> ModuleCase:
    """Two engines around an operator in PyTorch, and two outputs."""
    torch.manual_seed(0)
    statements = ["y = (x0 @ self.weight).relu()", "z = y.flip(0)", "w = z.sum(1) * 2"]
    module = module_from_text(statements, "(w, z > 0.5)", 1, {"weight": torch.randn(6, 4)})
    return ModuleCase(module, [("float32", [(2, 3, 5), 6])], torch_executed_ops=("aten.flip",))


@pytest.fixture(scope="module")
def built(case: ModuleCase) -> Built:
    return build(case)


def differences_text(case: ModuleCase, built: Built) -> str:
    """The text of all differences. Fails if there are no differences."""
    texts = differences(case, built).differences
    assert texts
    return "\n".join(texts)


def test_a_correct_build_has_no_differences(case: ModuleCase, built: Built) -> None:
    assert [part.kind for part in built.partitions.partitions] == ["tensorrt", "torch", "tensorrt"]
    comparison = differences(case, built)
    assert not comparison.differences and not comparison.unchecked
    # 5 points (min, opt, max, two random), each with one output of the first engine, two of the last and two of the model
    assert comparison.compared == 5 * (1 + 2 + 2)


# -- the partition document


def with_part(built: Built, number: int, change: Callable[[Partition], Partition]) -> Built:
    """A copy of the build, in whose document `change` has changed partition `number`."""
    parts = list(built.partitions.partitions)
    parts[number] = change(parts[number])
    return replace(built, partitions=replace(built.partitions, partitions=tuple(parts)))


def with_output(part: Partition, **changes: Any) -> Partition:
    return replace(part, outputs=(replace(part.outputs[0], **changes), *part.outputs[1:]))


def test_finds_a_wrong_dtype_in_the_document(case: ModuleCase, built: Built) -> None:
    wrong = with_part(built, 0, lambda part: with_output(part, dtype="float16"))
    text = differences_text(case, wrong)
    assert "p0: the network's o0 is float32[-1, 4], declared float16" in text
    assert "p0:0 is float32[2, 4] at min [2], declared float16" in text


def test_finds_a_wrong_dtype_of_a_torch_partition(case: ModuleCase, built: Built) -> None:
    assert "p1:0 is float32[3, 4] at opt [3]" in differences_text(
        case, with_part(built, 1, lambda part: with_output(part, dtype="bool"))
    )


@pytest.mark.parametrize("shape", [(3, 4), (["sym", 0], 5), (["sym", 0], 4, 1), (["add", 1, ["sym", 0]], 4)])
def test_finds_a_wrong_shape_in_the_document(case: ModuleCase, built: Built, shape: tuple[Any, ...]) -> None:
    assert "p0:0 is float32[5, 4] at max [5]" in differences_text(
        case, with_part(built, 0, lambda part: with_output(part, shape=shape))
    )


def test_finds_outputs_in_another_order(case: ModuleCase, built: Built) -> None:
    wrong = replace(built, partitions=replace(built.partitions, outputs=built.partitions.outputs[::-1]))
    assert "output at min [2], 0: dtype bool instead of float32" in differences_text(case, wrong)


def test_finds_another_structure_of_outputs(case: ModuleCase, built: Built) -> None:
    wrong = replace(built, output_tree=built.output_tree["items"][0])
    assert "the outputs at min [2] are" in differences_text(case, wrong)


# -- engines


def test_finds_a_network_without_inputs(case: ModuleCase, built: Built) -> None:
    layers = {name: {**document, "inputs": []} for name, document in built.layers.items()}
    assert "p0: the network's inputs are [], the partition has 1" in differences_text(
        case, replace(built, layers=layers)
    )


@pytest.mark.parametrize("shape", [[4, 4], [-1], None])
def test_finds_a_network_with_another_shape(case: ModuleCase, built: Built, shape: list[int] | None) -> None:
    outputs = [{**built.layers["p0"]["outputs"][0], "shape": shape}]
    layers = {**built.layers, "p0": {**built.layers["p0"], "outputs": outputs}}
    assert f"p0: the network's o0 is float32{shape}" in differences_text(case, replace(built, layers=layers))


def test_finds_a_profile_that_is_too_narrow(case: ModuleCase, built: Built) -> None:
    job = built.jobs["p0"]
    narrow = replace(job, profiles=((ShapeRange((2, 6), (2, 6), (4, 6)),),))
    text = differences_text(case, replace(built, jobs={**built.jobs, "p0": narrow}))
    assert text == "p0 takes [5, 6] at max [5] as i0, its profile is [2, 6] to [4, 6]"


def with_onnx(built: Built, number: int, change: Callable[[onnx.ModelProto], None]) -> Built:
    """A copy of the build with another ONNX model for partition `number`. `change` edits this model in place."""
    graph = built.partitions.partitions[number].graph
    model = onnx.ModelProto.FromString(built.store.get_bytes(built.onnx[graph]))
    change(model)
    changed = built.store.put_bytes(model.SerializeToString()).sha256
    return replace(built, onnx={**built.onnx, graph: changed})


def insert_before_output(model: onnx.ModelProto, operator: str, **attributes: Any) -> None:
    output = model.graph.output[0]
    producer = next(node for node in model.graph.node if output.name in node.output)
    producer.output[list(producer.output).index(output.name)] = "before"
    model.graph.node.append(helper.make_node(operator, ["before"], [output.name], **attributes))


def test_finds_a_conversion_whose_output_is_cast(case: ModuleCase, built: Built) -> None:
    def cast(model: onnx.ModelProto) -> None:
        insert_before_output(model, "Cast", to=TensorProto.DOUBLE)
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE

    assert "p0 at min [2], 0: dtype float64 instead of float32" in differences_text(case, with_onnx(built, 0, cast))


def test_finds_a_conversion_with_another_operator(case: ModuleCase, built: Built) -> None:
    text = differences_text(case, with_onnx(built, 0, lambda model: insert_before_output(model, "Sigmoid")))
    assert "p0 at random 2" in text and "away" in text


def test_finds_a_conversion_that_cannot_run(case: ModuleCase, built: Built) -> None:
    def reshape(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(helper.make_tensor("seven", TensorProto.INT64, [1], [7]))
        insert_before_output(model, "Reshape")
        model.graph.node[-1].input.append("seven")

    assert "p0 at min [2]: onnxruntime fails while it runs" in differences_text(case, with_onnx(built, 0, reshape))


# -- faulty steps


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Program], None]], None]:
    """A function that adds a faulty pass to the lower step. The checks that would detect the fault are off."""

    def plant_fault(function: Callable[[Program], None]) -> None:
        def faulty_pass(program: Program, request: Request) -> Program:
            function(program)
            program.graph.lint()
            program.exported.graph_module.recompile()
            return program

        def lower(
            program: Program, precisions: Precisions, decompositions: Mapping[Any, Any], points: Any, **settings: Any
        ) -> Program:
            request = Request(precisions=precisions, decompositions=decompositions, **settings)
            return lowering.run_passes(program, request, (*PASSES, Pass("planted", faulty_pass, "a fault")))

        monkeypatch.setattr(lowering, "lower", lower)
        monkeypatch.setattr(lowered, "refuse_another_model", lambda *_: None)
        monkeypatch.setattr(partitioning, "refuse_inconsistency", lambda *_: None)

    return plant_fault


def calls(program: Program, name: str) -> list[torch.fx.Node]:
    """The nodes that call an operator whose name contains `name`."""
    return [node for node in program.graph.nodes if node.op == "call_function" and name in str(node.target)]


def test_finds_a_pass_that_sums_over_another_axis(case: ModuleCase, plant: Callable[..., None]) -> None:
    def fault(program: Program) -> None:
        (node,) = calls(program, "aten.sum")
        node.args = (node.args[0], [0])

    plant(fault)
    text = differences_text(case, build(case))
    assert "p2:0 is float32[4] at min [2], declared float32[['sym', 0]]" in text
    assert "output at min [2], 0: shape [4] instead of [2]" in text


def test_finds_a_pass_that_drops_an_operator(case: ModuleCase, plant: Callable[..., None]) -> None:
    """All types and conversions agree with the lowered program. Only the results of the whole model differ."""

    def fault(program: Program) -> None:
        (node,) = calls(program, "aten.relu")
        node.replace_all_uses_with(node.all_input_nodes[0])
        program.graph.erase_node(node)

    plant(fault)
    texts = differences(case, build(case)).differences
    assert texts and all(text.startswith("output at") for text in texts)


def test_compares_named_results_of_torch() -> None:
    """The result of topk is an instance of a class of torch. The values in this instance are compared."""
    case = ModuleCase(module_from_text(["y = x0.topk(2, 1)"], "(y[0] * 2, y)", 1), [("float32", [(1, 3, 5), 6])])
    comparison = differences(case, build(case))
    assert not comparison.differences and comparison.compared > 3


# -- numbers


def test_finds_a_read_of_uninitialized_memory(case: ModuleCase, plant: Callable[..., None]) -> None:
    """The ONNX model has zeros in the place of uninitialized memory, and PyTorch has NaN. So the results differ."""

    def fault(program: Program) -> None:
        (node,) = calls(program, "aten.relu")
        node.target = torch.ops.aten.empty_like.default

    plant(fault)
    assert "p0 at max [5], 0: 20 of 20 values are NaN" in differences_text(case, build(case))


def test_accepts_differences_of_unstable_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of two mathematically equal sums changes with the last bits of the inputs, also in PyTorch."""
    statements = ["y = x0.sum(1, keepdim=True)", "z = x0.flip(1).sum(1, keepdim=True) - y"]
    case = ModuleCase(module_from_text(statements, "z / (z.abs() + 1e-6)", 1), [("float32", [(1, 3, 5), 64])])
    built = build(case)
    assert not differences(case, built).differences
    monkeypatch.setattr(comparing, "_CHANGE_FACTOR", 0)
    assert "away" in differences_text(case, built)
