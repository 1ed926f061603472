"""The environment variables of workers, jobs in forks of a worker, and the errors that a parent reads from workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trtbuild import errors
from trtbuild.core.engines.engine_job import ENGINE_ENVIRONMENT, EngineJob
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import Target
from trtbuild.core.recipes.keys import STEP_VERSIONS
from trtbuild.core.values.codec import encode
from trtbuild.driver.workers import tasks
from trtbuild.driver.workers.environments import visible_gpu, worker_environment
from trtbuild.driver.workers.forking.owner import CAN_FORK_WORKERS, ForkServers
from trtbuild.driver.workers.kinds import FORKS, WorkerKind
from trtbuild.driver.workers.results import Context
from trtbuild.driver.workers.worker import error_to_json
from trtbuild.driver.workers.worker_process import Worker, WorkerDied, error_from_json
from trtbuild.store.local.local import LocalStore

#: The types of errors that a worker may report.
ERROR_TYPES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, errors.TrtbuildError)
    and kind not in (errors.ManifestErrors, errors.ConfigurationErrors)
]


@pytest.mark.parametrize("error_type", ERROR_TYPES, ids=lambda error_type: error_type.__name__)
def test_an_error_is_read_back_with_its_type(error_type: type[errors.TrtbuildError]) -> None:
    error = error_type("what happened", hint="what to do")
    error.file, error.line = "net.py", 3
    parsed = error_from_json(error_to_json(error), "one\ntwo")
    assert type(parsed) is error_type
    assert (parsed.text, parsed.hint, parsed.file, parsed.line) == ("what happened", "what to do", "net.py", 3)


@pytest.mark.parametrize("versions", [{**STEP_VERSIONS, "engine": STEP_VERSIONS["engine"] - 1}, None])
def test_a_worker_does_not_do_the_job_of_a_parent_of_another_release(
    tmp_path: Path, versions: dict[str, int] | None
) -> None:
    """If the worker did the job, the parent would store the result under the key of another release."""
    job = EngineJob("0" * 64, (), (), BuilderSettings(), Target("ada", 89), "1.0")
    message = {"task": "engine", "job": encode(job), "step versions": versions}
    context = Context(LocalStore(tmp_path), tmp_path, tmp_path, lambda outputs: None)
    with pytest.raises(errors.EnvironmentFault, match="another release of trtbuild was installed"):
        tasks.do(message, context)


def test_fields_that_only_one_type_of_error_has_are_read_back() -> None:
    source = error_from_json(error_to_json(errors.SourceError("no", code="weights")), "")
    assert isinstance(source, errors.SourceError)
    assert source.code == "weights"
    compiler = error_from_json(error_to_json(errors.ToolchainError("no")), "one\ntwo")
    assert isinstance(compiler, errors.ToolchainError)
    assert compiler.log == ("one", "two")


def test_an_error_of_an_unknown_type_is_an_internal_error_with_its_traceback() -> None:
    for kind in ("KeyError", "InternalError"):
        parsed = error_from_json({"type": kind, "text": "KeyError: 3", "trace": "Traceback: line 1"}, "")
        assert isinstance(parsed, errors.InternalError)
        assert "Traceback: line 1" in parsed.text
        assert "report" in (parsed.hint or "")


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (signal.SIGKILL, "memory runs out"),
        (signal.SIGSEGV, "native code that the model calls crashed"),
        (signal.SIGABRT, "native code that the model calls crashed"),
        (signal.SIGTERM, "run the build again"),
    ],
)
def test_the_hint_for_a_dead_trace_worker_fits_the_signal(tmp_path: Path, number: signal.Signals, hint: str) -> None:
    worker = Worker("trace", tmp_path / "store", tmp_path)
    os.kill(worker._process.pid, number)
    with pytest.raises(WorkerDied, match=f"was ended by {number.name}") as caught:
        worker.call({"task": "no task"})
    assert hint in (caught.value.hint or "")
    worker.end()


def test_the_reported_line_of_a_crash_is_in_the_thread_that_crashed(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import faulthandler, threading\n"
        "faulthandler.enable()\n"
        "entered, end = threading.Event(), threading.Event()\n"
        "def wait():\n"
        "    entered.set()\n"
        "    end.wait()\n"
        "threading.Thread(target=wait, daemon=True).start()\n"
        "entered.wait()\n"
        "faulthandler._sigsegv()\n"
    )
    crash = subprocess.run([sys.executable, str(tmp_path / "net.py")], capture_output=True, text=True, cwd=tmp_path)
    assert f'{tmp_path / "net.py"}", line 6 in wait' in crash.stderr
    worker: Any = SimpleNamespace(_project=tmp_path)
    assert Worker._project_frame(worker, crash.stderr) == ("net.py", 9)


@pytest.mark.parametrize("kind", ["trace", "original"])
def test_user_code_runs_with_its_assertions(kind: WorkerKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """``PYTHONOPTIMIZE`` changes ``__debug__``, and is in no key."""
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    assert "PYTHONOPTIMIZE" not in worker_environment(kind)


def test_gpus_are_hidden_only_from_the_workers_that_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for name in ("LD_LIBRARY_PATH", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    assert worker_environment("trace")["CUDA_VISIBLE_DEVICES"] == ""
    assert worker_environment("torch")["CUDA_VISIBLE_DEVICES"] == "1"  # TensorRT's parser needs a GPU
    assert worker_environment("engine") == {**ENGINE_ENVIRONMENT, "CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize(
    ("variable", "gpu", "value"),
    [
        (None, 0, "0"),
        (None, 3, "3"),
        ("", 1, "1"),
        ("2,0", 0, "2"),
        ("2,0", 1, "0"),
        ("GPU-8932f937, MIG-41b3359c", 1, "MIG-41b3359c"),
        ("1,-1,2", 0, "1"),
    ],
)
def test_an_engine_worker_sees_only_its_gpu_among_those_that_the_user_chose(
    variable: str | None, gpu: int, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible_gpu(gpu, environ) == value
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, chosen in environ.items():
        monkeypatch.setenv(name, chosen)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # a worker inherits the order of its parent's GPUs
    environment = worker_environment("engine", gpu)
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["CUDA_DEVICE_ORDER"]) == (value, "PCI_BUS_ID")


def test_a_worker_whose_parent_died_before_it_began_runs_no_job(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"kind": "engine"}\n')
    os.close(writing)  # if the parent is killed, the kernel closes this end
    command = [sys.executable, "-m", "trtbuild.driver.workers.worker", "engine", str(tmp_path / "store"), str(tmp_path)]
    process = subprocess.run(command, stdin=reading, capture_output=True, text=True, timeout=60, check=False)
    os.close(reading)
    assert (process.returncode, process.stdout) == (1, "")


def test_garbage_collection_is_enabled_even_if_preparing_fails() -> None:
    program = (
        "import gc, pathlib, sys; from trtbuild.driver.workers import worker; here = pathlib.Path('.');"
        "worker._prepared_handler('no kind', here, here, sys.stdout); print(gc.isenabled(), gc.get_freeze_count() > 0)"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout.split() == ["True", "True"]


@pytest.mark.cold_workers
@pytest.mark.parametrize("is_forked", [True, False])
@pytest.mark.parametrize("error", ["ImportError('no libc10.so')", "OSError('no libc10.so')"])
def test_a_library_that_cannot_be_imported_is_the_error_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_forked: bool, error: str
) -> None:
    """The model's code has not run, so the error is not about it."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "torch.py").write_text(f"raise {error}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
    servers = ForkServers(worker_environment("trace"), Path("/")) if is_forked and CAN_FORK_WORKERS else None
    worker = Worker("trace", tmp_path / "store", tmp_path, servers=servers)
    with pytest.raises(errors.ToolchainMissing) as caught:
        worker.call({"task": "no task"})
    assert caught.value.text == f"a library cannot be imported: {error.partition('(')[0]}: no libc10.so"
    assert "Traceback" in caught.value.worker_log
    worker.end()
    if servers is not None:
        servers.close()


