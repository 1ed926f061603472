"""A loaded package has the signature, results and output structure of the original module, and rejects wrong calls."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import trtbuild
from tests.runtime.conftest import Built, Inputs
from tests.runtime.fake_cuda import FakeDriver
from tests.runtime.fake_gpu import FakeGpu
from trtbuild.core.model.state import StateTensor
from trtbuild.errors import CallRefused, PackageError
from trtbuild.runtime.calls.module import Runner, as_torch_module
from trtbuild.runtime.calls.state import State, StateLayout
from trtbuild.runtime.calls.torch_arrays import HostArrayOperations
from trtbuild.runtime.memory.cuda_memory import CudaMemory


@pytest.fixture
def module(built: Built) -> Any:
    return trtbuild.load(built.package, device="cpu").module()


def test_returns_the_same_results_as_the_original_module(built: Built, module: Any, inputs: Inputs) -> None:
    eager = built.eager()
    for sizes in ((1, 8, 8), (2, 8, 9), (4, 16, 16), (16, 64, 64), (5, 12, 33)):
        image, scale = inputs(*sizes)
        results, expected = module(image, scale=scale), eager(image, scale=scale)
        assert list(results) == list(expected)
        torch.testing.assert_close(results["found"][0], expected["found"].values)
        torch.testing.assert_close(results["found"].total, expected["found"].total)
        torch.testing.assert_close(results["list"], expected["list"])
        assert results["image"] is image and results["nothing"] is None and results["kind"] == "net"


def test_repr_says_that_no_engine_runs(module: Any) -> None:
    assert module.is_reference and module.device == torch.device("cpu")
    assert "'net' on the CPU: the reference program in PyTorch, no engine" in repr(module)


def test_runs_without_the_models_source(built: Built, module: Any, inputs: Inputs) -> None:
    """A named tuple has its original class only if the model's module is loaded. The runtime imports no module."""
    assert "net_of_the_tests" not in sys.modules
    image, scale = inputs()
    fields = module(image, scale=scale)["found"]
    assert type(fields).__name__ == "Fields" and fields.keys() == ("values", "total")
    values, total = fields
    assert values is fields.values is fields["values"] is fields[0] and total is fields.total
    model_module = type(sys)("net_of_the_tests")
    model_module.Found = original = type(built.eager()(image, scale=scale)["found"])  # type: ignore[attr-defined]
    sys.modules["net_of_the_tests"] = model_module
    try:
        assert type(module(image, scale=scale)["found"]) is original
    finally:
        del sys.modules["net_of_the_tests"]


def test_accepts_tensors_by_position_and_by_name(module: Any, inputs: Inputs) -> None:
    image, scale = inputs()
    mixed, by_name = module(image, scale=scale), module(scale=scale, image=image)
    assert torch.equal(mixed["list"][0], by_name["list"][0])


def test_accepts_an_input_that_is_not_contiguous(built: Built, module: Any, inputs: Inputs) -> None:
    image, scale = inputs(2, 8, 8)
    transposed = image.transpose(2, 3)
    assert not transposed.is_contiguous()
    expected = built.eager()(transposed, scale=scale)
    torch.testing.assert_close(module(transposed, scale=scale)["list"], expected["list"])


def test_uses_numpy_arrays_without_a_copy(module: Any, inputs: Inputs) -> None:
    image, scale = inputs()
    results = module(image.numpy(), scale=scale.numpy())
    assert torch.equal(results["list"][0], module(image, scale=scale)["list"][0])
    assert results["image"].data_ptr() == image.data_ptr()
    frozen = np.array(image.numpy())
    frozen.setflags(write=False)  # the call copies a read-only array
    assert torch.equal(module(frozen, scale=scale)["list"][0], results["list"][0])


def test_refuses_an_array_on_a_gpu(module: Any, inputs: Inputs) -> None:
    """Without CUDA, ``torch.from_dlpack`` raises an AssertionError for an array of CuPy."""

    class GpuArray:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 1

        def __dlpack__(self, **_: object) -> object:
            raise AssertionError("the array is not read")

    with pytest.raises(CallRefused, match="input 'image' is on cuda:1, but the model runs on cpu"):
        module(GpuArray(), scale=inputs()[1])


