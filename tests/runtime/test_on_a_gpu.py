"""A package of engines on a GPU, from `load` to results, without torch. Fakes replace TensorRT 8.6 and CUDA."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trtbuild
from tests.runtime.fake_tensorrt.samples import SAMPLES
from tests.runtime.rigs import Rig, rig
from trtbuild.driver.packages import engines as engines_of_packages
from trtbuild.driver.packages import machine
from trtbuild.errors import CallRefused, EngineError, PackageError
from trtbuild.runtime.calls.loaded import Loaded
from trtbuild.runtime.engines.engine_set import EngineSet
from trtbuild.toolchain.libraries import devices, table

__all__ = ["rig"]

ROWS = {"dtype": "float32", "shape": [["sym", 0], 4]}


def _range(low: int, mid: int, high: int) -> dict[str, list[int]]:
    return {"min": [low, 4], "opt": [mid, 4], "max": [high, 4]}


def write_package(root: Path, plans: Mapping[str, bytes], **target: Any) -> None:
    """Write a package of the engines `first` and `second`. `second` reads the result of `first`.

    `plans` maps an engine's name to its plan. The model returns the results of both engines, and the input. `target` has
    more fields for the package's target.
    """
    files = {}
    for name, plan in plans.items():
        path = root / f"engines/hopper/{name}.plan"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(plan)
        files[f"engines/hopper/{name}.plan"] = {"sha256": hashlib.sha256(plan).hexdigest(), "size": len(plan)}
    parts = [
        {"name": "first", "inputs": [["input:0", ROWS]]},
        {"name": "second", "inputs": [["first:0", ROWS]]},
    ]
    common: dict[str, Any] = {
        "kind": "tensorrt",
        "graph": "0" * 64,
        "weights": [],
        "outputs": [ROWS],
        "calls": [],
        "reasons": {},
    }
    index = {
        "schema": "trtbuild.package/1",
        "model": "rows",
        "inputs": [{"name": "x", "keyword": False, **ROWS}],
        "outputs": [{"name": name, **ROWS} for name in ("last", "middle", "same")],
        "output_tree": {
            "kind": "dict",
            "keys": ["last", "middle", "same"],
            "items": [{"kind": "tensor", "index": number} for number in range(3)],
        },
        "dims": [{"name": "batch", "min": 1, "max": 32, "multiple_of": 1}],
        "profiles": [
            {"name": "small", "shapes": {"x": _range(1, 2, 8)}},
            {"name": "large", "shapes": {"x": _range(8, 16, 32)}},
        ],
        "precision": "float32",
        "targets": {
            "hopper": {
                "sm": 90,
                "toolchain": "tensorrt",
                "version": "8.6.1",
                "compatibility": "exact",
                "platform": table.host_platform(),
                "partitions": {
                    "schema": "trtbuild.partitions/1",
                    "partitions": [{**common, **part} for part in parts],
                    "outputs": ["second:0", "first:0", "input:0"],
                    "programs": {},
                },
                "engines": {name: f"engines/hopper/{name}.plan" for name in plans},
                **target,
            }
        },
        "weights": {},
        "files": files,
    }
    (root / "index.json").write_text(json.dumps(index))


Load = Callable[..., Loaded]


@pytest.fixture
def load(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """A function that calls `write_package`, and loads the package on the fake GPU. torch cannot be imported."""

    def write_and_load(**plans: bytes) -> Loaded:
        write_package(tmp_path / "rows", plans or {name: rig.trt.plan("affine") for name in ("first", "second")})
        return trtbuild.load(tmp_path / "rows")

    monkeypatch.setattr(devices, "device_sms", lambda: (90,))
    monkeypatch.setattr(table, "installed_version", lambda name: "8.6.1" if name == "tensorrt" else None)
    monkeypatch.setattr(engines_of_packages, "load_library", lambda library: rig.library)
    monkeypatch.setattr(engines_of_packages, "choose_memory", lambda ordinal: rig.memory)
    monkeypatch.setattr(engines_of_packages, "find_gpu", lambda ordinal: None)
    monkeypatch.setattr(machine, "_current_gpu_number", lambda: 0)
    monkeypatch.setitem(sys.modules, "torch", None)
    return write_and_load


def test_engines_run_at_any_shape_of_any_profile(load: Load, rig: Rig) -> None:
    module = load().module()
    assert repr(module) == "<trtbuild 'rows' on cuda:0: engines of target 'hopper'>" and not module.is_reference
    for rows in (1, 8, 3, 32, 9, 3):
        value, data = rig.values(rows, 4, stream=rig.stream())
        results = module(value)
        np.testing.assert_array_equal(results["last"].numpy(), (data * 2 + 1) * 2 + 1)
        np.testing.assert_array_equal(results["middle"].numpy(), data * 2 + 1)
        np.testing.assert_array_equal(results["same"].numpy(), data)


def test_rejects_invalid_inputs(load: Load, rig: Rig) -> None:
    module = load().module()
    value, data = rig.values(3, 4, stream=rig.stream())
    for argument, text in (
        (data, "in host memory"),
        (rig.values(33, 4, stream=rig.stream())[0], "dim 'batch' (axis 0) is 33, and allowed is 8 to 32"),
        (rig.values(3, 5, stream=rig.stream())[0], "axis 1 is 5, and must be 4"),
        (rig.array(np.zeros((3, 4), np.int32), rig.stream()), "has dtype int32, but must have float32"),
        (3.0, "is a float, not an array"),
    ):
        with pytest.raises(CallRefused) as raised:
            module(argument)
        assert text in str(raised.value)
    np.testing.assert_array_equal(module(x=value)["middle"].numpy(), data * 2 + 1)


def test_several_threads_can_call_one_module(load: Load, rig: Rig) -> None:
    module = load().module()
    wrong: list[int] = []

    def work(number: int) -> None:
        stream = rig.stream()
        for _ in range(3):
            value, data = rig.values(number + 1, 4, stream=stream, start=number)
            if not np.array_equal(module(value)["last"].numpy(), data * 4 + 3):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_warmup_runs_every_profile(load: Load, rig: Rig) -> None:
    loaded = load()
    loaded.warmup()
    assert rig.trt.calls["execute_async_v3"] == 2 * 2 * 3  # 2 engines, 2 profiles, 3 shapes: opt, min and max
    value, data = rig.values(32, 4, stream=rig.stream())
    np.testing.assert_array_equal(loaded.module()(value)["middle"].numpy(), data * 2 + 1)


@pytest.mark.parametrize("way", ["a call", "a call with CUDA graphs", "a warm-up"])
def test_an_engine_never_gets_a_shape_beyond_its_own_profile(load: Load, rig: Rig, way: str) -> None:
    """TensorRT accepts such a shape, but a later run fails, and a later call of ``infer_shapes`` ends the process."""
    narrow = ((((1, 4), (1, 4), (1, 4)),), SAMPLES["affine"].profiles[1])
    rig.trt.samples["narrow"] = replace(SAMPLES["affine"], profiles=narrow)
    loaded = load(first=rig.trt.plan("affine"), second=rig.trt.plan("narrow"))
    stream = rig.stream()

    def call(rows: int, **options: bool) -> Any:
        return loaded.module(**options)(rig.values(rows, 4, stream=stream)[0])

    ways = {
        "a call": lambda: call(2),
        "a call with CUDA graphs": lambda: call(2, cuda_graphs=True),
        "a warm-up": loaded.warmup,
    }
    with pytest.raises(
        CallRefused, match=r"input 0 of second \(first:0\) has shape \[2, 4\], but profile 0 of its engine"
    ):
        ways[way]()
    np.testing.assert_array_equal(call(1)["last"].numpy(), np.arange(4, dtype=np.float32).reshape(1, 4) * 4 + 3)


def test_rejects_an_engine_that_lacks_a_profile(load: Load, rig: Rig) -> None:
    loaded = load(first=rig.trt.plan("affine"), second=rig.trt.plan("empty"))
    with pytest.raises(EngineError, match="the engine has 1 optimization profile, but not number 1"):
        loaded.module()(rig.values(32, 4, stream=rig.stream())[0])


def test_runs_with_cuda_graphs(load: Load, rig: Rig) -> None:
    loaded = load()
    plain, captured = loaded.module(), loaded.module(cuda_graphs=True)
    assert plain is not captured and loaded.module() is plain
    for start in (0, 5):
        value, data = rig.values(4, 4, stream=rig.stream(), start=start)
        np.testing.assert_array_equal(captured(value)["last"].numpy(), data * 4 + 3)


def test_a_closed_package_cannot_be_called(load: Load, rig: Rig) -> None:
    value, _ = rig.values(3, 4, stream=rig.stream())
    with load() as loaded:
        module = loaded.module()
        module(value)["last"].numpy()
    with pytest.raises(PackageError, match="is closed"):
        module(value)


def test_rejects_an_invalid_plan(load: Load, rig: Rig) -> None:
    loaded = load(first=rig.trt.plan("affine"), second=b"not a plan" * 100)
    with pytest.raises(EngineError):
        loaded.module()


def test_the_error_of_an_invalid_plan_is_not_hidden_by_an_error_of_close(
    load: Load, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[EngineSet] = []

    def fail(self: EngineSet) -> None:
        closed.append(self)
        raise EngineError("the kernels cannot be stored")

    monkeypatch.setattr(EngineSet, "close", fail)
    loaded = load(first=rig.trt.plan("affine"), second=b"not a plan" * 100)
    with pytest.raises(EngineError, match="refuses the engine"):
        loaded.module()
    assert len(closed) == 1
