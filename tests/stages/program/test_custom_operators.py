"""Programs with operators from outside PyTorch, whose code need not be loaded.

`open_calls` removes their calls from a program: the result is an opened program. `OpenedProgram.close` puts the calls back.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.export import Dim

from trtbuild.core.values.expressions import expression_text
from trtbuild.errors import ConversionRefused, OperatorMismatch, SourceError
from trtbuild.stages.program.consistency import signature
from trtbuild.stages.program.cpu_kernels import substitute_kernels
from trtbuild.stages.program.custom_calls import checked_copy, open_calls
from trtbuild.stages.program.custom_operators import (
    define_missing_operators,
    has_cpu_kernel,
    registered_schema,
    stored_schemas,
)
from trtbuild.stages.program.functional import Program, functional
from trtbuild.stages.program.sizes import first_difference, points_of
from trtbuild.stages.program.text import program_text, target_name
from trtbuild.stages.program.translations import has_translation

LIBRARY = torch.library.Library("program_test", "FRAGMENT")


@torch.library.custom_op("program_test::part", mutates_args=())
def part(x: torch.Tensor, rows: int) -> torch.Tensor:
    return x[:rows] * 2


part.register_fake(lambda x, rows: x.new_empty(rows, x.shape[1]))


@torch.library.custom_op("program_test::split", mutates_args=())
def split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = (x[:, 0] > 0).nonzero().reshape(-1)
    return x[rows], rows


@split.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty(count, x.shape[1]), x.new_empty(count, dtype=torch.int64)


class Net(torch.nn.Module):
    """Calls two operators from outside PyTorch. The second call reads the result of the first."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = part(x.relu().t().contiguous().t().contiguous(), x.shape[0] // 2)
        kept, rows = split(first)
        return kept.sigmoid() + 1, rows


def program_of(module: torch.nn.Module) -> Program:
    rows = 4 * Dim("rows", min=1, max=8)
    exported = torch.export.export(module.eval(), (torch.randn(8, 3),), dynamic_shapes=({0: rows},), strict=False)
    return functional(exported.run_decompositions({}))[0]


def results(program: Program, x: torch.Tensor) -> list[torch.Tensor]:
    return list(program.exported.graph_module(x))


