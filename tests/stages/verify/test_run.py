"""Verifications of small models, from the job to the report."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from tests.stages.verify.conftest import Blobs, ConvertedModel, FunctionModule, convert_module, replace_job
from trtbuild.core.model.spec import Precision
from trtbuild.core.model.verification import TOLERANCES, Point, Runner, tolerances
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.core.values.codec import decode, encode
from trtbuild.errors import SourceError
from trtbuild.stages.verify import inputs
from trtbuild.stages.verify.job import FloatProgram, VerifyJob
from trtbuild.stages.verify.run import verify
from trtbuild.stages.verify.running import NotRunnable, OrderedInterpreter, PartFailed, TorchReference, Weights


class FromTorch:
    """A runner that computes with PyTorch, and applies `spoil` to the results."""

    name: Runner = "engine"

    def __init__(self, converted: ConvertedModel, spoil: Any) -> None:
        self._torch = TorchReference(
            converted.job.programs, Weights(converted.job.weights, converted.read), converted.read
        )
        self._spoil = spoil
        self.points: list[Point] = []

    def __call__(self, part: Partition, values: Sequence[torch.Tensor], point: Point) -> Sequence[torch.Tensor]:
        self.points.append(point)
        return [self._spoil(value) for value in self._torch.run_part(part, values)]


def test_a_job_decoded_from_json_equals_the_original(mlp: ConvertedModel) -> None:
    float_program = FloatProgram("program", "graph", mlp.job.weights)
    for job in (mlp.job, replace(mlp.job, float_program=float_program, has_rounded_weights=True)):
        assert decode(VerifyJob, json.loads(json.dumps(encode(job)))) == job


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_a_correct_conversion_is_right(precision: Precision) -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()
    converted = convert_module(module, [(("b", 8), "float32")], precision)
    report = verify(converted.job, converted.read)
    assert not list(report.failures()) and report.status == "right"
    (part,) = report.partitions
    assert part.status == "right" and part.points == 3 and part.place is None
    assert part.by_point is not None
    assert [entry.point for entry in part.by_point] == [0, 1, 2]
    assert max(entry.error or 0.0 for entry in part.by_point) == part.error
    assert part.precision == report.whole.precision == report.lowered.precision == precision
    assert 0 <= part.error <= part.tolerance == report.tolerance == TOLERANCES["onnxruntime"][precision]
    # in half precision, the lowered program and its ONNX model differ from the traced program by similar errors
    assert (report.lowered.error > 1e-5) == (precision != "float32")
    assert report.whole.error == pytest.approx(report.lowered.error, rel=0.5, abs=1e-6)


def test_sixteen_bits_are_rounded_after_each_node() -> None:
    """Values beyond float16 are infinite in PyTorch and in onnxruntime, although onnxruntime computes in float32."""
    linear = nn.Linear(64, 8)
    torch.nn.init.constant_(linear.weight, 3e4)
    converted = convert_module(
        FunctionModule(lambda m, x: m.linear(x) * 1e-5, linear=linear), [((16, 64), "float32")], "float16"
    )
    report = verify(converted.job, converted.read)
    assert report.partitions[0].status == "right"
    assert report.whole.status == report.lowered.status == "wrong"
    assert "infinite" in report.whole.text and report.whole.error is None


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float16, "float16"), (torch.bfloat16, "bfloat16")])
def test_a_module_in_half_precision_has_the_tolerance_of_its_precision(
    dtype: torch.dtype, precision: Precision
) -> None:
    """The precision comes from the module, not from the manifest."""
    torch.manual_seed(0)
    module = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval().to(dtype)
    converted = convert_module(module, [(("b", 8, 64), precision)])
    report = verify(converted.job, converted.read)
    (part,) = report.partitions
    assert part.error > TOLERANCES["onnxruntime"]["float32"]  # with float32's tolerance, the partition would be wrong
    assert part.status == report.whole.status == "right"
    assert part.tolerance == report.whole.tolerance == report.tolerance == converted.job.tolerances[precision]


def _one_output_in_half() -> ConvertedModel:
    """A model with two outputs: the first is computed in float32, the second in float16."""
    torch.manual_seed(0)
    members = {"exact": nn.Linear(64, 8), "coarse": nn.Linear(64, 8).half()}
    return convert_module(
        FunctionModule(lambda m, x: (m.exact(x) + 1, m.coarse(x.half()).float() * 2), **members),
        [(("b", 64), "float32")],
    )


def test_each_output_has_the_tolerance_of_its_precision() -> None:
    converted = _one_output_in_half()
    report = verify(converted.job, converted.read)
    assert report.partitions[0].status == report.whole.status == "right"

    class WithError(FromTorch):
        def __init__(self, output: int) -> None:
            super().__init__(converted, lambda value: value)
            self._output = output

        def __call__(self, part: Partition, values: Sequence[torch.Tensor], point: Point) -> Sequence[torch.Tensor]:
            results = super().__call__(part, values, point)
            return [value * 1.001 if number == self._output else value for number, value in enumerate(results)]

    first = verify(converted.job, converted.read, lambda *_: WithError(0))
    second = verify(converted.job, converted.read, lambda *_: WithError(1))
    (exact,), (coarse,) = first.partitions, second.partitions
    assert (exact.status, exact.output, exact.tolerance, exact.precision) == ("wrong", 0, 1e-5, "float32")
    assert (coarse.status, coarse.output, coarse.tolerance) == ("right", 1, 5e-3)
    assert exact.error == pytest.approx(coarse.error, rel=1e-2)  # the errors are almost equal, but the statuses differ
    assert first.tolerance == second.tolerance == 5e-3  # the largest tolerance of all outputs


def test_a_tolerance_of_the_user_applies_to_all_outputs() -> None:
    converted = replace_job(_one_output_in_half(), tolerances=tolerances("onnxruntime", 0.0))
    report = verify(converted.job, converted.read)
    entries = (*report.partitions, report.whole, report.lowered, report)
    assert {entry.tolerance for entry in entries} == {0.0}
    assert report.partitions[0].status == "wrong" and report.lowered.status == "right"


def test_a_number_that_is_computed_from_sizes_is_compared_exactly() -> None:
    def third(_: Any, x: torch.Tensor) -> Any:
        return x * 2, torch.scalar_tensor(x.shape[0] / 3, dtype=torch.float64)

    model = convert_module(FunctionModule(third), [(("b", 8), "float32")])
    assert verify(model.job, model.read, lambda *_: FromTorch(model, lambda value: value)).whole.status == "right"
    report = verify(model.job, model.read, lambda *_: FromTorch(model, lambda value: value * (1 + 1e-9)))
    assert (report.whole.status, report.whole.output) == ("wrong", 1) and "instead of" in report.whole.text


def test_outputs_of_all_dtypes_and_empty_outputs_are_compared() -> None:
    def several(_: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x > 0, y + 1, x.argmax(-1), x[:, :0], torch.log(x)

    converted = convert_module(FunctionModule(several), [(("b", 8), "float32"), (("b", 3), "int32")])
    report = verify(converted.job, converted.read)
    assert report.whole.status == "right" and report.partitions[0].status == "right"


@pytest.mark.parametrize(
    "operator",
    [
        lambda x: torch.sort(x, dim=1),
        lambda x: torch.sort(x, dim=0, descending=True),
        lambda x: torch.argsort(x, dim=0),
        lambda x: torch.topk(x, 5, dim=1),
        lambda x: torch.topk(x, 5, dim=0, largest=False),
        lambda x: torch.topk(x * 0.7, 5, dim=1, sorted=False),
    ],
)
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_an_order_that_pytorch_leaves_open_is_not_wrong(operator: Any, dtype: str) -> None:
    """Equal numbers may have any order. Many of the integers are equal, and most of the floats are different."""
    converted = convert_module(FunctionModule(lambda _, x: operator(x)), [((64, 8, "b"), dtype)])
    report = verify(replace_job(converted, ranges={"x0": (0, 3)}).job, converted.read)
    assert (report.partitions[0].status, report.whole.status, report.lowered.status) == ("right",) * 3


def test_a_wrong_index_of_equal_numbers_is_wrong() -> None:
    converted = convert_module(FunctionModule(lambda _, x: torch.sort(x)[1]), [(("b", 64), "int64")])
    report = verify(converted.job, converted.read, lambda *_: FromTorch(converted, lambda value: value.flip(-1)))
    assert report.partitions[0].status == report.whole.status == "wrong"


def test_a_wrong_operator_after_a_sort_of_equal_numbers_is_found() -> None:
    def multiply_wrongly(graph: onnx.GraphProto) -> None:
        (node,) = (node for node in graph.node if node.op_type == "Mul")
        node.op_type = "Add"

    converted = convert_module(FunctionModule(lambda _, x: torch.sort(x)[1] * 3), [((8, 64), "int64")])
    place = verify(converted.altered(multiply_wrongly).job, converted.read).partitions[0].place
    assert place is not None
    # the value of getitem could not be compared, so the fault may begin there
    assert (place.first.operator, place.since.operator) == ("aten.mul.Tensor", "_operator.getitem")


def test_a_sort_in_a_nested_graph_keeps_the_order_of_equal_numbers() -> None:
    def sort_or_search(_: Any, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(flag, lambda x: x.sort()[1], lambda x: x.topk(64)[1], (x,))

    x = torch.arange(64) % 2
    exported = torch.export.export(FunctionModule(sort_or_search), (torch.tensor(True), x))
    for flag, expected in ((True, x.sort(stable=True)), (False, x.sort(stable=True, descending=True))):
        assert torch.equal(OrderedInterpreter(exported.graph_module).run(torch.tensor(flag), x)[0], expected[1])


def test_the_worst_inputs_are_stored_and_can_be_replayed(mlp: ConvertedModel, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "worst.safetensors"
    report = verify(replace_job(mlp, worst=str(path)).job, mlp.read)
    assert report.worst_input == str(path)
    worst = report.partitions[0].worst
    (stored,) = inputs.read_inputs(path, mlp.job.inputs, [(worst.sizes[0], 8)])
    point = Point(0, "replay", tuple(worst.sizes), 0)
    replayed = replace_job(mlp, replay=str(path), points=(point,), shapes=((tuple(stored.shape),),))
    replay_report = verify(replayed.job, mlp.read)
    assert replay_report.partitions[0].error == report.partitions[0].error and replay_report.worst_input is None


def test_a_model_that_fails_in_pytorch_is_the_models_error() -> None:
    converted = convert_module(FunctionModule(lambda m, x: m.table(x + 4), table=nn.Embedding(5, 3)), [((4,), "int64")])
    with pytest.raises(SourceError, match=r"traced program itself fails at x0 \[4\].*IndexError"):
        verify(converted.job, converted.read)


def test_another_runner_is_compared_in_the_same_way(mlp: ConvertedModel) -> None:
    runner = FromTorch(mlp, lambda value: value)
    report = verify(mlp.job, mlp.read, lambda *_: runner)
    assert (report.runner, report.whole.error, report.whole.status) == ("engine", 0.0, "right")
    # at each point, the comparisons of the partition and of the whole model share one run
    assert tuple(runner.points) == mlp.job.points


def test_a_wrong_engine_with_a_right_conversion_has_no_place_in_the_graph(mlp: ConvertedModel) -> None:
    report = verify(mlp.job, mlp.read, lambda *_: FromTorch(mlp, lambda value: value * 1.01))
    (part,) = report.partitions
    assert part.status == "wrong" and part.error == pytest.approx(0.01, rel=0.1) and part.place is None


def test_a_missing_kernel_is_unchecked_and_a_failure_is_wrong(mlp: ConvertedModel) -> None:
    def raising(error: Exception) -> Any:
        def spoil(_: torch.Tensor) -> torch.Tensor:
            raise error

        return lambda *_: FromTorch(mlp, spoil)

    (part,) = verify(mlp.job, mlp.read, raising(NotRunnable("no kernel"))).partitions
    assert (part.status, part.text, part.points) == ("unchecked", "no kernel", 0)
    report = verify(mlp.job, mlp.read, raising(PartFailed("it breaks")))
    assert (report.partitions[0].status, report.partitions[0].text) == ("wrong", "it breaks")


def test_nan_where_pytorch_has_none_is_wrong(mlp: ConvertedModel) -> None:
    report = verify(mlp.job, mlp.read, lambda *_: FromTorch(mlp, lambda value: value.masked_fill(value > 0, math.nan)))
    assert report.partitions[0].status == "wrong" and "NaN" in report.partitions[0].text


def test_an_operator_that_onnxruntime_lacks_is_a_failure_of_the_conversion(mlp: ConvertedModel) -> None:
    def rename(graph: onnx.GraphProto) -> None:
        graph.node[0].op_type = "NoSuchOperator"

    altered = mlp.altered(rename)
    report = verify(altered.job, altered.read)
    assert "NoSuchOperator" in report.partitions[0].text


def test_an_output_with_only_nan_is_unchecked() -> None:
    def several(_: Any, x: torch.Tensor) -> Any:
        return x + 1, torch.log(-1 - x.abs())

    converted = convert_module(FunctionModule(several), [(("b", 8), "float32")])
    report = verify(converted.job, converted.read)
    for entry in (*report.partitions, report.whole):
        assert entry.status == "unchecked"
        assert entry.text == "output 1 has no value to compare at any point: it is NaN, or rounding decides it"
    wrong = verify(converted.job, converted.read, lambda *_: FromTorch(converted, lambda value: value * 2))
    assert wrong.partitions[0].status == "wrong" and wrong.partitions[0].text == ""


def test_a_wrong_partition_stays_wrong_if_a_later_run_is_impossible(mlp: ConvertedModel) -> None:
    calls = []

    def spoil(value: torch.Tensor) -> torch.Tensor:
        calls.append(value)
        if len(calls) > 1:
            raise NotRunnable("no room")
        return value * 2

    (part,) = verify(mlp.job, mlp.read, lambda *_: FromTorch(mlp, spoil)).partitions
    assert len(calls) > 1 and part.status == "wrong" and part.error == pytest.approx(1.0)


def test_without_points_everything_is_unchecked(mlp: ConvertedModel) -> None:
    without_points = replace_job(mlp, points=(), shapes=())
    report = verify(without_points.job, without_points.read)
    assert {entry.status for entry in (*report.partitions, report.whole)} == {"unchecked"}


def test_an_input_with_unsupported_values_is_an_error(tmp_path: Path) -> None:
    members = {"table": nn.Embedding(7, 3), "small": nn.Embedding(5, 3)}
    converted = convert_module(
        FunctionModule(lambda m, x, y: m.table(x) + m.small(y + 9), **members), [((4,), "int64"), ((4,), "int64")]
    )
    with pytest.raises(SourceError, match=r"IndexError: .* \(x1 has values from 0 to 1\)") as caught:
        verify(converted.job, converted.read)
    assert "`x1: {dtype: int64, range: [LOWEST, HIGHEST]}`" in str(caught.value.hint)
    too_wide = replace_job(converted, ranges={"x1": (-9, 3)})
    with pytest.raises(SourceError, match="x1 has values from") as caught:
        verify(too_wide.job, converted.read)
    assert "correct the range of x1, [-9, 3]" in str(caught.value.hint)
    fits = replace_job(converted, ranges={"x1": (-9, -5)})
    assert verify(fits.job, converted.read).whole.status == "right"
    file = tmp_path / "in.safetensors"
    inputs.write_inputs(file, {"x0": torch.zeros(4, dtype=torch.int64), "x1": torch.full((4,), 8)}, {})
    with pytest.raises(SourceError, match="x1 has values from 8 to 8") as caught:
        verify(replace_job(converted, replay=str(file)).job, converted.read)
    assert "--replay FILE" in str(caught.value.hint)


def test_an_input_with_unsupported_values_is_also_an_error_if_there_is_no_traced_program() -> None:
    """A package does not contain the traced program, so the programs of the partitions fail."""
    converted = convert_module(FunctionModule(lambda m, x: m.table(x + 4), table=nn.Embedding(5, 3)), [((4,), "int64")])
    with pytest.raises(SourceError, match=r"the model itself fails at x0 \[4\].*x0 has values from 0 to 1"):
        verify(replace_job(converted, program="").job, converted.read)


def test_another_failure_does_not_blame_an_input(mlp: ConvertedModel) -> None:
    narrow = replace_job(mlp, inputs=(("x0", "int32"),))  # PyTorch cannot multiply integers by float weights
    with pytest.raises(SourceError, match="traced program itself fails") as caught:
        verify(narrow.job, mlp.read)
    assert "has values" not in caught.value.text and "--replay" in str(caught.value.hint)


def test_a_wrong_index_that_fails_in_the_next_partition_makes_the_whole_wrong() -> None:
    first = convert_module(FunctionModule(lambda m, x: x.argmax(-1)), [((4, 5), "float32")])
    second = convert_module(FunctionModule(lambda m, x: m.table(x), table=nn.Embedding(5, 3)), [((4,), "int64")])
    (first_part,), (second_part,) = first.partitions.partitions, second.partitions.partitions
    second_part = replace(second_part, name="rows", kind="torch", inputs=(("model:0", second_part.inputs[0][1]),))
    blobs = Blobs(first.blobs | second.blobs)
    both = ConvertedModel(first.job, blobs, first.program, first.lowered, first.graph)
    partitions = both.blobs.keep(Partitions((first_part, second_part), ("rows:0",)).to_bytes())
    programs = {**first.job.programs, **second.job.programs}
    both = replace_job(both, program="", partitions=partitions, programs=programs, weights=second.job.weights)
    right = verify(both.job, both.read, lambda *_: FromTorch(both, lambda value: value))
    assert right.whole.status == "right" and right.whole.error == 0.0
    wrong = verify(both.job, both.read, lambda *_: FromTorch(both, lambda value: value + 100))
    assert wrong.partitions[0].status == wrong.whole.status == "wrong"
    assert "partition rows fails on the results of earlier partitions: IndexError" in wrong.whole.text


def test_a_partition_that_fails_only_on_the_results_of_earlier_partitions_makes_the_whole_wrong() -> None:
    first = convert_module(FunctionModule(lambda m, x: x * 2), [((4, 5), "float32")])
    second = convert_module(FunctionModule(lambda m, x: x + 1), [((4, 5), "float32")])
    (first_part,), (second_part,) = first.partitions.partitions, second.partitions.partitions
    second_part = replace(second_part, name="second", inputs=(("model:0", second_part.inputs[0][1]),))
    both = ConvertedModel(first.job, Blobs(first.blobs | second.blobs), first.program, first.lowered, first.graph)
    partitions = both.blobs.keep(Partitions((first_part, second_part), ("second:0",)).to_bytes())
    programs = {**first.job.programs, **second.job.programs}
    both = replace_job(both, program="", partitions=partitions, programs=programs)

    class FailsOnOwnResults(FromTorch):
        """A runner whose second partition accepts PyTorch's values, but not the results of the first partition."""

        def __call__(self, part: Partition, values: Sequence[torch.Tensor], point: Point) -> Sequence[torch.Tensor]:
            if (
                self.points.count(point) == 2
            ):  # the third call at a point: the second partition, on the first one's results
                raise PartFailed("it breaks")
            return super().__call__(part, values, point)

    report = verify(both.job, both.read, lambda *_: FailsOnOwnResults(both, lambda value: value))
    assert [part.status for part in report.partitions] == ["right", "right"]
    assert report.whole.status == "wrong"
    assert report.whole.text == "partition second fails on the results of earlier partitions: it breaks"
