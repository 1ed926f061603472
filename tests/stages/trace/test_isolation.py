"""What needs a process of its own: bytecode, changes during a trace, the environment, custom operators."""

from __future__ import annotations

import hashlib
import os
import py_compile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.core.spec import Source
from trtbuild.stages.trace.operators import Operators
from trtbuild.stages.trace.places import Places
from trtbuild.stages.trace.recording import Recorder

MODULE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * FACTOR
def build():
    return Model().eval()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    return root


@pytest.fixture
def run(project: Path, job_of: Callable[..., Any], in_child: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    def run(text: str, **more: Any) -> Any:
        (project / "net.py").write_text(text)
        return in_child(job_of({"x": (2, 4)}, source=Source("python", "net:build", **more)), project, tmp_path)

    return run


def test_a_stale_pyc_file_is_not_run_and_installed_code_is_not_shadowed(
    project: Path, job_of: Callable[..., Any], in_child: Callable[..., Any], tmp_path: Path
) -> None:
    """Same size, same second: Python itself would run the old bytecode. And `mailbox`, `wave` are standard modules: a
    project's own are found by its own code only."""
    (project / "mailbox.py").write_text("MINE = True")
    (project / "wave.py").write_text("raise RuntimeError('shadowed')")
    imports = "import mailbox\nassert mailbox.MINE\nimport sndhdr\n"
    path = project / "net.py"
    path.write_text(imports + MODULE.replace("FACTOR", "2"))
    py_compile.compile(str(path))
    status = path.stat()
    path.write_text(imports + MODULE.replace("FACTOR", "7"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = in_child(job_of({"x": (2, 4)}, source=Source("python", "net:build")), project, tmp_path)
    assert found.error is None, found.error
    assert "aten.mul.Tensor(%0, 7)" in found.graph
    assert "file:mailbox.py" in found.observations and "file:wave.py" not in found.observations


def test_a_file_that_another_process_changes_during_the_trace_stops_it(run: Callable[..., Any], project: Path) -> None:
    (project / "config.txt").write_text("1")
    text = MODULE.replace("FACTOR", "2") + (
        "import subprocess\nopen('config.txt').read()\nsubprocess.run('echo 2 > config.txt', shell=True)\n"
    )
    assert run(text).error["code"] == "changed-during-trace"


def test_reasons_not_to_keep_a_trace_are_told(run: Callable[..., Any], project: Path) -> None:
    (project / "counter.txt").write_text("1")
    text = MODULE.replace("FACTOR", "2") + (
        "import os\ncopy = {k: v for k, v in os.environ.items() if k.startswith('MODEL_')}\n"
        "n = open('counter.txt').read()\nopen('counter.txt', 'w').write(n + '1')\n"
    )
    found = run(text, cacheable=False)
    assert found.error is None
    assert found.uncacheable.split("; ") == [
        "the manifest says `cacheable: false`",
        "net.py:9 reads all environment variables",
        "read the ones you need by name",
        "the model's code writes to counter.txt, which it also reads",
    ]


OPERATORS = """
import torch, kernels
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.ops.mine.twice(x) + torch.ops.mine.thrice(x)
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


def test_a_custom_operator_enters_by_the_digest_of_its_file(run: Callable[..., Any], project: Path) -> None:
    (project / "kernels.py").write_text(KERNELS)
    found = run(OPERATORS)
    assert found.error is None and found.uncacheable is None
    digests = found.interface["operators"]
    assert set(digests) == {"mine.twice.default", "mine.thrice.default"}
    # both are in one file
    assert set(digests.values()) == {hashlib.sha256(found.observations["file:kernels.py"].encode()).hexdigest()}
    assert f"mine.twice.default@{digests['mine.twice.default']}(" in found.graph


def test_an_operator_whose_implementation_is_unknown_is_not_kept(project: Path) -> None:
    """Such as one of a library that was loaded before anybody watched."""
    recorder = Recorder(project, Places())
    assert Operators(recorder).implementation("nobody.knows.default") == "unknown"
    assert recorder.reasons == ["the implementation of operator nobody::knows cannot be found"]
