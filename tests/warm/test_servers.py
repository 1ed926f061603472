"""Forked workers give the same results as new processes, end in the same way, and leave no process behind."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine
from tests.faults.processes import alive, descendants, wait_until_gone
from tests.warm.servers import Servers, servers
from trtbuild.driver.workers.worker_process import Worker, WorkerDied

pytestmark = pytest.mark.skipif(servers.are_off, reason="this system cannot copy processes")

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {min: [1, 4], opt: [2, 4], max: [8, 4]}}}
models:
"""
MODEL = """\
  NAME:
    source: {python: "NAME:build"}
    inputs: {x: {}}
    profiles: [rows]
    targets: [ada]
"""
HEAD = "import os, sys\nimport torch\n"
GOOD = "def build():\n    return torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()).eval()\n"


@pytest.fixture
def write(command_line: CommandLine) -> Callable[..., CommandLine]:
    """A function that writes the project's models, each with its code, and returns the command line."""

    def run(**models: str) -> CommandLine:
        text = MANIFEST + "".join(MODEL.replace("NAME", name) for name in models)
        (command_line.project / "trtbuild.yaml").write_text(text)
        for name, code in models.items():
            (command_line.project / f"{name}.py").write_text(HEAD + code)
        return command_line

    return run


def keys(document: Any) -> dict[str, Any]:
    """Step id → key."""
    return {step["id"]: step["key"] for step in document["steps"]}


def test_a_build_with_forked_workers_has_the_same_keys_and_results(
    write: Callable[..., CommandLine], tmp_path: Path
) -> None:
    """The model's code sees the same environment in both builds.

    The code writes its variables, arguments, modules, import path, flags, directory and descriptors to a file.
    """
    code = (
        "seen = [sorted(os.environ.items()), sys.argv[1:], sys.path, list(sys.flags), sys.modules['__main__'].__name__,\n"
        # Only the servers of the tests import server_process under this name.
        "        sorted({*sys.modules} - {'trtbuild.driver.workers.forking.server_process'}),\n"
        "        os.getcwd(), sorted(os.listdir('/proc/self/fd')), os.getsid(0) == os.getppid()]\n"
        "open(os.path.join(os.environ['SEEN_IN'], 'seen'), 'a').write(repr(seen) + '\\n')\n"
    )
    command = write(net=code + GOOD)
    variables = {"SEEN_IN": str(tmp_path), "SURROGATE": os.fsdecode(b"\xff")}
    warm = command("build", environment=variables)
    command.cache.rename(tmp_path / "cache of forked workers")
    (tmp_path / "seen").rename(tmp_path / "seen by forked")
    command.cold = True
    cold = command("build", environment=variables)
    assert cold["totals"] == warm["totals"]
    assert keys(warm) == keys(cold)
    seen = [(tmp_path / name).read_text().splitlines() for name in ("seen by forked", "seen")]
    assert len(seen[0]) == len(seen[1]) > 0
    for in_forked, in_new in zip(*map(_seen_values, seen), strict=True):
        assert in_forked == in_new


def _seen_values(lines: list[str]) -> list[Any]:
    """The values that the model's code has written. `lines` has one line for each run of this code."""
    return [value for line in lines for value in ast.literal_eval(line)]


def test_a_model_does_not_see_the_state_of_another_model(write: Callable[..., CommandLine], tmp_path: Path) -> None:
    leaving_code = (
        "import json\njson.left_behind = True\nos.environ['LEFT'] = '1'\nopen('/proc/self/cwd/../loaded', 'a')\n"
    )
    checking_code = "import json\nassert not hasattr(json, 'left_behind') and 'LEFT' not in os.environ\n"
    write(first=leaving_code + GOOD)("build")
    assert (tmp_path / "loaded").exists()
    write(second=checking_code + GOOD)("build")


@pytest.mark.parametrize(
    ("code", "words"),
    [("os._exit(3)", "exited with status 3"), ("os.kill(os.getpid(), 11)", "was ended by SIGSEGV")],
)
def test_the_error_names_how_a_worker_ended(write: Callable[..., CommandLine], code: str, words: str) -> None:
    document = write(net=f"print('the last words', flush=True)\n{code}\n")("build", expect=1)
    (error,) = document["errors"]
    assert words in error["text"]
    assert "the last words" in error["text"]


@pytest.fixture
def own_servers() -> Iterator[Servers]:
    new_servers = Servers()
    yield new_servers
    new_servers.end()


def start_worker(own_servers: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Worker:
    """Start a worker, and let it reject a job, so that it has loaded its modules."""
    from tests.warm import command_line
    from trtbuild.driver.workers import worker_process

    monkeypatch.setattr(worker_process, "command", worker_process.command)
    command_line.replace_command(lambda: str(own_servers.folder))
    worker = Worker("torch", tmp_path / "store", tmp_path)
    with pytest.raises(Exception, match="KeyError"):  # the job lacks `task`
        worker.call({"kind": "convert"})
    assert worker.is_alive
    return worker


def forked_pids(own_servers: Servers) -> list[int]:
    """The process numbers of all forked workers."""
    return [pid for server in own_servers.pids for pid in descendants(server)]


def test_killing_a_worker_kills_its_forked_process(
    own_servers: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = start_worker(own_servers, monkeypatch, tmp_path)
    (pid,) = forked_pids(own_servers)
    first.kill()
    first.end()
    wait_until_gone([pid])
    second = start_worker(own_servers, monkeypatch, tmp_path)
    (pid,) = forked_pids(own_servers)
    os.kill(pid, signal.SIGTERM)
    with pytest.raises(WorkerDied, match="SIGTERM"):
        second.call({"kind": "convert"})
    second.end()
    assert not forked_pids(own_servers)


def test_servers_and_forked_workers_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    program = (
        "import json, sys, time; from pathlib import Path; from tests.warm import command_line; "
        "from tests.warm.servers import servers; from trtbuild.driver.workers import pool; "
        "command_line.replace_command(lambda: str(servers.folder)); here = Path(sys.argv[1]); "
        "worker = pool.Worker('torch', here / 'store', here)\n"
        "try: worker.call({'kind': 'convert'})\n"
        "except Exception: print(json.dumps(servers.pids), flush=True)\n"
        "time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pids = json.loads(owner.stdout.readline())
    started_pids = [*pids, *(pid for server in pids for pid in descendants(server))]
    assert len(started_pids) == 5  # four servers and the worker
    assert all(alive(pid) for pid in started_pids)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until_gone(started_pids)


def test_does_not_fork_a_worker_if_a_variable_that_python_or_torch_reads_early_differs(own_servers: Servers) -> None:
    assert own_servers.can_fork(dict(os.environ))
    assert own_servers.can_fork({**os.environ, "OF_A_MODEL": "1", "TORCHINDUCTOR_CACHE_DIR": "/somewhere"})
    for name in ("PYTHONPATH", "PYTHONHASHSEED", "TORCH_LOGS", "LD_PRELOAD", "OMP_NUM_THREADS", "LANG_"):
        assert not own_servers.can_fork({**os.environ, name: os.environ.get(name, "") + "1"})


@pytest.mark.cold_workers
def test_a_test_with_the_mark_gets_no_forked_workers(command_line: CommandLine) -> None:
    assert servers.are_off
    assert servers.folder_for(os.environ) is None