def test_copies_a_reversed_numpy_array(module: Any, inputs: Inputs) -> None:
    """``torch.from_dlpack`` would end the process. Such an array is, for example, a picture whose colours are swapped."""
    image, scale = inputs()
    swapped = image.numpy()[:, ::-1]
    results = module(swapped, scale=scale)
    assert torch.equal(results["list"][0], module(image.flip(1), scale=scale)["list"][0])
    assert torch.equal(results["image"], image.flip(1))


def test_results_do_not_require_gradients(module: Any, inputs: Inputs) -> None:
    image, scale = inputs()
    assert not module(image.requires_grad_(), scale=scale)["list"][0].requires_grad


BadCall = Callable[[Any, torch.Tensor, torch.Tensor], Any]

REFUSED: dict[str, tuple[BadCall, str]] = {
    "a missing keyword": (lambda m, x, s: m(x), "input 'scale' is missing"),
    "a missing tensor": (lambda m, x, s: m(scale=s), "input 'image' is missing"),
    "both missing": (lambda m, x, s: m(), "inputs 'image', 'scale' are missing"),
    "an extra keyword": (lambda m, x, s: m(x, scale=s, sclae=s), "no input 'sclae'"),
    "an extra tensor": (lambda m, x, s: m(x, s), "2 positional tensors were passed, but the model takes 1"),
    "given twice": (lambda m, x, s: m(x, image=x, scale=s), "'image' was passed by position and by name"),
    "not a tensor": (lambda m, x, s: m(x, scale=2.0), "input 'scale' is a float, but must be a tensor"),
    "None": (lambda m, x, s: m(None, scale=s), "input 'image' is None"),
    "a dtype": (lambda m, x, s: m(x.half(), scale=s), "input 'image' has dtype float16, but must have float32"),
    "a rank": (lambda m, x, s: m(x[0], scale=s), "has the shape (3, 8, 9), but must have 4 axes"),
    "a static size": (lambda m, x, s: m(x[:, :2], scale=s), "input 'image', axis 1 is 2, and must be 3"),
    "a device": (lambda m, x, s: m(x.to("meta"), scale=s), "input 'image' is on meta, but the model runs on cpu"),
    "two sizes of one dim": (lambda m, x, s: m(x, scale=s[:1]), "dim 'batch' is 2 in image.0 and 1 in scale.0"),
    "not a multiple": (
        lambda m, x, s: m(torch.zeros(2, 3, 10, 8), scale=s),
        "input 'image', dim 'height' (axis 2) is 10, and must be a multiple of 4",
    ),
    "out of all ranges": (
        lambda m, x, s: m(torch.zeros(2, 3, 8, 65), scale=s),
        "small: input 'image', dim 'width' (axis 3) is 65, and allowed is 8 to 16",
    ),
    "too small": (
        lambda m, x, s: m(torch.zeros(2, 3, 4, 8), scale=s),
        "large: input 'image', dim 'height' (axis 2) is 4, and allowed is 8 to 64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rejects_a_wrong_call(case: str, module: Any, inputs: Inputs) -> None:
    call, text = REFUSED[case]
    image, scale = inputs()
    for _ in range(2):  # before the second round there was a correct call, whose checks may be cached
        with pytest.raises(CallRefused) as raised:
            call(module, image, scale)
        assert text in str(raised.value) and raised.value.hint
        module(image, scale=scale)
    assert isinstance(raised.value, ValueError)


def test_several_threads_can_call_one_module(built: Built, module: Any, inputs: Inputs) -> None:
    eager = built.eager()
    calls = [inputs(batch, 8, 8 + batch) for batch in range(1, 9)]
    expected = [eager(image, scale=scale)["list"][0] for image, scale in calls]
    wrong: list[int] = []

    def work(number: int) -> None:
        image, scale = calls[number]
        for _ in range(10):
            if not torch.allclose(module(image, scale=scale)["list"][0], expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_cannot_be_moved_to_another_device(module: Any) -> None:
    assert module.cpu() is module.to("cpu") is module.eval() is module
    for move in (lambda: module.cuda(), lambda: module.to("cuda:1"), lambda: module.to(torch.float16)):
        with pytest.raises(PackageError, match="cannot be moved"):
            move()
    assert not list(module.parameters()) and not module.state_dict()


def test_pickling_is_an_error_that_names_the_alternative(module: Any, tmp_path: Path) -> None:
    for dump in (lambda: pickle.dumps(module), lambda: torch.save({"inner": module}, tmp_path / "m.pt")):
        with pytest.raises(PackageError, match="cannot be pickled") as caught:
            dump()
        assert "save(PATH)" in (caught.value.hint or "")
    assert copy.copy(module) is copy.deepcopy(module) is module


def test_can_be_a_part_of_another_module(module: Any, inputs: Inputs) -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            self.outer = torch.nn.Linear(4, 1)

        def forward(self, image: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return self.outer(self.inner(image, scale=scale)["list"][0])  # type: ignore[no-any-return]

    image, scale = inputs()
    result = Outer().train()(image, scale)
    result.sum().backward()
    assert result.shape == (2, 1)


def test_a_call_runs_the_hooks_of_torch(module: Any, inputs: Inputs) -> None:
    image, scale = inputs()
    calls: list[str] = []
    handles = [
        module.register_forward_hook(lambda *_: calls.append("after")),
        module.register_forward_pre_hook(lambda *_: calls.append("before")),
        torch.nn.modules.module.register_module_forward_hook(lambda *_: calls.append("global")),
    ]
    module(image, scale=scale)
    for handle in handles:
        handle.remove()
    module(image, scale=scale)
    assert calls == ["before", "global", "after"]


def test_a_closed_package_cannot_be_called(built: Built, inputs: Inputs) -> None:
    image, scale = inputs()
    with trtbuild.load(built.package, device="cpu") as loaded:
        module = loaded.module()
        module(image, scale=scale)
    for use in (lambda: module(image, scale=scale), loaded.module):
        with pytest.raises(PackageError, match="is closed"):
            use()


def test_a_session_of_a_closed_package_cannot_be_called(built: Built, inputs: Inputs) -> None:
    image, scale = inputs()
    with trtbuild.load(built.package, device="cpu") as loaded:
        runner = loaded.runner()
        layout = StateLayout("net", (), (), len(runner.index.outputs), frozenset(), (), has_views=False)
        runner._state = State(layout, runner._arrays, None)  # the model has no buffers, so its state is empty
        session = runner.session().session()
        session(image, scale=scale)
    with pytest.raises(PackageError, match="is closed"):
        session(image, scale=scale)


def test_a_deep_copy_has_its_own_state() -> None:
    arrays = HostArrayOperations()
    state = (StateTensor("cache", 0, 0),)
    index: Any = SimpleNamespace(model="net", inputs=(), state=state, output_tree={"kind": "none"})
    layout = StateLayout("net", state, (torch.zeros(2),), 0, frozenset(), (), has_views=False)
    stitched: Any = SimpleNamespace(parts={}, is_one_part=True)
    module = as_torch_module(Runner(index, stitched, arrays, None, None, State(layout, arrays, None)))
    module.set_state({"cache": torch.ones(2)})
    deep, shallow = copy.deepcopy(module), copy.copy(module)
    module.set_state({"cache": torch.full((2,), 2.0)})
    assert [copied.get_state()["cache"].tolist() for copied in (deep, shallow)] == [[1, 1], [2, 2]]


def test_a_state_does_not_require_gradients() -> None:
    arrays = HostArrayOperations()
    layout = StateLayout("net", (StateTensor("h", 0, 0),), (torch.zeros(2),), 0, frozenset(), (), has_views=False)
    state = State(layout, arrays, None)
    state.set({"h": torch.ones(2, requires_grad=True) * 2}, 0)
    assert not state.get(0)["h"].requires_grad


def test_set_state_releases_arrays_of_other_libraries_after_they_are_copied() -> None:
    gpu = FakeGpu()
    memory = CudaMemory(FakeDriver(gpu), 0)
    with memory.on_device():
        stream = memory.stream()
        first_value = memory.zeros((2,), "float32", stream)
        value = memory.zeros((2,), "float32", stream)
    adopted = type("Adopted", (), {"__cuda_array_interface__": value.__cuda_array_interface__})()
    layout = StateLayout("net", (StateTensor("cache", 0, 0),), (first_value,), 0, frozenset(), (), has_views=False)
    runner = object.__new__(Runner)  # set_state uses only the two attributes below
    runner._memory, runner._state = memory, State(layout, memory, None)
    alive = weakref.ref(adopted)
    runner.set_state({"cache": adopted})
    del adopted
    memory.synchronize(stream)
    memory._adopted_arrays.release_finished()
    assert alive() is None
