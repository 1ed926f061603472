"""Workers of a Dask scheduler compile the engines of builds. Processes, TLS and TensorRT-RTX are real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import CommandLine, ran, step
from tests.driver.farm.servers import (
    Certificates,
    Process,
    free_port,
    killed_at_end,
    make_certificates,
    scheduler_process,
    worker_process,
)
from tests.projects import copy_project, edit
from tests.warm.servers import servers
from trtbuild.store.local.local import LocalStore

THREE_TARGETS = (
    ("  ada: {sm: 89}\n", "  ada: {sm: 89}\n  ampere: {sm: 86}\n  blackwell: {sm: 120}\n"),
    ("targets: [ada]", "targets: [ada, ampere, blackwell]"),
)
ENGINES = [f"net/engine/model@{target}" for target in ("ada", "ampere", "blackwell")]


@dataclass(frozen=True)
class Cluster:
    """A scheduler with certificates, and one worker with two slots. The worker and the builds have the same cache."""

    address: str
    certificates: Certificates
    worker: Process
    cache: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**self.certificates.environment, "TRTBUILD_CACHE_DIR": str(self.cache)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    base = tmp_path_factory.mktemp("cluster")
    certificates, port = make_certificates(base / "certificates"), free_port()
    address = f"tls://127.0.0.1:{port}"
    with killed_at_end(scheduler_process(port, base, certificates)):
        environment = {**certificates.environment, "TRTBUILD_CACHE_DIR": str(base / "cache")}
        worker = worker_process(address, base / "worker", environment, "--slots", "2")
        with killed_at_end(worker):
            yield Cluster(address, certificates, worker, base / "cache")


@pytest.fixture
def builds(cluster: Cluster, tmp_path: Path) -> CommandLine:
    """The command line of a project with three targets. It uses the cache and the certificates of the cluster."""
    copy_project("mlp", tmp_path / "project", *THREE_TARGETS)
    return CommandLine(tmp_path / "project", cluster.cache, cluster.environment)


def test_engines_for_three_sms_come_from_the_worker(cluster: Cluster, builds: CommandLine) -> None:
    trace = builds.project / "trace.json"
    log = builds.project / "events"
    document = builds("build", "--workers", cluster.address, "--trace", str(trace), "--events", str(log))
    assert ran(document)["engine"] == 3
    workers = {step(document, engine)["worker"] for engine in ENGINES}
    assert len(workers) == 1
    assert workers.pop() in cluster.worker.log.read_text()
    assert "worker" not in step(document, "net/trace")
    events = {event["name"]: event for event in json.loads(trace.read_text())["traceEvents"]}
    assert events[ENGINES[0]]["args"]["worker"] == step(document, ENGINES[0])["worker"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    farm_workers = {line["id"]: line.get("farm_worker") for line in lines if line["event"] == "step_finished"}
    assert farm_workers[ENGINES[0]] == step(document, ENGINES[0])["worker"]
    assert farm_workers["net/trace"] is None

    assert ran(builds("build")) == {}, "a build without workers uses these engines"
    assert builds("cache", "verify")["damage"] == []


def test_engines_are_the_same_as_without_workers(cluster: Cluster, builds: CommandLine, tmp_path: Path) -> None:
    on_worker = builds("build", "--workers", cluster.address, "--force")
    assert ran(on_worker)["engine"] == 3
    here = CommandLine(builds.project, tmp_path / "another cache", {})("build")
    for engine in ENGINES:
        assert step(here, engine)["key"] == step(on_worker, engine)["key"]
        assert step(here, engine)["outputs"]["plan"] == step(on_worker, engine)["outputs"]["plan"]


def test_two_builds_of_two_caches_share_one_compilation(cluster: Cluster, builds: CommandLine, tmp_path: Path) -> None:
    """The two builds have separate caches, so only the scheduler can find equal jobs. Blobs pass through a remote cache."""
    (tmp_path / "remote").mkdir()
    remote = f"team=rw:file://{tmp_path / 'remote'}"
    edit(builds.project / "trtbuild.yaml", "max: [8, 8]", "max: [24, 8]")  # no other test has built these engines
    first, second = builds.project, tmp_path / "copy"
    shutil.copytree(first, second)
    CommandLine(first, tmp_path / "first cache")("build", "--until", "convert")
    shutil.copytree(tmp_path / "first cache", tmp_path / "second cache")
    environment = {**os.environ, **cluster.environment, "TRTBUILD_REMOTES": remote}
    environment["TRTBUILD_CACHE_DIR"] = str(tmp_path / "worker cache")
    trtbuild = servers.python_arguments("trtbuild.__main__", os.environ)
    command = [sys.executable, *trtbuild, "build", "--json", "--workers", cluster.address]
    with killed_at_end(worker_process(cluster.address, tmp_path / "far", environment, "--slots", "1")):
        running = [
            subprocess.Popen(
                command,
                cwd=project,
                env={**environment, "TRTBUILD_CACHE_DIR": str(tmp_path / f"{name} cache")},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name, project in (("first", first), ("second", second))
        ]
        documents = []
        for build in running:
            out, err = build.communicate(timeout=120)
            assert build.returncode == 0, err
            documents.append(json.loads(out))
    assert any("worker" in step(document, ENGINES[0]) for document in documents)
    for engine in ENGINES:
        keys = {step(document, engine)["key"] for document in documents}
        entries = [LocalStore(tmp_path / f"{name} cache").entry(key) for name in ("first", "second") for key in keys]
        records = {entry[1] for entry in entries if entry is not None}  # the bytes of each record
        assert None not in entries and len(records) == 1, "both caches have the same record"


def test_ctrl_c_ends_a_build_that_waits_for_a_worker(cluster: Cluster, builds: CommandLine) -> None:
    """The build waits, because no worker has this toolchain."""
    edit(builds.project / "trtbuild.yaml", "ada: {sm: 89}", 'ada: {sm: 89, toolchain: tensorrt, version: "8.6.0"}')
    trtbuild = servers.python_arguments("trtbuild.__main__", os.environ)
    build = subprocess.Popen(
        [sys.executable, *trtbuild, "build", "--workers", cluster.address],
        cwd=builds.project,
        env={**os.environ, **cluster.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert build.stderr is not None
    deadline, seen = time.monotonic() + 100, ""
    while "no worker compiles for tensorrt 8.6.0 linux-x86_64 SM 89" not in seen:
        assert time.monotonic() < deadline, seen
        line = build.stderr.readline()
        assert line, seen
        seen += line
    build.send_signal(signal.SIGINT)
    _, rest = build.communicate(timeout=30)
    assert build.returncode == 130, rest
    assert "the finished results are in the cache" in rest


def test_a_build_keeps_going_without_a_worker_for_one_target(cluster: Cluster, builds: CommandLine) -> None:
    """No machine has TensorRT 8.6.0. With configured workers, `plan` and `why` show the `ampere` engine step as `run`."""
    manifest = builds.project / "trtbuild.yaml"
    edit(manifest, "ampere: {sm: 86}", 'ampere: {sm: 86, toolchain: tensorrt, version: "8.6.0"}')
    edit(manifest, "max: [8, 8]", "max: [40, 8]")  # no other test has built these engines
    command = ("build", "--workers", cluster.address, "--keep-going")
    document = builds(*command, expect=1, environment={"TRTBUILD_WORKERS_WAIT": "1s"})
    (error,) = document["errors"]
    assert "no worker compiles for tensorrt 8.6.0 linux-x86_64 SM 86" in error["text"]
    assert error["step"] == ENGINES[1]
    built = [engine for engine in ENGINES if "worker" in step(document, engine)]
    assert built == [ENGINES[0], ENGINES[2]]
    with_workers = {"TRTBUILD_WORKERS": cluster.address}
    plan = builds("plan", environment=with_workers)
    assert [step(plan, engine)["verdict"] for engine in ENGINES] == ["hit", "run", "hit"]
    assert step(builds("why", ENGINES[1], environment=with_workers), ENGINES[1])["verdict"] == "run"


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("tcp://10.0.0.7:8786", "can run code on its workers"),
        ("tls://10.0.0.7:8786", "needs a client certificate"),
        ("http://127.0.0.1:8786", "is not a protocol of workers"),
        ("local:0", "is not the address of a Dask scheduler"),
    ],
)
def test_a_wrong_address_is_an_error_before_any_work(command_line: CommandLine, address: str, text: str) -> None:
    copy_project("mlp", command_line.project)
    document = command_line("build", "--workers", address, expect=2)
    assert text in document["errors"][0]["text"]
    assert document["steps"] == []
    assert not (command_line.cache / "ac").exists() or not list((command_line.cache / "ac").glob("*/*"))


def test_without_a_shared_store_a_build_is_an_error_before_any_work(
    cluster: Cluster, builds: CommandLine, tmp_path: Path
) -> None:
    document = builds(
        "build", "--workers", cluster.address, expect=2, environment={"TRTBUILD_CACHE_DIR": str(tmp_path / "apart")}
    )
    assert "through a store that this machine and the workers reach" in document["errors"][0]["text"]
    assert "TRTBUILD_REMOTES=" in document["errors"][0]["hint"]
