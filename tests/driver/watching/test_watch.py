"""``trtbuild watch``, and the builds that it runs for ``trtbuild build``, in real processes with one small model."""

from __future__ import annotations

import json
import marshal
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver.watching.watched import SCRIPT, WAIT_S, Watch
from tests.faults.processes import descendants, wait_until_gone
from trtbuild.driver.watching import endpoint
from trtbuild.driver.workers.forking.client import send_request
from trtbuild.driver.workers.forking.owner import CAN_FORK_WORKERS

pytestmark = pytest.mark.skipif(not CAN_FORK_WORKERS, reason="this system cannot fork workers")


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """A watcher that has built its model once."""
    started = Watch(tmp_path_factory.mktemp("watch"))
    started.start()
    started.wait_for(lambda: started.log.exists() and started.builds())
    yield started
    assert started.end() == 0
    assert [path.suffix for path in (started.runtime / "trtbuild").iterdir()] == [".lock"]


def test_a_change_starts_a_build_that_sees_nothing_of_the_build_before(watch: Watch) -> None:
    count = watch.builds()
    watch.edit("Tanh")
    watch.wait_for(lambda: watch.builds() > count)
    lines = [json.loads(line) for line in watch.seen.read_text().splitlines()]
    assert len(lines) >= 2
    assert len({pid for pid, _ in lines}) == len(lines)
    assert [leftovers for _, leftovers in lines] == [[False, False, False, None]] * len(lines)


def test_a_build_in_another_terminal_has_the_same_result(watch: Watch) -> None:
    answered = watch.build("--force", "--json", TRTBUILD_MARK="1")
    assert answered.returncode == 0
    assert "building without" not in answered.stderr
    # The watcher can run a build at the same time, so the last line of `seen` may be of a trace without TRTBUILD_MARK.
    leftovers = [json.loads(line)[1] for line in watch.seen.read_text().splitlines()]
    watch.edit("Tanh")
    alone = watch.build("--force", "--json", ANOTHER="1")
    assert "building without trtbuild watch: its variable ANOTHER differs" in alone.stderr
    documents = [json.loads(process.stdout) for process in (answered, alone)]
    keys = [{step["id"]: step["key"] for step in document["steps"]} for document in documents]
    assert keys[0].pop("net/trace") != keys[1].pop("net/trace")  # the model reads TRTBUILD_MARK, which differs
    assert keys[0] == keys[1]
    assert [False, False, False, "1"] in leftovers  # the build has the client's environment variables


def test_the_exit_code_and_the_error_are_those_of_a_build(watch: Watch) -> None:
    assert watch.build("nett").returncode == 2
    assert "no model is called 'nett'" in watch.build("nett").stderr


def test_a_second_watcher_of_the_project_is_refused(watch: Watch) -> None:
    second = subprocess.run(
        [SCRIPT, "watch"], cwd=watch.project, env=watch.environment, capture_output=True, text=True, timeout=WAIT_S
    )
    assert second.returncode == 2
    assert "another trtbuild watch" in second.stderr


def test_a_file_outside_that_changes_after_the_first_trace_has_read_it_starts_a_build(tmp_path: Path) -> None:
    """The watcher knows only at the end of the build that `net` reads this file. `slow` keeps the build from ending."""
    watch = Watch(tmp_path)
    setting, pipe = tmp_path / "setting", tmp_path / "pipe"
    setting.write_text("first")
    os.mkfifo(pipe)
    (watch.project / "dist").mkdir()  # a new directory in the project would start a build, too
    model = (watch.project / "net.py").read_text()
    (watch.project / "net.py").write_text(f"open({str(setting)!r}).read()\n{model}")
    (watch.project / "slow.py").write_text(f"open({str(pipe)!r}).read()\n{model}")
    manifest = (watch.project / "trtbuild.yaml").read_text()
    net = manifest.splitlines()[-1]
    (watch.project / "trtbuild.yaml").write_text(f"{manifest}{net.replace('net', 'slow')}\n")
    watch.start("-j", "2")
    watch.wait_for(lambda: watch.log.exists() and "net/package" in watch.log.read_text())
    setting.write_text("second")
    pipe.write_text("")
    watch.wait_for(lambda: watch.builds() == 2)
    assert "setting changed" in watch.log.read_text()
    assert watch.end() == 0


