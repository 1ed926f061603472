"""Comparisons of engines on workers that answer correctly, answer wrongly, or have another GPU than the job needs.

Fakes replace the comparison and the GPU."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.driver.farm.cluster import Cluster, Driver
from trtbuild.core.model.comparisons import Comparison, PartitionComparison, Report
from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.core.model.verification import Point, tolerances
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.values.codec import encode
from trtbuild.driver.configuration import Configuration, TrustSettings
from trtbuild.driver.farm import performing
from trtbuild.driver.farm.exchange import blob_files
from trtbuild.driver.farm.farm import ComparedOnWorker
from trtbuild.driver.farm.messages import PROTOCOL, Answer, BlobFiles, FarmJob
from trtbuild.driver.gpu_comparisons import comparing
from trtbuild.driver.gpu_comparisons.gpu_kinds import GpuKind
from trtbuild.driver.gpu_comparisons.job import ComparisonJob
from trtbuild.driver.project import wiring
from trtbuild.driver.verification.records import find_record
from trtbuild.driver.workers.results import Reply
from trtbuild.errors import NotCompared, NoWorker, WorkersError
from trtbuild.stages.verify.job import VerifyJob
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.trust.action_result import record_entry
from trtbuild.store.trust.signing import Signer

CI, STRANGER = Signer("ci", bytes(32)), Signer("stranger", bytes([1]) * 32)

ADA = GpuKind("linux-x86_64", 89, "Pretended GPU", "999.1", {"tensorrt-rtx": "1.7.1"}, {"torch": "2.13.0+cu130"})
NEWER = dataclasses.replace(ADA, driver="999.2")

POINTS = (Point(0, "min", (1,), 7), Point(0, "max", (8,), 8))
PARTITIONS = Partitions((Partition("model", "tensorrt", "f" * 64, (), (), (), ()),), ("model:0",))


def report_of(job: VerifyJob, partition: str = "model") -> Report:
    """The report of a comparison of one partition."""
    compared: dict[str, Any] = {"status": "right", "error": 1e-4, "tolerance": 2e-3}
    compared |= {"precision": "float32", "text": "", "output": 0, "worst": job.points[0], "points": len(job.points)}
    return Report(
        runner="engine",
        points=list(job.points),
        tolerance=2e-3,
        partitions=[PartitionComparison(**compared, partition=partition, onnx=None, place=None)],
        whole=Comparison(**compared),
        lowered=Comparison(**compared),
        worst_input="/of/the/worker",
        versions={"torch": "2.13.0"},
    )


@pytest.fixture(autouse=True)
def _pretended_comparisons(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers pretend to compare. The machine on which they run seems to have the GPU `ADA`."""

    def pretend_to_compare(pool: object, task: str, job: ComparisonJob) -> Reply:
        assert task == "compare-engines"
        local = wiring.open_local(performing.directory())
        for sha256 in job.blobs():
            local.get_bytes(sha256)
        report = report_of(job.job)
        outputs = {comparing.WORST_INPUTS: local.put_bytes(b"inputs")}
        return Reply(outputs, report=report, duration_s=0.1, log="compared\n", peak_rss_bytes=1)

    monkeypatch.setattr(performing, "call", pretend_to_compare)
    monkeypatch.setattr(comparing, "kind_here", lambda ordinal: ADA)


def comparison_job(driver: Driver, gpu: GpuKind = ADA, plan: bytes = b"plan", **changes: Any) -> ComparisonJob:
    """A job whose blobs are in the store of `driver`."""
    put = driver.store.put_bytes
    job = VerifyJob(
        program=put(b"program").sha256,
        modules=put(b"[]").sha256,
        partitions=put(PARTITIONS.to_bytes()).sha256,
        programs={"f" * 64: put(b"program of the partition").sha256},
        onnx={},
        origins={},
        weights=(),
        inputs=(("x", "float32"),),
        tolerances=tolerances("engine"),
        points=POINTS,
        shapes=(((1, 8),), ((8, 8),)),
        ranges={"x": (0, 0.5)},
        **changes,
    )
    plans = {"model": put(plan).sha256}
    return ComparisonJob(job, "e" * 64, False, put(b"index").sha256, "ada", "tensorrt-rtx", "1.7.1", plans, gpu)


def compare(driver: Driver, job: ComparisonJob | None = None) -> ComparedOnWorker:
    with driver.store.session():
        return driver.farm.compare(job or comparison_job(driver), replace=False)


