"""trtbuild finds the library of the lean runtime and checks its version. The builder copies the library into the plan.

TensorRT-RTX has no lean runtime, but its builder looks for one. So the tests give it a small library of the right name.
Each compilation runs in a new process, because a loaded library stays open.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.toolchain.libraries.test_mapped import compile_library
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.values.codec import encode

_NAME = "libnvinfer_lean.so.1"
#: Functions of the library, and the numbers that they return: together, they report the version 1.7.1.116.
_VERSION = ("getInferLibVersion", 10701), ("getInferLibBuildVersion", 116)
#: Functions by which the builder recognizes a lean runtime.
_RUNTIME = ("createLeanRuntime", 0), ("getForwardCompatibilityHelper", 0)

#: Gives TensorRT-RTX a lean library in `FLAVOURS`, and compiles the job of the request. Prints the error, or whether the
#: plan contains the file of the request.
_PROGRAM = """
import json, sys
from dataclasses import replace
from pathlib import Path
from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.values.codec import decode
from trtbuild.errors import TrtbuildError
from trtbuild.toolchain.compiling import compiler, lean_library
from trtbuild.toolchain.libraries.table import FLAVOURS

rtx = replace(FLAVOURS["tensorrt-rtx"], lean_library="libnvinfer_lean.so")
lean_library.FLAVOURS = {**FLAVOURS, "tensorrt-rtx": rtx}
request = json.load(sys.stdin)
sys.path[:0] = request["path"]
blobs = {name: bytes.fromhex(data) for name, data in request["blobs"].items()}
try:
    plan = bytes(compiler.compile_engine(decode(EngineJob, request["job"]), blobs.__getitem__).plan)
    print("file in plan:", request["file"] is not None and Path(request["file"]).read_bytes() in plan)
except TrtbuildError as error:
    print(f"{type(error).__name__}: {error}")
"""


def compile_output(
    job_and_blobs: Any, file: Path | None, path: str | None = None, library_path: str = "", **settings: bool
) -> str:
    """Compile a version-compatible engine with `_PROGRAM`, and return its output.

    `file` is the lean library that the plan should contain, `path` is a folder for ``sys.path``, and `library_path` is the
    value of LD_LIBRARY_PATH."""
    job = replace(job_and_blobs.job, settings=BuilderSettings(version_compatible=True, **settings))
    request = {
        "job": encode(job),
        "blobs": {name: data.hex() for name, data in job_and_blobs.blobs.items()},
        "path": [path] if path else [],
        "file": None if file is None else str(file),
    }
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps(request),
        env={"LD_LIBRARY_PATH": library_path} if library_path else {},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.parametrize("folder", ["tensorrt_lean_libs", "tensorrt_lean"])
def test_the_library_of_a_wheel_is_copied_into_the_plan(folder: str, mlp_job: Any, tmp_path: Path) -> None:
    file = compile_library(tmp_path / folder / _NAME, *_VERSION, *_RUNTIME)
    assert compile_output(mlp_job, file, path=str(tmp_path)) == "file in plan: True"


def test_the_library_that_the_loader_finds_is_copied_into_the_plan(mlp_job: Any, tmp_path: Path) -> None:
    file = compile_library(tmp_path / "anywhere" / _NAME, *_VERSION, *_RUNTIME)
    assert compile_output(mlp_job, file, library_path=str(file.parent)) == "file in plan: True"


def test_without_the_library_nothing_is_built(mlp_job: Any) -> None:
    version = mlp_job.job.toolchain_version
    assert compile_output(mlp_job, None) == (
        f"ToolchainMissing: builder.version_compatible puts the lean runtime of tensorrt-rtx {version} into the engine, "
        f"and {_NAME} was not found\n"
        f"  → pip install 'tensorrt-lean=={version}', or add the folder of {_NAME} to LD_LIBRARY_PATH, or set "
        "exclude_lean_runtime: true"
    )
    assert compile_output(mlp_job, None, exclude_lean_runtime=True) == "file in plan: False"


def test_a_library_of_another_version_is_refused(mlp_job: Any, tmp_path: Path) -> None:
    file = compile_library(tmp_path / "tensorrt_lean_libs" / _NAME, ("getInferLibVersion", 10600), *_RUNTIME)
    text = compile_output(mlp_job, file, path=str(tmp_path))
    version = mlp_job.job.toolchain_version
    assert text.startswith("EnvironmentFault: the engine must contain the lean runtime of tensorrt-rtx")
    assert f"but {file} is 1.6.0\n  → pip install 'tensorrt-lean=={version}'" in text


def test_a_file_that_cannot_be_opened_is_named(mlp_job: Any, tmp_path: Path) -> None:
    file = tmp_path / "tensorrt_lean_libs" / _NAME
    file.parent.mkdir()
    file.write_bytes(b"no library")
    text = compile_output(mlp_job, file, path=str(tmp_path))
    assert text.startswith("ToolchainMissing: ") and f"{file} cannot be opened: " in text
