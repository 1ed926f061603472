"""Old bytecode, shadowed modules, uncacheable traces, custom operators, and files that change during a trace."""

from __future__ import annotations

import hashlib
import os
import py_compile
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.programs import program
from trtbuild.core.model.spec import Source
from trtbuild.stages.trace.discovery.operators import Operators
from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.user_code.owners import FileOwners

MODEL = """
import os
import torch
import kernels
import mailbox  # the project's module: user code finds it before the standard module
assert mailbox.MINE
import cProfile  # cProfile of the standard library imports profile. The project's profile.py would raise an error
copy = {k: v for k, v in os.environ.items() if k.startswith("MODEL_")}  # line 8
number = open("counter.txt").read()
open("counter.txt", "w").write(number + "1")

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.ops.mine.twice(x) + torch.ops.mine.thrice(x) * FACTOR

def build():
    return Model().eval()
"""

KERNELS = """
import torch
@torch.library.custom_op("mine::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@twice.register_fake
def _(x):
    return torch.empty_like(x)
library = torch.library.Library("mine", "FRAGMENT")
library.define("thrice(Tensor x) -> Tensor")
library.impl("thrice", lambda x: x * 3, "CPU")
torch.library.register_fake("mine::thrice", lambda x: torch.empty_like(x), lib=library)
"""


@pytest.fixture(scope="module")
def child(job_of: Callable[..., Any], in_child: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of a trace of `MODEL` in a child process."""
    root = Path(os.path.realpath(tmp_path_factory.mktemp("isolation"))) / "project"
    root.mkdir()
    (root / "kernels.py").write_text(KERNELS)
    (root / "mailbox.py").write_text("MINE = True")
    (root / "profile.py").write_text("raise RuntimeError('shadowed')")
    (root / "counter.txt").write_text("1")
    path = root / "net.py"
    # Compile a first net.py, then replace it by a file with the same size and time. Without trtbuild, Python would run the
    # bytecode of the first file.
    path.write_text(MODEL.replace("FACTOR", "2"))
    py_compile.compile(str(path))
    status = path.stat()
    path.write_text(MODEL.replace("FACTOR", "7"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    source = Source("python", "net:build", cacheable=False)
    result = in_child(job_of({"x": (2, 4)}, source=source), root, tmp_path_factory.mktemp("child"))
    assert result.error is None, result.error
    return result


def test_a_stale_pyc_file_is_not_run(child: Any) -> None:
    assert "aten.mul.Tensor(%2, 7)" in child.graph


def test_a_project_file_does_not_shadow_a_module_that_installed_code_imports(child: Any) -> None:
    assert "file:mailbox.py" in child.observations and "file:profile.py" not in child.observations


def test_all_reasons_why_a_trace_is_not_cacheable_are_listed(child: Any) -> None:
    assert child.uncacheable.split("; ") == [
        "the manifest says `cacheable: false`",
        "net.py:8 reads all environment variables",
        "read the ones you need by name",
        "the model's code writes to counter.txt, which it read before",
    ]


def test_a_custom_operator_is_identified_by_the_digest_of_its_file(child: Any) -> None:
    digests = child.interface["operators"]
    assert set(digests) == {"mine.twice.default", "mine.thrice.default"}
    # both operators are in one file
    assert set(digests.values()) == {hashlib.sha256(child.observations["file:kernels.py"].encode()).hexdigest()}
    assert f"mine.twice.default@{digests['mine.twice.default']}(" in child.graph


EXTENSION = """
#include <Python.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

torch::stable::Tensor copied(torch::stable::Tensor x) { return torch::stable::clone(x); }
STABLE_TORCH_LIBRARY(extension_test, m) { m.def("copied(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(extension_test, CPU, m) { m.impl("copied", TORCH_BOX(&copied)); }

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "native"};
PyMODINIT_FUNC PyInit_native() { return PyModule_Create(&definition); }
"""


def test_an_operator_of_an_extension_module_is_identified_by_the_digest_of_the_module(
    job_of: Callable[..., Any], in_child: Callable[..., Any], tmp_path: Path
) -> None:
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    (tmp_path / "native.cpp").write_text(EXTENSION)
    library, torch_folder = root / "native.so", Path(torch.__file__).parent
    headers = ["-I", str(torch_folder / "include"), "-I", sysconfig.get_paths()["include"]]
    command = [
        program("g++"),
        "-std=c++20",
        "-shared",
        "-fPIC",
        *headers,
        str(tmp_path / "native.cpp"),
        "-o",
        str(library),
    ]
    subprocess.run([*command, "-L", str(torch_folder / "lib"), "-ltorch_cpu", "-lc10"], check=True)
    (root / "net.py").write_text(
        "import native, torch\ntorch.library.register_fake('extension_test::copied', torch.empty_like)\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n        return torch.ops.extension_test.copied(x) + 1\n"
        "def build():\n    return Net().eval()\n"
    )
    result = in_child(job_of({"x": (2, 4)}, source=Source("python", "net:build")), root, tmp_path)
    assert result.error is None and result.uncacheable is None, (result.error, result.uncacheable)
    (operator,) = result.interface["custom_operators"]
    assert (operator["name"], operator["module"]) == ("extension_test.copied.default", "native")
    assert "file:native.so" in result.observations


def test_a_trace_with_an_operator_of_unknown_implementation_is_not_cached(tmp_path: Path) -> None:
    """Such an operator can come from a library that was loaded before the recorder started."""
    recorder = Recorder(tmp_path, FileOwners(), {})
    assert Operators(recorder).implementation_digest("missing.twice.default") == "unknown"
    assert recorder.storage_refusals == ["the implementation of operator missing::twice cannot be found"]


def test_the_trace_fails_if_another_process_changes_a_file_that_was_read(
    job_of: Callable[..., Any], in_child: Callable[..., Any], tmp_path: Path
) -> None:
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    (root / "config.txt").write_text("1")
    (root / "net.py").write_text(
        "import subprocess, torch\nopen('config.txt').read()\nsubprocess.run('echo 2 > config.txt', shell=True)\n"
        "def build():\n    return torch.nn.ReLU().eval()\n"
    )
    result = in_child(job_of({"input": (2, 4)}, source=Source("python", "net:build")), root, tmp_path)
    assert result.error["code"] == "changed-during-trace" and "config.txt" in result.error["text"]