def test_the_outputs_of_a_changed_manifest_are_ignored_and_other_files_are_not(tmp_path: Path) -> None:
    """After the manifest has changed, ``made`` has the outputs, and ``dist`` is a directory like any other."""
    watch = Watch(tmp_path)
    watch.start()
    watch.wait_for(lambda: watch.log.exists() and watch.builds())
    manifest = watch.project / "trtbuild.yaml"
    manifest.write_text(
        manifest.read_text().replace("targets: [ada]}", "targets: [ada], outputs: {package: made/net}}")
    )
    # the third build is that of the new outputs, which were not ignored while the second one wrote them
    watch.wait_for(lambda: watch.builds() >= 3)
    time.sleep(1)
    count = watch.builds()
    (watch.project / "made" / "net" / "a file").write_text("")
    time.sleep(2)
    assert watch.builds() == count
    (watch.project / "dist" / "a file").write_text("")
    watch.wait_for(lambda: watch.builds() > count)
    assert watch.end() == 0


def test_the_files_that_describe_a_build_start_no_build(tmp_path: Path) -> None:
    """Each build writes them, so builds would follow each other without end."""
    watch = Watch(tmp_path)
    (watch.project / "dist").mkdir()  # a new directory in the project would start a build
    names = {"--events": "events.jsonl", "--trace": "trace.json", "--report": "report.html", "--depfile": "net.d"}
    watch.start(*(word for pair in names.items() for word in pair))
    watch.wait_for(lambda: watch.log.exists() and watch.builds())
    time.sleep(2)
    assert watch.builds() == 1
    assert names.keys() == {flag for flag, name in names.items() if (watch.project / name).exists()}
    assert watch.end() == 0


def _answer_to(watch: Watch, request: bytes) -> bytes:
    """Send a request to the watcher. Return its answer: a refusal is ``0`` and the reason."""
    (path,) = (watch.runtime / "trtbuild").glob("*.socket")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        send_request(client, request)
        answer = b""
        while part := client.recv(4096):
            answer += part
    return answer


def test_requests_of_another_version_and_garbage_are_refused(watch: Watch) -> None:
    words = [marshal.dumps([*endpoint.process_properties(), "another"]).hex(), "build"]
    answer = _answer_to(watch, marshal.dumps((str(watch.project), 0o022, words, watch.environment)))
    assert answer == b"0it has another Python, trtbuild, group, processor, namespace or resource limit"
    assert _answer_to(watch, b"garbage") == b"0the request is invalid"


def test_a_hundred_saves_start_few_builds_and_end_with_the_last_one(watch: Watch) -> None:
    before = len(watch.seen.read_text().splitlines())
    for number in range(100):
        watch.edit("ELU" if number % 2 else "SiLU")
        time.sleep(0.005)
    watch.edit("Sigmoid")
    watch.wait_for(lambda: len(watch.seen.read_text().splitlines()) > before)
    process = watch.build("--json")  # waits for the watcher's build of the same steps
    assert process.returncode == 0
    assert len(watch.seen.read_text().splitlines()) - before < 20
    assert json.loads(watch.build("--frozen", "--json").stdout)["totals"]["trace"]["run"] == 0


def test_a_killed_watcher_leaves_no_process_and_a_build_does_not_need_it(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.start()
    watch.wait_for(lambda: "watching" in (watch.log.read_text() if watch.log.exists() else ""))
    pids = descendants(watch.pid)
    assert pids
    os.kill(watch.pid, signal.SIGKILL)
    assert watch.process is not None
    watch.process.wait()
    wait_until_gone(pids)
    assert list((watch.runtime / "trtbuild").glob("*.socket"))  # the socket of a dead watcher
    built = watch.build("-q", "--until", "trace")
    assert (built.returncode, built.stderr) == (0, "")