def test_a_report_comes_from_a_worker_through_a_remote_cache(
    cluster: Cluster, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "remote").mkdir()
    url = f"file://{tmp_path / 'remote'}"
    monkeypatch.setenv("TRTBUILD_REMOTES", f"shared=rw:{url}")
    monkeypatch.setenv("TRTBUILD_SIGNING_KEY", STRANGER.text())
    monkeypatch.setenv("TRTBUILD_TRUSTED_KEYS", str(STRANGER.trusted))
    cluster.add_worker("far", project=project, gpu=ADA)
    configuration = Configuration(remotes=(RemoteSettings("team", url),), trust=TrustSettings(keys=(STRANGER.trusted,)))
    driver = Driver(cluster.client, project, configuration, root=tmp_path / "cache of the driver")
    job = comparison_job(driver)
    compared = compare(driver, job)
    assert (compared.worker, compared.log, compared.report.worst) == ("far", "compared\n", b"inputs")
    assert compared.report.report == dataclasses.replace(report_of(job.job), worst_input=None)
    assert find_record(driver.store, job.recipe) == (None, None), "the worker stores no record"
    assert wiring.open_local(project).get_record(job.recipe.key) is None
    with driver.store.session():
        record = compared.report.publish(driver.store)
    assert record.provenance["builder"] and find_record(driver.store, job.recipe)[1] == compared.report.report
    action = driver.store.local.get_action(job.recipe.key)
    assert action is not None and [signature.signer for signature in action.signatures] == ["stranger"]


def test_a_report_without_a_trusted_signature_does_not_count(
    cluster: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTBUILD_SIGNING_KEY", STRANGER.text())
    monkeypatch.setenv("TRTBUILD_TRUSTED_KEYS", str(STRANGER.trusted))
    cluster.add_worker("unknown", project=project, gpu=ADA)
    driver = Driver(
        cluster.client, project, Configuration(trust=TrustSettings(keys=(CI.trusted,), signing_key=CI.text()))
    )
    with pytest.raises(WorkersError, match="unknown: its answer was wrong: its record does not count"):
        compare(driver)


def answer_with_another_key(text: str, name: str) -> Answer:
    """Answer with the report of a job that has another tolerance, and so another key."""
    message = FarmJob.from_text(text)
    assert isinstance(message.job, ComparisonJob)
    job = dataclasses.replace(
        message.job, job=dataclasses.replace(message.job.job, tolerances=tolerances("engine", 0.5))
    )
    return performing._do_job(dataclasses.replace(message, job=job, key=job.recipe.key), name)


def answer_with_other_points(text: str, name: str) -> Answer:
    """Answer with a record of the right key, and a report about only one of the points of the job."""
    return _answer_with_report(text, name, lambda job: report_of(dataclasses.replace(job, points=POINTS[:1])))


def answer_with_another_partition(text: str, name: str) -> Answer:
    return _answer_with_report(text, name, lambda job: report_of(job, partition="another"))


def answer_without_a_report(text: str, name: str) -> Answer:
    return _answer_with_report(text, name, lambda job: [])


def answer_changed_after_signing(text: str, name: str) -> Answer:
    """Answer with a record whose document was changed after signing."""
    signed = performing._do_job(FarmJob.from_text(text), name)
    document = json.loads(signed.document)
    document["provenance"]["builder"] = "someone else"
    return dataclasses.replace(signed, document=json.dumps(document))


def answer_with_a_path_in_place_of_a_digest(text: str, name: str) -> Answer:
    """Answer with the right report, and with a path in place of the digest of the inputs with the largest error."""
    honest = performing._do_job(FarmJob.from_text(text), name)
    return dataclasses.replace(honest, worst=BlobFiles("../" * 8 + "etc/passwd", (Output("a" * 64, 1),)))


def answer_with_inputs_without_files(text: str, name: str) -> Answer:
    """Answer with the right report, and with an empty list of files for the worst inputs."""
    honest = performing._do_job(FarmJob.from_text(text), name)
    return dataclasses.replace(honest, worst=BlobFiles("a" * 64, ()))


def _answer_with_report(text: str, name: str, report_for: Callable[[VerifyJob], object]) -> Answer:
    """Answer with a record of the right key, and the report that `report_for` returns for the job."""
    message = FarmJob.from_text(text)
    assert isinstance(message.job, ComparisonJob)
    local = wiring.open_local(performing.directory())
    output = local.put_bytes(json.dumps(encode(report_for(message.job.job))).encode())
    document = Record(message.job.recipe, {"report": output}).to_bytes()
    file = Output(hashlib.sha256(document).hexdigest(), len(document))
    entry = record_entry(file, {blob.sha256: blob.files for blob in blob_files(local, [output.sha256])})
    honest = performing._do_job(message, name)
    return dataclasses.replace(honest, document=document.decode(), entry=entry.to_bytes().decode())


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (answer_with_another_key, "it is the record of another verify"),
        (answer_with_other_points, "it is the report of another comparison"),
        (answer_with_another_partition, "it is the report of another comparison"),
        (answer_without_a_report, "it is not a report"),
        (answer_with_a_path_in_place_of_a_digest, "a blob or a file has a name that is not a digest"),
        (answer_with_inputs_without_files, "blob a+ has no file, or only one file with another digest"),
    ],
)
def test_a_wrong_answer_is_detected_and_its_worker_is_not_used_again(
    cluster: Cluster, driver: Driver, project: Path, behaviour: Any, reason: str
) -> None:
    cluster.add_worker("liar", behaviour, project=project, gpu=ADA)
    with pytest.raises(WorkersError, match=f"liar: its answer was wrong: {reason}"):
        compare(driver)
    cluster.add_worker("honest", project=project, gpu=ADA)
    assert compare(driver).worker == "honest"


