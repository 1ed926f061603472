"""`compile_engine` compiles real engines with TensorRT-RTX, without a GPU."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorrt_rtx
from onnx import helper as h

from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import ShapeRange, Target
from trtbuild.core.values.codec import decode, encode
from trtbuild.errors import EnvironmentFault, ToolchainError
from trtbuild.toolchain.compiling.compiler import CompiledEngine, compile_engine, largest_sizes

_ROWS = ShapeRange((1, 8), (4, 8), (16, 8))


def _digest(compiled: CompiledEngine) -> str:
    return hashlib.sha256(compiled.plan).hexdigest()


def test_builds_for_each_sm_without_a_gpu(mlp_job: Any) -> None:
    plans = {
        sm: compile_engine(replace(mlp_job.job, target=Target("t", sm)), mlp_job.read) for sm in (80, 86, 89, 120, 121)
    }
    assert len({_digest(compiled) for compiled in plans.values()}) == 5
    assert all(compiled.plan.nbytes > 5000 for compiled in plans.values())


def test_equal_jobs_give_equal_bytes_sequentially_and_in_threads(mlp_job: Any) -> None:
    first = _digest(compile_engine(mlp_job.job, mlp_job.read))
    compile_engine(replace(mlp_job.job, target=Target("t", 120)), mlp_job.read)
    assert _digest(compile_engine(mlp_job.job, mlp_job.read)) == first
    digests: list[str] = []
    threads = [
        threading.Thread(target=lambda: digests.append(_digest(compile_engine(mlp_job.job, mlp_job.read))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert digests == [first] * 4


#: Compiles the job from standard input. Prints the digest of the plan, and which of four heavy modules were imported.
_SCRIPT = """
import hashlib, json, sys
from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.values.codec import decode
from trtbuild.toolchain.compiling.compiler import compile_engine
request = json.load(sys.stdin)
blobs = {name: bytes.fromhex(data) for name, data in request["blobs"].items()}
print(hashlib.sha256(compile_engine(decode(EngineJob, request["job"]), blobs.__getitem__).plan).hexdigest())
print([name for name in ("torch", "onnx", "pydantic", "click") if name in sys.modules])
"""


def test_another_process_builds_the_same_bytes_and_needs_neither_torch_nor_onnx(mlp_job: Any) -> None:
    request = {"job": encode(mlp_job.job), "blobs": {name: data.hex() for name, data in mlp_job.blobs.items()}}
    result = subprocess.run(
        [sys.executable, "-c", _SCRIPT], input=json.dumps(request), capture_output=True, text=True, check=True
    )
    assert result.stdout.split("\n")[:2] == [_digest(compile_engine(mlp_job.job, mlp_job.read)), "[]"]


def test_the_plan_contains_the_weights_and_each_blob_is_read_once(make_job: Any, make_mlp: Any, mlp_job: Any) -> None:
    other = make_job(*make_mlp(seed=1), *mlp_job.job.profiles)
    assert other.job.onnx == mlp_job.job.onnx
    read_blobs: list[str] = []

    def read(sha256: str) -> bytes:
        read_blobs.append(sha256)
        return other.read(sha256)

    compiled = compile_engine(other.job, read)
    assert _digest(compiled) != _digest(compile_engine(mlp_job.job, mlp_job.read))
    assert sorted(read_blobs) == sorted({"onnx", *(weight.sha256 for weight in other.job.weights)})
    assert other.blobs[other.job.weights[0].sha256] in bytes(compiled.plan)


def test_does_not_read_weights_that_the_model_does_not_use(mlp_job: Any) -> None:
    with_unused_weight = replace(mlp_job.job, weights=(*mlp_job.job.weights, Weight("float32", (3,), "nowhere")))
    assert _digest(compile_engine(with_unused_weight, mlp_job.read)) == _digest(
        compile_engine(mlp_job.job, mlp_job.read)
    )


def test_weights_with_equal_bytes_may_have_different_shapes(make_model: Any, make_job: Any) -> None:
    weights = [np.zeros(8, np.float32), np.zeros((1, 8), np.float32), np.zeros(4, np.int64)]
    nodes = [
        h.make_node("Add", ["i0", "w0"], ["v0"]),
        h.make_node("Add", ["v0", "w1"], ["o0"]),
        h.make_node("Add", ["i1", "w2"], ["o1"]),
    ]
    model = make_model(nodes, [("FLOAT", ["d0", 8]), ("INT64", [4])], ["FLOAT", "INT64"], weights)
    zeros = make_job(model, weights, (_ROWS, ShapeRange((4,), (4,), (4,))))
    assert len({weight.sha256 for weight in zeros.job.weights}) == 1
    assert compile_engine(zeros.job, zeros.read).plan.nbytes


def test_compiles_half_precisions_bools_integers_and_scalars(make_model: Any, make_job: Any) -> None:
    weights = [np.ones((8, 8), np.float16), np.ones((8, 8), np.uint16)]
    nodes = [
        h.make_node("MatMul", ["i0", "w0"], ["o0"]),
        h.make_node("MatMul", ["i1", "w1"], ["o1"]),
        h.make_node("Not", ["i2"], ["o2"]),
        h.make_node("Add", ["i3", "i4"], ["o3"]),
    ]
    inputs = [("FLOAT16", ["d0", 8]), ("BFLOAT16", ["d0", 8]), ("BOOL", ["d0"]), ("INT64", ["d0"]), ("INT64", [])]
    model = make_model(
        nodes, inputs, ["FLOAT16", "BFLOAT16", "BOOL", "INT64"], weights, weight_types=["FLOAT16", "BFLOAT16"]
    )
    row, scalar = ShapeRange((1,), (4,), (16,)), ShapeRange((), (), ())
    typed = make_job(model, weights, (_ROWS, _ROWS, row, row, scalar))
    layers = json.loads(compile_engine(typed.job, typed.read).layers)
    assert [entry["dtype"] for entry in layers["inputs"]] == ["half", "bf16", "bool", "int64", "int64"]
    assert layers["inputs"][4]["shape"] == []


def test_the_plan_depends_on_the_profiles_and_their_order(mlp_job: Any) -> None:
    small = ShapeRange((1, 8), (1, 8), (2, 8))
    (wide,) = mlp_job.job.profiles[0]
    plans = {
        _digest(compile_engine(replace(mlp_job.job, profiles=profiles), mlp_job.read))
        for profiles in (((wide,),), ((small,),), ((small,), (wide,)), ((wide,), (small,)))
    }
    assert len(plans) == 4


def test_largest_sizes_are_those_of_all_profiles(mlp_job: Any) -> None:
    small, large = ShapeRange((1, 4), (2, 4), (3, 4)), ShapeRange((1, 4), (2, 4), (30, 4))
    scalar = ShapeRange((), (), ())
    job = mlp_job.with_changes(profiles=((large, scalar), (small, scalar))).job
    assert largest_sizes(job) == {"i0": 30, "i1": 0}


def test_only_a_compatibility_with_other_sms_changes_the_plan(mlp_job: Any) -> None:
    exact = compile_engine(mlp_job.job, mlp_job.read)
    wide = compile_engine(replace(mlp_job.job, target=Target("t", 89, compatibility="ampere_plus")), mlp_job.read)
    assert _digest(exact) != _digest(wide)
    same_capability = replace(mlp_job.job, target=Target("t", 89, compatibility="same_compute_capability"))
    assert _digest(exact) == _digest(compile_engine(same_capability, mlp_job.read))


#: Setting → a value other than the default, and whether this value changes the bytes of a plan (TensorRT-RTX 1.7.1).
_CHANGED: dict[str, tuple[Any, bool]] = {
    "optimization_level": (5, False),
    "workspace": (1 << 28, True),
    "max_aux_streams": (0, False),
    "tiling_optimization_level": ("full", False),
    "l2_limit_for_tiling": (1 << 20, False),
    "max_num_tactics": (3, False),
    "avg_timing_iterations": (4, False),
    "tf32": (False, True),
    "sparse_weights": (True, False),
    "strict_nans": (True, False),
    "weight_streaming": (True, True),
    "distributive_independence": (True, False),
    "direct_io": (True, False),
    "require_user_allocation": (True, True),
    "monitor_memory": (True, False),
    "profiling_verbosity": ("none", True),
}


@pytest.mark.parametrize("name", _CHANGED)
def test_accepts_each_setting_and_the_plan_changes_for_those_that_are_marked_so(name: str, mlp_job: Any) -> None:
    value, changes_plan = _CHANGED[name]
    settings = replace(BuilderSettings(), **{name: value})
    compiled = compile_engine(replace(mlp_job.job, settings=settings), mlp_job.read)
    assert (_digest(compiled) != _digest(compile_engine(mlp_job.job, mlp_job.read))) == changes_plan


def test_compiles_a_version_compatible_plan_without_the_lean_runtime(mlp_job: Any) -> None:
    settings = BuilderSettings(version_compatible=True, exclude_lean_runtime=True)
    assert compile_engine(replace(mlp_job.job, settings=settings), mlp_job.read).plan.nbytes


def test_a_large_workspace_does_not_change_the_plan(mlp_job: Any) -> None:
    job_with_workspace = replace(mlp_job.job, settings=BuilderSettings(workspace=64 << 30))
    assert _digest(compile_engine(job_with_workspace, mlp_job.read)) == _digest(
        compile_engine(mlp_job.job, mlp_job.read)
    )


def test_rejects_float32_on_turing_with_a_hint(mlp_job: Any, make_job: Any, make_mlp: Any) -> None:
    turing = Target("turing", 75)
    with pytest.raises(ToolchainError, match="FP32 GEMM is not supported") as raised:
        compile_engine(replace(mlp_job.job, target=turing), mlp_job.read)
    assert "precision: float16" in str(raised.value)
    assert raised.value.log
    half = make_job(*make_mlp(dtype="float16"), *mlp_job.job.profiles)
    assert compile_engine(replace(half.job, target=turing), half.read).plan.nbytes


def test_rejects_a_flag_that_the_library_rejects(mlp_job: Any) -> None:
    settings = BuilderSettings(exclude_lean_runtime=True)
    with pytest.raises(ToolchainError, match=r"does not take builder\.exclude_lean_runtime"):
        compile_engine(replace(mlp_job.job, settings=settings), mlp_job.read)


def test_rejects_another_version_than_the_job_names(mlp_job: Any) -> None:
    with pytest.raises(EnvironmentFault, match=r"built by tensorrt-rtx 1\.5\.0"):
        compile_engine(replace(mlp_job.job, toolchain_version="1.5.0"), mlp_job.read)


def test_rejects_an_empty_plan(mlp_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT 8.6.0 returns an empty plan if it cannot put the lean runtime into a version-compatible plan."""
    monkeypatch.setattr(tensorrt_rtx.Builder, "build_serialized_network", lambda *_: b"")
    with pytest.raises(ToolchainError, match="cannot build for SM 89: the plan is empty"):
        compile_engine(mlp_job.job, mlp_job.read)


