"""`trtbuild.compile` has the engine keys of a manifest build and the results of PyTorch, and rejects invalid arguments."""

from __future__ import annotations

import copy
import pwd
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trtbuild
from tests.conftest import CommandLine, ran
from trtbuild import Input
from trtbuild.driver.in_program import workspace
from trtbuild.errors import CallRefused, ConversionRefused, SourceError, TargetUnsupported, UsageError
from trtbuild.store.collection import check
from trtbuild.store.local.local import LocalStore

ROWS = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))
Compile = Callable[..., Any]

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(24, 24) for _ in range(3)])

    def forward(self, x, *, scale):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x * scale

def build():
    return Net().eval()
"""

MANIFEST = """
version: 1
targets: {ada: {sm: 89}}
profiles:
  rows:
    tokens: {min: [1, 24], opt: [4, 24], max: [16, 24]}
    scale: {shape: [24]}
models:
  net:
    source: {python: "net:build"}
    inputs: {tokens: {dtype: float32}, scale: {dtype: float32, keyword: true}}
    profiles: [rows]
    targets: [ada]
    partition: {granularity: ["layers.*"]}
    builder: {optimization_level: 2}
"""


def compile_in_program(cache: Path, **options: Any) -> Any:
    """Compile the model of `MANIFEST`. The input that is `tokens` in `MANIFEST` has the name `x`."""
    namespace: dict[str, Any] = {}
    exec(SOURCE, namespace)
    return trtbuild.compile(
        namespace["build"](),
        [Input(min_shape=(1, 24), opt_shape=(4, 24), max_shape=(16, 24))],
        {"scale": Input((24,))},
        target=89,
        granularity=["layers.*"],
        optimization_level=2,
        device="cpu",
        cache_dir=cache,
        **options,
    )


def ran_after_the_trace(document: Any) -> dict[str, int]:
    """Stage → number of steps that ran, for the stages from lower to engine."""
    return {stage: count for stage, count in ran(document).items() if stage not in ("trace", "package")}


def engine_keys(document: Any) -> set[str]:
    return {step["key"] for step in document["steps"] if step["stage"] == "engine"}


def test_a_program_finds_what_a_manifest_has_built(command_line: CommandLine) -> None:
    (command_line.project / "net.py").write_text(SOURCE)
    (command_line.project / "trtbuild.yaml").write_text(MANIFEST)
    document = command_line("build")
    assert ran_after_the_trace(document).keys() == {"lower", "partition", "convert", "engine"}
    report = compile_in_program(command_line.cache).report
    assert ran_after_the_trace(report) == {}
    assert engine_keys(report) == engine_keys(document)


def test_a_manifest_finds_what_a_program_has_built(command_line: CommandLine) -> None:
    report = compile_in_program(command_line.cache).report
    assert ran_after_the_trace(report).keys() == {"lower", "partition", "convert", "engine"}
    (command_line.project / "net.py").write_text(SOURCE)
    (command_line.project / "trtbuild.yaml").write_text(MANIFEST)
    document = command_line("build")
    assert ran(document) == {"trace": 1, "package": 1}
    assert engine_keys(document) == engine_keys(report)


def test_a_compiled_module_has_the_results_of_the_module(compile_module: Compile, net: torch.nn.Module) -> None:
    model = compile_module(net, [ROWS], {"scale": torch.ones(4)})
    assert isinstance(model, torch.nn.Module)
    assert model.is_reference
    for rows in (1, 4, 7, 16):
        x, scale = torch.randn(rows, 8), torch.randn(4)
        torch.testing.assert_close(model(x, scale=scale), net(x, scale=scale))
    with pytest.raises(ValueError, match="is 17, and allowed is 1 to 16"):
        model(torch.randn(17, 8), scale=torch.ones(4))


def test_compiling_again_builds_nothing(compile_module: Compile, net: torch.nn.Module) -> None:
    compile_module(net, [ROWS])
    assert ran(compile_module(net, [ROWS]).report) == {}


def test_compiling_changes_neither_the_module_nor_the_state_of_torch(
    compile_module: Compile, net: torch.nn.Module
) -> None:
    before, state = copy.deepcopy(net.state_dict()), torch.random.get_rng_state()
    enabled = torch.is_grad_enabled()
    compile_module(net, [ROWS])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.is_grad_enabled() == enabled
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_the_default_device_of_torch_does_not_matter(compile_module: Compile, tmp_path: Path) -> None:
    """Models are traced and programs are loaded on the CPU. The default device of this test stands for a GPU."""

    class Shifts(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.tensor([1.0, 2.0], device=x.device)

    with torch.device("meta"):
        model = compile_module(Shifts().eval(), [Input((2, 2))])
        assert model(torch.zeros(2, 2, device="cpu")).tolist() == [[1, 2], [1, 2]]
        model.save(tmp_path / "shifts.pt2")
    exported = torch.export.load(tmp_path / "shifts.pt2")
    assert exported.module()(torch.zeros(2, 2)).tolist() == [[1, 2], [1, 2]]


def test_writing_into_an_output_does_not_change_the_model(compile_module: Compile) -> None:
    class Anchors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("anchors", torch.arange(4.0))
            self.other = torch.nn.Parameter(torch.arange(4.0))  # equal weights are stored in one file

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x * self.other, self.anchors, self.anchors.view(2, 2)

    model, x = compile_module(Anchors().eval(), [Input((4,))]), torch.ones(4)
    for result in model(x):
        result.mul_(10)
    for result_again, expected in zip(model(x), Anchors()(x), strict=True):
        torch.testing.assert_close(result_again, expected.detach())


def test_rejects_inputs_under_both_names(compile_module: Compile, net: torch.nn.Module) -> None:
    with pytest.raises(UsageError, match="both are given"):
        compile_module(net, [ROWS], arg_inputs=[ROWS])


def test_rejects_numpy_arrays_that_cannot_be_tensors(compile_module: Compile) -> None:
    model = compile_module(torch.nn.ReLU().eval(), [Input((2,))])
    assert model(np.array([-1, 1], dtype=">f4")).tolist() == [0, 1]
    arrays: list[Any] = [np.ma.masked_array(np.ones(2, np.float32), mask=True), np.array([{}, {}], dtype=object)]
    for array in arrays:
        with pytest.raises(CallRefused):
            model(array)


def test_other_weights_run_only_the_engine_step(compile_module: Compile, net: torch.nn.Module) -> None:
    compile_module(net, [ROWS])
    with torch.no_grad():
        net.first.weight.add_(0.25)
    model = compile_module(net, [ROWS])
    assert ran_after_the_trace(model.report) == {"engine": 1}
    x = torch.randn(3, 8)
    torch.testing.assert_close(model(x), net(x))


def test_a_list_for_each_profile_is_accepted(compile_module: Compile, net: torch.nn.Module) -> None:
    large = Input(min_shape=(32, 8), opt_shape=(64, 8), max_shape=(64, 8))
    model = compile_module(net, [[ROWS], [large]])
    assert [profile.name for profile in model.package.index.profiles] == ["0", "1"]
    for rows in (1, 16, 32, 64):
        torch.testing.assert_close(model(torch.ones(rows, 8)), net(torch.ones(rows, 8)))
    with pytest.raises(ValueError, match="no profile takes these shapes"):
        model(torch.ones(20, 8))


def test_a_program_of_torch_export_has_its_own_ranges(compile_module: Compile, net: torch.nn.Module) -> None:
    batch = torch.export.Dim("batch", min=2, max=12)
    exported = torch.export.export(net, (torch.ones(3, 8),), dynamic_shapes={"x": {0: batch}})
    model = compile_module(exported)
    (profile,) = model.package.index.profiles
    assert (profile.shapes[0].min, profile.shapes[0].opt, profile.shapes[0].max) == ((2, 8), (3, 8), (12, 8))
    torch.testing.assert_close(model(torch.ones(12, 8)), net(torch.ones(12, 8)))


def test_inputs_narrow_a_program_of_torch_export(compile_module: Compile, net: torch.nn.Module) -> None:
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(net, (torch.ones(3, 8),), dynamic_shapes={"x": {0: batch}})
    model = compile_module(exported, [ROWS])
    assert model.package.index.profiles[0].shapes[0].max == (16, 8)
    opt = compile_module(exported, [torch.zeros(5, 8)]).package.index.profiles[0].shapes[0]
    assert (opt.min, opt.opt, opt.max) == ((1, 8), (5, 8), (64, 8))


def test_several_profiles_of_a_program_of_torch_export(compile_module: Compile, net: torch.nn.Module) -> None:
    """Each static profile stays a separate profile. Their shapes do not become one range."""
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(net, (torch.ones(3, 8),), dynamic_shapes={"x": {0: batch}})
    model = compile_module(exported, [[Input((4, 8))], [Input((64, 8))]])
    assert [shape.opt for profile in model.package.index.profiles for shape in profile.shapes] == [(4, 8), (64, 8)]
    with pytest.raises(ValueError, match="no profile takes these shapes"):
        model(torch.ones(20, 8))


def test_keywords_of_a_program_of_torch_export_may_have_any_order(compile_module: Compile) -> None:
    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return x + a + b.sum()

    batch = torch.export.Dim("batch", min=2, max=8)
    x, named = torch.ones(4, 3), {"a": torch.ones(4, 3), "b": torch.ones(5, 3)}
    dynamic: dict[str, Any] = {"x": {0: batch}, "a": {0: batch}, "b": None}
    exported = torch.export.export(Sums(), (x,), named, dynamic_shapes=dynamic)
    rows = Input(min_shape=(2, 3), opt_shape=(4, 3), max_shape=(8, 3))
    for inputs, keywords in (([rows], {"b": Input((5, 3)), "a": rows}), ([x], {"b": named["b"], "a": named["a"]})):
        model = compile_module(exported, inputs, keywords)
        assert [entry.name for entry in model.package.index.inputs] == ["x", "a", "b"]
        assert model(torch.ones(8, 3), a=torch.ones(8, 3), b=torch.ones(5, 3)).tolist() == [[17] * 3] * 8


def test_the_trace_of_a_compiled_module_is_not_stored(
    program_cache: Path, net: torch.nn.Module, compile_module: Compile
) -> None:
    compile_module(net, [ROWS])
    stages = check.stats(LocalStore(program_cache)).records
    assert "lower" in stages and "trace" not in stages


def test_rejects_a_module_in_training_mode(compile_module: Compile, net: torch.nn.Module) -> None:
    with pytest.raises(SourceError, match="is in training mode") as caught:
        compile_module(net.train(), [ROWS])
    # the fixture `compile_module`, which calls `trtbuild.compile`, is in conftest.py
    assert (caught.value.file or "").endswith("conftest.py")


def test_rejects_a_target_that_the_toolchain_does_not_support(compile_module: Compile, net: torch.nn.Module) -> None:
    with pytest.raises(TargetUnsupported, match="is for SM 90, and tensorrt-rtx builds for SM"):
        compile_module(net, [ROWS], target=90, toolchain="tensorrt-rtx")


def test_rejects_a_function(compile_module: Compile) -> None:
    with pytest.raises(UsageError, match="a function cannot be compiled"):
        compile_module(lambda x: x, [ROWS])


def test_rejects_modules_that_pytorch_cannot_export(compile_module: Compile) -> None:
    net, x = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval(), torch.ones(4, 8)
    program = torch.export.export(net, (x,))
    with pytest.raises(UsageError, match=r"\.module\(\) of an exported program"):
        compile_module(program.module(), [ROWS])
    with torch.no_grad():
        assert torch.equal(compile_module(program)(x), net(x))  # as the hint of the error proposes


class Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


@pytest.mark.parametrize("options", [{}, {"dims": {"rows": ["x.0", "y.0"]}}])
def test_axes_that_the_module_makes_equal_are_one_dim(compile_module: Compile, options: dict[str, Any]) -> None:
    model = compile_module(Sum().eval(), [ROWS, ROWS], **options)
    torch.testing.assert_close(model(torch.ones(5, 8), torch.ones(5, 8)), torch.full((5, 8), 2.0))
    with pytest.raises(CallRefused, match=r"x\.0"):
        model(torch.ones(5, 8), torch.ones(4, 8))


def test_rejects_dims_with_other_ranges_that_the_module_makes_equal(compile_module: Compile) -> None:
    with pytest.raises(SourceError, match=r"y\.0 must always be as long as axis x\.0"):
        compile_module(Sum().eval(), [ROWS, Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(99, 8))])


def test_full_compilation_rejects_operators_that_stay_in_pytorch(compile_module: Compile, net: torch.nn.Module) -> None:
    with pytest.raises(ConversionRefused):
        compile_module(net, [ROWS], require_full_compilation=True, torch_executed_ops=["aten.relu"])


def test_without_a_home_directory_durations_are_in_a_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(_: int) -> None:
        raise KeyError("this user is not in the password database")

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(RuntimeError):
        Path("~").expanduser()
    directory = workspace._state_directory()
    assert directory.is_dir() and directory.parent == Path(tempfile.gettempdir())
    directory.rmdir()