def test_a_document_that_was_changed_after_signing_does_not_count(
    cluster: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTBUILD_SIGNING_KEY", CI.text())
    trust = TrustSettings(keys=(CI.trusted,), signing_key=CI.text())
    cluster.add_worker("liar", answer_changed_after_signing, project=project, gpu=ADA)
    with pytest.raises(WorkersError, match="liar: its answer was wrong: its record does not count"):
        compare(Driver(cluster.client, project, Configuration(trust=trust)))


def test_a_worker_refuses_a_job_if_its_gpu_driver_has_changed(cluster: Cluster, driver: Driver, project: Path) -> None:
    """The worker has announced the GPU driver 999.2, and has 999.1 now."""
    cluster.add_worker("updated", project=project, gpu=NEWER)
    with pytest.raises(WorkersError, match=r"updated: the job is for .*999\.2.*; this machine has .*999\.1"):
        compare(driver, comparison_job(driver, NEWER))


def test_a_job_goes_only_to_the_gpu_of_its_key(cluster: Cluster, driver: Driver, project: Path) -> None:
    cluster.add_worker("newer", project=project, gpu=NEWER)
    with pytest.raises(NoWorker, match=r"no worker has the GPU Pretended GPU \(SM 89, driver 999\.1, .*driver 999\.2"):
        compare(driver)
    assert "the verification waits 0.5 s for one" in driver.messages[0]


def test_a_worker_refuses_a_job_that_contradicts_its_key_or_needs_files_of_the_project(
    cluster: Cluster, driver: Driver, project: Path
) -> None:
    job = comparison_job(driver)
    local = driver.store.local
    message = FarmJob(PROTOCOL, job.recipe.key, job, "", blob_files(local, job.blobs()))
    wrong = performing._answer(dataclasses.replace(message, key="0" * 64).to_text(), "w1")
    assert (
        wrong.outcome == "unfit" and wrong.error is not None and "this worker computes the key" in wrong.error["text"]
    )
    operator = CustomOperator("mylib.roi.default", "mylib::roi(Tensor x) -> Tensor", "mylib")
    with_operator = comparison_job(driver, operators=(operator,))
    refused = performing._answer(dataclasses.replace(message, job=with_operator).to_text(), "w1")
    assert refused.outcome == "failed" and refused.error is not None and refused.error["type"] == "NotCompared"
    assert "its custom operators are files of this project" in refused.error["text"]


def test_the_driver_gets_the_reason_why_the_reference_cannot_run(
    cluster: Cluster, driver: Driver, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Reply:
        raise NotCompared("onnxruntime has no kernel for it")

    monkeypatch.setattr(performing, "call", refuse)
    cluster.add_worker("w1", project=project, gpu=ADA)
    with pytest.raises(NotCompared, match="onnxruntime has no kernel for it"):
        compare(driver)


def test_a_gpu_does_one_comparison_at_a_time_and_two_gpus_do_two(
    cluster: Cluster, driver: Driver, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_run = threading.Barrier(2)
    pretend_to_compare, running, most_running, lock = performing.call, [0], [0], threading.Lock()

    def compare_together(pool: Any, task: str, job: Any) -> Reply:
        with lock:
            running[0] += 1
            most_running[0] = max(most_running[0], running[0])
        both_run.wait(20)
        reply = pretend_to_compare(pool, task, job)
        with lock:
            running[0] -= 1
        return reply

    monkeypatch.setattr(performing, "call", compare_together)
    for name in ("w1", "w2"):
        cluster.add_worker(name, project=project, gpu=ADA)
    jobs = [comparison_job(driver, plan=f"plan {number}".encode()) for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        compared: Sequence[ComparedOnWorker] = list(threads.map(lambda job: compare(driver, job), jobs))
    assert most_running == [2] and {each.worker for each in compared} == {"w1", "w2"}


def test_gpus_are_chosen_among_those_of_the_workers(cluster: Cluster, driver: Driver, project: Path) -> None:
    cluster.add_worker("old", project=project, gpu=ADA)
    cluster.add_worker("new", project=project, gpu=NEWER)
    assert driver.farm.wait_for_gpus(lambda kinds: kinds, "has a GPU") == [ADA, NEWER]
    with pytest.raises(NoWorker, match=r"no worker has a GPU for SM 90; the workers have Pretended GPU \(SM 89, "):
        driver.farm.wait_for_gpus(lambda kinds: [], "has a GPU for SM 90")
    assert driver.messages[0].startswith("no worker has a GPU for SM 90: the verification waits 0.5 s for one; ")