def test_rejects_weights_of_the_wrong_size(mlp_job: Any) -> None:
    with pytest.raises(ToolchainError, match="weight w0 has 256 bytes; 4 were given"):
        compile_engine(mlp_job.job, {**mlp_job.blobs, mlp_job.job.weights[0].sha256: b"abcd"}.__getitem__)


def test_rejects_profiles_that_do_not_fit(mlp_job: Any) -> None:
    wrong = ShapeRange((1, 9), (4, 9), (16, 9))
    with pytest.raises(ToolchainError, match=r"i0|profile"):
        compile_engine(replace(mlp_job.job, profiles=((wrong,),)), mlp_job.read)
    with pytest.raises(ToolchainError, match="profile 0 has 2 inputs, the network 1"):
        compile_engine(replace(mlp_job.job, profiles=((wrong, wrong),)), mlp_job.read)
    with pytest.raises(ToolchainError):
        compile_engine(replace(mlp_job.job, profiles=()), mlp_job.read)


def test_names_the_node_that_the_parser_rejects(make_model: Any, make_job: Any) -> None:
    determinant = make_job(make_model([h.make_node("Det", ["i0"], ["o0"])], [("FLOAT", [4, 4])], ["FLOAT"], []), [], ())
    with pytest.raises(ToolchainError, match=r"n0 \(Det: UNSUPPORTED_NODE"):
        compile_engine(determinant.job, determinant.read)