def operator_names(program: Program) -> list[str]:
    return [target_name(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_an_opened_program_has_no_custom_calls_and_gives_the_same_results_when_it_is_closed() -> None:
    program = program_of(Net())
    opened = open_calls(program)
    assert not [name for name in operator_names(opened.program) if name.startswith("program_test")]
    assert len(opened.program.input_nodes) == 4 and opened.output_count == 2
    closed = opened.close(opened.program)
    assert signature(closed) == signature(program)
    assert [name for name in operator_names(closed) if name.startswith("program_test")] == [
        "program_test.part.default",
        "program_test.split.default",
    ]
    for size in (4, 12):
        x = torch.randn(size, 3)
        for result, expected in zip(results(closed, x), Net()(x), strict=True):
            torch.testing.assert_close(result, expected)


def test_the_checked_copy_compares_each_result_with_its_declared_sizes() -> None:
    checked = checked_copy(program_of(Net()))
    # the arguments of a check: the result, its declared sizes, its dtype, and the operator
    part_check, *split_checks = [node.args for node in checked.graph.nodes if "declared" in str(node.target)]
    assert part_check[3] == "program_test::part"
    assert [operator for *_, operator in split_checks] == ["program_test::split"] * 2
    first, second = (sizes[0] for _, sizes, *_ in split_checks)
    assert first == -1  # the size depends on data, so the check accepts any size
    assert isinstance(second, torch.fx.Node)  # the size of the first result


def test_the_checked_copy_of_a_program_without_custom_calls_is_the_program_itself() -> None:
    program = program_of(torch.nn.ReLU())
    assert checked_copy(program) is program


def test_a_wrong_result_is_an_error_when_the_program_runs() -> None:
    program = checked_copy(program_of(Net()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(part._backend_fns, None, lambda x, rows: x.clone())  # None: the kernel of all devices
        with pytest.raises(OperatorMismatch, match=r"program_test::part returns float32\[12, 3\], but .*\[6, 3\]"):
            results(program, torch.randn(12, 3))


def test_rejects_a_call_whose_number_argument_depends_on_data() -> None:
    class Counted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return part(x, (x[:, 0] > 0).sum().item() % 2)

    program = program_of(Counted())
    with pytest.raises(ConversionRefused, match=r"program_test\.part\.default reads a number that depends on data"):
        checked_copy(program)


def test_operators_from_outside_pytorch_have_no_translation() -> None:
    calls = [node for node in program_of(Net()).graph.nodes if "program_test" in str(node.target)]
    assert calls and not any(map(has_translation, calls))


def test_the_text_of_a_program_has_the_schema() -> None:
    assert 'program_test.part.default@"program_test::part(Tensor x, SymInt rows) -> Tensor"(' in program_text(
        program_of(Net())
    )


def test_a_process_without_the_code_reads_the_program(tmp_path: Path) -> None:
    data = program_of(Net()).to_bytes()
    assert set(stored_schemas(data)) == {"program_test.part.default", "program_test.split.default"}
    (tmp_path / "program.pt2").write_bytes(data)
    script = (
        "import sys\nfrom pathlib import Path\nfrom trtbuild.stages.program.consistency import read_program\n"
        "from trtbuild.stages.program.text import program_text\n"
        "from trtbuild.stages.program.custom_calls import open_calls\n"
        "program = read_program(Path(sys.argv[1]).read_bytes())\n"
        "opened = open_calls(program)\nopened.close(opened.program)\nprint(program_text(program), end='')"
    )
    arguments = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "program.pt2")]
    completed = subprocess.run(arguments, capture_output=True, text=True)
    assert completed.stdout == program_text(Program.from_bytes(data)), completed.stderr


def test_a_definition_is_replaced_if_another_model_has_another_schema() -> None:
    name = "program_test_of_another_model.call.default"
    for schema in ("(Tensor x) -> Tensor", "(Tensor x, int n=3) -> Tensor", "(Tensor x) -> Tensor"):
        define_missing_operators({name: f"program_test_of_another_model::call{schema}"})
        assert registered_schema(name) == f"program_test_of_another_model::call{schema}"


def test_an_operator_with_a_default_device_is_defined_from_the_text_of_its_schema() -> None:
    """torch writes such a default without the quotes that it needs to read it."""
    LIBRARY.define("on(Tensor x, Device first='cpu', *, Device? second=None, Device? third='cuda:1') -> Tensor")
    schema = registered_schema("program_test.on.default")
    assert schema is not None and "first=cpu" in schema
    schema = schema.replace("program_test", "program_test_of_devices")
    define_missing_operators({"program_test_of_devices.on.default": schema})
    assert registered_schema("program_test_of_devices.on.default") == schema


def test_a_schema_that_torch_cannot_read_is_a_typed_error() -> None:
    LIBRARY.define("called(Tensor x, str name='Größe') -> Tensor")
    schema = str(registered_schema("program_test.called.default")).replace("program_test", "program_test_of_texts")
    for _ in range(2):
        with pytest.raises(SourceError, match="cannot read its own text of the schema program_test_of_texts::called"):
            define_missing_operators({"program_test_of_texts.called.default": schema})


def test_an_operator_with_another_schema_than_that_of_the_program_is_refused() -> None:
    with pytest.raises(SourceError, match=r"has the schema program_test::part\(Tensor x, SymInt rows\) -> Tensor"):
        define_missing_operators({"program_test.part.default": "program_test::part(Tensor x) -> Tensor"})


def test_a_substitute_kernel_depends_on_every_argument() -> None:
    LIBRARY.define("gpu(Tensor x, float a, Tensor y) -> (Tensor, Tensor)")
    torch.library.register_fake(
        "program_test::gpu", lambda x, a, y: (torch.empty_like(x), torch.empty_like(y, dtype=torch.int64)), lib=LIBRARY
    )
    torch.manual_seed(0)  # with some other random arguments, the results below would differ too little
    x, y = torch.randn(3, 4), torch.randn(5)
    with substitute_kernels(["program_test.gpu.default", "program_test.part.default"]) as substituted:
        assert substituted == ("program_test.gpu.default",)  # `part` has a kernel
        first, integers = torch.ops.program_test.gpu(x, 0.5, y)
        assert torch.equal(first, torch.ops.program_test.gpu(x, 0.5, y)[0]) and not integers.any()
        for arguments in ((x + 0.1, 0.5, y), (x, 0.6, y), (x, 0.5, y.flip(0)), (x.flip(0), 0.5, y)):
            assert not torch.allclose(first, torch.ops.program_test.gpu(*arguments)[0], rtol=1e-4)
        # a rounding error of an input hardly changes the result
        torch.testing.assert_close(first, torch.ops.program_test.gpu(x * (1 + 1e-6), 0.5, y)[0])
    with pytest.raises(NotImplementedError):
        torch.ops.program_test.gpu(x, 0.5, y)


def test_the_size_of_an_input_with_a_multiple_is_a_product() -> None:
    ((_, shape),) = signature(program_of(Net())).inputs
    assert expression_text(shape[0], ["rows"]) == "4*rows"


def test_has_cpu_kernel_answers_for_an_operator_without_a_default_overload() -> None:
    LIBRARY.define("scaled.number(Tensor x, float factor) -> Tensor")
    LIBRARY.define("scaled.gpu(Tensor x, Tensor factor) -> Tensor")
    LIBRARY.impl("scaled.number", lambda x, factor: x * factor, "CPU")
    LIBRARY.impl("scaled.gpu", lambda x, factor: x * factor, "CUDA")
    assert has_cpu_kernel("program_test.scaled.number")
    assert not has_cpu_kernel("program_test.scaled.gpu")


@torch.library.custom_op("program_test::ramp", mutates_args=())
def ramp(rows: int, device: torch.device) -> torch.Tensor:
    return torch.arange(rows, device=device) / 2


ramp.register_fake(lambda rows, device: torch.empty(rows, device=device))


@torch.library.custom_op("program_test::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


halved.register_fake(lambda x: torch.empty(x.shape))


class Ramp(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * ramp(x.shape[0], x.device)[:, None]


class Halved(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * halved(x)


@pytest.mark.parametrize("model", [Ramp(), Halved()])
def test_sizes_are_compared_if_an_operator_reads_no_tensor_or_its_fake_implementation_names_no_device(
    model: torch.nn.Module,
) -> None:
    program = program_of(model)
    assert first_difference(program, points_of(program)) is None