#: A program that does the jobs in its arguments as a trace worker does: each job in a separate fork.
_TRACE_WORKER = """
import os, sys
from trtbuild.driver.workers import worker

def handler(job):
    name = job["do"]
    if name == "exit": os._exit(0)
    if name == "signal": os.kill(os.getpid(), 15)
    if name == "fork": return {"read": fork_twice()}
    return {"pid": os.getpid(), "parent": os.getppid()}

def fork_twice():
    # User code may do this. The job forks a process A, in which the worker's descriptors are closed. A opens files, which
    # get the numbers of these descriptors, and forks a process B. In B, these files must still be open.
    answer, writing = os.pipe()
    if os.fork() == 0:  # A
        files = [os.open(__file__, os.O_RDONLY) for _ in range(4)]
        if os.fork() == 0:  # B
            os.write(writing, b"yes" if all(os.read(file, 1) for file in files) else b"no")
        os._exit(0)
    os.close(writing)
    return os.read(answer, 10).decode()

replies = os.fdopen(os.dup(1), "w")
for name in sys.argv[1:]:
    worker._do_in_fork(handler, {"do": name}, replies)
"""


def _run_jobs(tmp_path: Path, *jobs: str) -> tuple[int, list[dict[str, object]]]:
    script = tmp_path / "trace_worker.py"
    script.write_text(_TRACE_WORKER)
    process = subprocess.run(
        [sys.executable, str(script), *jobs], capture_output=True, text=True, timeout=60, check=False
    )
    return process.returncode, [json.loads(line) for line in process.stdout.splitlines()]


needs_fork = pytest.mark.skipif(not FORKS, reason="trace workers fork only on Linux")


@needs_fork
def test_each_job_runs_in_a_separate_fork_of_the_worker(tmp_path: Path) -> None:
    code, replies = _run_jobs(tmp_path, "pid", "pid", "pid")
    assert code == 0
    assert [reply["ok"] for reply in replies] == [True] * 3
    assert len({reply["pid"] for reply in replies}) == 3
    assert len({reply["parent"] for reply in replies}) == 1


@needs_fork
@pytest.mark.parametrize(("job", "status"), [("exit", 0), ("signal", -signal.SIGTERM)])
def test_the_worker_ends_with_the_status_of_a_fork_that_ends_without_a_reply(
    tmp_path: Path, job: str, status: int
) -> None:
    code, replies = _run_jobs(tmp_path, "pid", job, "pid")
    assert code == status
    assert len(replies) == 1


@needs_fork
def test_a_process_that_user_code_forks_keeps_its_files(tmp_path: Path) -> None:
    code, replies = _run_jobs(tmp_path, "fork")
    assert code == 0
    assert [reply["read"] for reply in replies] == ["yes"]