def test_rejects_float64_that_the_parser_would_convert_to_float32(make_model: Any, make_job: Any) -> None:
    model = make_model([h.make_node("Neg", ["i0"], ["o0"])], [("DOUBLE", [4])], ["DOUBLE"], [])
    doubles = make_job(model, [], (ShapeRange((4,), (4,), (4,)),))
    with pytest.raises(ToolchainError, match="float64 is not a type that an engine computes in"):
        compile_engine(doubles.job, doubles.read)


def test_can_compile_after_errors(mlp_job: Any) -> None:
    for _ in range(5):
        with pytest.raises(ToolchainError):
            compile_engine(replace(mlp_job.job, profiles=()), mlp_job.read)
        with pytest.raises(ToolchainError):
            compile_engine(replace(mlp_job.job, target=Target("t", 75)), mlp_job.read)
    assert compile_engine(mlp_job.job, mlp_job.read).plan.nbytes


def test_returns_layers_and_statistics(mlp_job: Any) -> None:
    compiled = compile_engine(decode(EngineJob, json.loads(json.dumps(encode(mlp_job.job)))), mlp_job.read)
    layers = json.loads(compiled.layers)
    assert layers["inputs"] == [{"name": "i0", "dtype": "float", "shape": [-1, 8]}]
    assert layers["outputs"] == [{"name": "o0", "dtype": "float", "shape": [-1, 8]}]
    assert {"n0", "n2", "n3"} <= {layer["name"] for layer in layers["layers"]}
    assert compiled.statistics["plan_bytes"] == compiled.plan.nbytes
    assert compiled.statistics["warnings"] == []
    assert all(isinstance(compiled.statistics[name], float) for name in ("load_s", "read_s", "parse_s", "build_s"))
    assert isinstance(compiled.statistics["peak_rss_bytes"], int)
