"""An error of a worker is the same error in the parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trtbuild import errors
from trtbuild.core.engines.engine_job import ENGINE_ENVIRONMENT
from trtbuild.driver.workers.pool import _environment, error_from_json
from trtbuild.driver.workers.worker import FORKS, error_to_json

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, errors.TrtbuildError)
    and kind not in (errors.ManifestErrors, errors.ConfigurationErrors)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_error_travels_whole(kind: type[errors.TrtbuildError]) -> None:
    error = kind("what happened", hint="what to do")
    error.file, error.line = "net.py", 3
    found = error_from_json(error_to_json(error), "one\ntwo")
    assert type(found) is kind
    assert (found.text, found.hint, found.file, found.line) == ("what happened", "what to do", "net.py", 3)


def test_what_only_some_kinds_have_travels_too() -> None:
    source = error_from_json(error_to_json(errors.SourceError("no", code="weights")), "")
    assert isinstance(source, errors.SourceError)
    assert source.code == "weights"
    compiler = error_from_json(error_to_json(errors.ToolchainError("no")), "one\ntwo")
    assert isinstance(compiler, errors.ToolchainError)
    assert compiler.log == ("one", "two")


def test_an_error_of_no_known_kind_is_a_bug_with_its_traceback() -> None:
    for kind in ("KeyError", "InternalError"):
        found = error_from_json({"type": kind, "text": "KeyError: 3", "trace": "Traceback: line 1"}, "")
        assert isinstance(found, errors.InternalError)
        assert "Traceback: line 1" in found.text
        assert "report" in (found.hint or "")


def test_the_gpus_are_hidden_from_the_models_code_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert _environment("trace")["CUDA_VISIBLE_DEVICES"] == ""
    assert _environment("torch")["CUDA_VISIBLE_DEVICES"] == "1"  # TensorRT's parser needs one
    assert _environment("engine") == dict(ENGINE_ENVIRONMENT)


def test_a_worker_whose_parent_died_before_it_began_does_no_job(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"kind": "engine"}\n')
    os.close(writing)  # as the kernel does for a parent that is killed
    command = [sys.executable, "-m", "trtbuild.driver.workers.worker", "engine", str(tmp_path / "store"), str(tmp_path)]
    done = subprocess.run(command, stdin=reading, capture_output=True, text=True, timeout=60, check=False)
    os.close(reading)
    assert (done.returncode, done.stdout) == (1, "")


def test_garbage_is_collected_in_jobs_whatever_became_of_loading() -> None:
    program = (
        "import gc, pathlib; from trtbuild.driver.workers import worker; here = pathlib.Path('.');"
        "print(worker._preloaded_handler('no kind', here, here), gc.isenabled(), gc.get_freeze_count() > 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["None", "True", "True"]


_SERVER = """
import os, sys
from trtbuild.driver.workers import worker

def handler(job):
    what = job["do"]
    if what == "exit": os._exit(0)
    if what == "signal": os.kill(os.getpid(), 15)
    if what == "grandchild": return {"read": grandchild()}
    return {"pid": os.getpid(), "parent": os.getppid()}

def grandchild():
    # the child's files get the numbers of the descriptors that were closed in it; its own child must keep them
    answer, writing = os.pipe()
    if os.fork() == 0:
        files = [os.open(__file__, os.O_RDONLY) for _ in range(4)]
        if os.fork() == 0:
            os.write(writing, b"yes" if all(os.read(file, 1) for file in files) else b"no")
        os._exit(0)
    os.close(writing)
    return os.read(answer, 10).decode()

replies = os.fdopen(os.dup(1), "w")
for what in sys.argv[1:]:
    worker._do_in_fork(handler, {"do": what}, replies)
"""


def _served(tmp_path: Path, *jobs: str) -> tuple[int, list[dict[str, object]]]:
    script = tmp_path / "server.py"
    script.write_text(_SERVER)
    done = subprocess.run([sys.executable, str(script), *jobs], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


needs_fork = pytest.mark.skipif(not FORKS, reason="jobs are done in copies where a process can be copied")


@needs_fork
def test_each_job_has_a_copy_of_its_own_of_one_server(tmp_path: Path) -> None:
    code, replies = _served(tmp_path, "tell", "tell", "tell")
    assert code == 0
    assert [reply["ok"] for reply in replies] == [True] * 3
    assert len({reply["pid"] for reply in replies}) == 3
    assert len({reply["parent"] for reply in replies}) == 1


@needs_fork
@pytest.mark.parametrize(("job", "status"), [("exit", 0), ("signal", -signal.SIGTERM)])
def test_a_copy_that_ends_without_a_reply_ends_the_server_in_the_same_way(
    tmp_path: Path, job: str, status: int
) -> None:
    code, replies = _served(tmp_path, "tell", job, "tell")
    assert code == status
    assert len(replies) == 1


@needs_fork
def test_the_files_of_what_user_code_forks_are_its_own(tmp_path: Path) -> None:
    code, replies = _served(tmp_path, "grandchild")
    assert code == 0
    assert [reply["read"] for reply in replies] == ["yes"]
