"""`verify --workers` with real schedulers and workers. The GPU is simulated (`tests/driver/farm/pretended_gpu`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine
from tests.driver.farm import servers
from tests.driver.farm.servers import free_port, killed_at_end, scheduler_process, worker_process
from tests.driver.verification.conftest import write_words
from tests.projects import copy_project

#: The folder of modules that simulate a GPU. While the worker's directory has a file `spoil`, the results of engines are
#: wrong. While it has a file `die`, SIGKILL ends the process that runs engines.
PRETENDED_GPU = str(Path(servers.__file__).parent / "pretended_gpu")


@dataclass(frozen=True)
class Site:
    """A scheduler, the directory of its worker, and a built project. The worker and the project have the same cache."""

    address: str
    worker: Path
    trtbuild: CommandLine

    def verify(self, *arguments: str, expect: int = 0) -> Any:
        return self.trtbuild("verify", *arguments, "--workers", self.address, expect=expect)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    base = tmp_path_factory.mktemp("verification on workers")
    copy_project("comparisons", base / "project")
    write_words(base / "project" / "words.onnx")
    trtbuild = CommandLine(base / "project", base / "cache", {"TRTBUILD_WORKERS_WAIT": "1s"})
    trtbuild("build", "net", "words")
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    environment = {"TRTBUILD_CACHE_DIR": str(base / "cache"), "PYTHONPATH": PRETENDED_GPU}
    with (
        killed_at_end(scheduler_process(port, base)),
        killed_at_end(worker_process(address, base / "worker", environment)),
    ):
        yield Site(address, base / "worker", trtbuild)


def by_engine(model: Any) -> Any:
    """The comparison of engines among the comparisons of a model (`cuts`). Fails unless there is exactly one."""
    (comparison,) = [entry for entry in model["cuts"] if entry["by"] == "engine"]
    return comparison


def test_engines_are_compared_on_a_worker_and_the_result_is_recorded(site: Site) -> None:
    document = site.verify("net", "words")
    assert document["ok"] and document["warnings"] == [], document
    net, words = document["models"]
    comparison = by_engine(net)
    assert (comparison["status"], comparison["verdict"], comparison["tolerance"]) == ("right", "run", 2e-3)
    assert comparison["machine"] == {
        "platform": comparison["machine"]["platform"],
        "device": "Pretended GPU",
        "driver": "999.1",
    }
    assert comparison["worker"].endswith("-gpu0") and comparison["worker"] in (site.worker / "worker.log").read_text()
    assert comparison["finished"] and comparison["builder"]
    assert (site.trtbuild.project / comparison["worst_input"]).is_file()
    assert net["not_run"] == words["not_run"] == []
    assert by_engine(words)["against"] == "onnxruntime" and by_engine(words)["status"] == "right"
    (by_onnxruntime,) = [comparison for comparison in net["cuts"] if comparison["by"] == "onnxruntime"]
    assert "worker" not in by_onnxruntime

    again = by_engine(site.verify("net")["models"][0])
    assert (again["verdict"], again["key"]) == ("hit", comparison["key"]) and "worker" not in again
    forced = by_engine(site.verify("net", "--force")["models"][0])
    assert (forced["verdict"], forced["key"]) == ("run", comparison["key"]) and forced["worker"]
    provenance = json.loads((site.trtbuild.project / "dist" / "net" / "provenance.json").read_bytes())
    (entry,) = [entry for entry in provenance["verified"] if entry["by"] == "engine"]
    assert entry["key"] == comparison["key"] and "worker" not in entry
    assert not list((site.worker / ".trtbuild").glob("comparison-*")), "the copies of packages are removed"


def test_a_verification_on_the_machine_with_the_gpu_has_the_same_key(site: Site) -> None:
    """A machine with the same GPU, driver and libraries reuses the result. `local:1` starts a worker on this machine."""
    on_worker = by_engine(site.verify("words")["models"][0])
    here = CommandLine(site.trtbuild.project, site.trtbuild.cache, {"PYTHONPATH": PRETENDED_GPU}, cold=True)
    compared = by_engine(here("verify", "words", "--force")["models"][0])
    assert (compared["verdict"], compared["key"], compared["status"]) == ("run", on_worker["key"], "right")
    assert compared["machine"] == on_worker["machine"] and "worker" not in compared
    local = by_engine(here("verify", "words", "--workers", "local:1", "--force")["models"][0])
    assert (local["verdict"], local["key"]) == ("run", on_worker["key"]) and local["worker"].endswith("-gpu0")


def test_wrong_engines_are_reported_and_not_recorded(site: Site) -> None:
    (site.worker / "spoil").touch()
    try:
        failed = site.verify("words", "--points", "1", expect=1)
        comparison = by_engine(failed["models"][0])
        assert comparison["status"] == "wrong" and comparison["worker"]
        assert {part["status"] for part in comparison["partitions"]} == {"wrong"}
        replayed = site.verify("words", "--replay", comparison["worst_input"], expect=1)
        assert [point["which"] for point in by_engine(replayed["models"][0])["points"]] == ["replay"]
    finally:
        (site.worker / "spoil").unlink()
    repaired = by_engine(site.verify("words", "--points", "1")["models"][0])
    assert (repaired["status"], repaired["verdict"], repaired["key"]) == ("right", "run", comparison["key"])


def test_three_deaths_of_a_comparison_are_an_error_with_its_log(site: Site) -> None:
    (site.worker / "die").touch()
    try:
        failed = site.verify("words", "--force", expect=1)
    finally:
        (site.worker / "die").unlink()
    (error,) = failed["errors"]
    assert error["type"] == "WorkersError"
    assert error["text"].count("the process that compares the engines was ended by SIGKILL") == 3
    assert (site.trtbuild.project / error["log"]).read_text() == "about to die\n" * 3
    assert failed["models"][0]["status"] == "failed"


def test_a_target_without_a_fitting_worker_is_not_run(site: Site, tmp_path: Path) -> None:
    """The worker of this scheduler has no GPU."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    environment = {"TRTBUILD_CACHE_DIR": str(site.trtbuild.cache)}
    with (
        killed_at_end(scheduler_process(port, tmp_path)),
        killed_at_end(worker_process(address, tmp_path / "cpu", environment)),
    ):
        document = site.trtbuild("verify", "net", "--workers", address, "--force")
    (model,) = document["models"]
    (not_run,) = model["not_run"]
    assert not_run["target"] == "ada" and [comparison["by"] for comparison in model["cuts"]] == ["onnxruntime"]
    for text in (not_run["reason"], *document["warnings"]):
        assert text.startswith("no worker has a GPU that runs the engines of tensorrt-rtx ")
        assert text.endswith("; no worker has a GPU with PyTorch for CUDA")
    assert "the verification waits 1 s for one" in document["warnings"][0]


def test_without_a_shared_store_nothing_is_compared(site: Site, tmp_path: Path) -> None:
    apart = CommandLine(site.trtbuild.project, tmp_path / "another cache", {})
    apart("build", "net")
    failed = apart("verify", "net", "--workers", site.address, expect=2)
    assert "through a store that this machine and the workers reach" in failed["errors"][0]["text"]


def test_device_and_paths_contradict_workers_but_device_overrides_the_configuration(site: Site) -> None:
    for arguments, message in (
        (("net", "--device", "cuda:0"), "--device is for engines that run on this machine"),
        (("dist/net",), "--workers is for the models of a project"),
    ):
        failed = site.verify(*arguments, expect=2)
        assert message in failed["errors"][0]["text"]
    environment = {"TRTBUILD_WORKERS": site.address}
    with_device = site.trtbuild("verify", "net", "--device", "cpu", environment=environment)
    assert with_device["models"][0]["not_run"] == [{"target": "ada", "reason": "--device cpu runs no engine"}]
    configured = site.trtbuild("verify", "net", environment=environment)
    assert by_engine(configured["models"][0])["status"] == "right"
