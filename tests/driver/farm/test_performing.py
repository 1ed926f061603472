"""The checks of a worker before it compiles, and messages from other releases of trtbuild."""

from __future__ import annotations

import functools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.driver.farm.cluster import engine_job, pretend_to_compile
from trtbuild.core.model.spec import Target
from trtbuild.driver.farm import labels, performing
from trtbuild.driver.farm.exchange import blob_files
from trtbuild.driver.farm.messages import PROTOCOL, Answer, FarmJob
from trtbuild.driver.project import wiring


@pytest.fixture
def job(project: Path, monkeypatch: pytest.MonkeyPatch) -> FarmJob:
    """A job that this worker can do."""
    monkeypatch.setattr(performing, "call", pretend_to_compile)
    local = wiring.open_local(project)
    local.put_bytes(b"onnx")
    engine, recipe = engine_job(b"onnx")
    inputs = blob_files(local, [engine.onnx])
    return FarmJob(PROTOCOL, recipe.key, engine, labels.directory_label(local.root), inputs)


def refusal(job: FarmJob, **changes: Any) -> str:
    """The text of a worker's refusal. The answer must be ``unfit``: another worker may be able to do the job."""
    document = {**json.loads(job.to_text()), **changes}
    answer = performing._answer(json.dumps(document), "w1")
    assert answer.outcome == "unfit"
    assert answer.error is not None
    return str(answer.error["text"])


def test_a_worker_does_a_job_and_its_answer_can_be_read(job: FarmJob) -> None:
    answer = performing._answer(job.to_text(), "w1")
    assert (answer.outcome, answer.key, answer.worker) == ("done", job.key, "w1")
    assert Answer.from_text(answer.to_text()) == answer


def test_a_worker_uses_a_record_that_is_in_its_store(job: FarmJob, monkeypatch: pytest.MonkeyPatch) -> None:
    first = performing._answer(job.to_text(), "w1")
    monkeypatch.setattr(performing, "call", None)  # a second call would fail
    assert performing._answer(job.to_text(), "w1").document == first.document
    with_replace = performing._answer(replace(job, replace=True).to_text(), "w1")
    assert with_replace.outcome == "failed"


def test_refuses_a_job_of_a_newer_trtbuild(job: FarmJob) -> None:
    assert f"version {PROTOCOL + 1} of the protocol, and this trtbuild knows {PROTOCOL}" in refusal(
        job, protocol=PROTOCOL + 1
    )


def test_refuses_a_job_with_an_unknown_field(job: FarmJob) -> None:
    assert "FarmJob has no field priority" in refusal(job, priority=1)


def test_refuses_a_job_that_contradicts_its_key(job: FarmJob) -> None:
    assert "this worker computes the key" in refusal(job, key="0" * 64)


def test_refuses_another_version_of_the_toolchain(job: FarmJob) -> None:
    engine, recipe = engine_job(b"onnx", version="1.3.0")
    assert "the job needs tensorrt-rtx 1.3.0" in refusal(replace(job, job=engine, key=recipe.key))


def test_refuses_an_sm_that_it_cannot_build_for(job: FarmJob) -> None:
    engine, recipe = engine_job(b"onnx", target=Target("hopper", 90))
    assert "builds for SM" in refusal(replace(job, job=engine, key=recipe.key))


def test_refuses_a_store_that_it_does_not_reach(job: FarmJob) -> None:
    assert "the store of the job is not configured here" in refusal(job, store="trtbuild store elsewhere")


def test_refuses_a_job_that_does_not_list_its_inputs(job: FarmJob) -> None:
    assert "does not list its input" in refusal(job, inputs=[])


def test_a_damaged_input_is_found_before_the_compiler_reads_it(job: FarmJob, project: Path) -> None:
    path = Path(wiring.open_local(project).entries.layout.entry_path("cas", job.job.onnx))
    path.chmod(0o600)
    path.write_bytes(b"xnno")
    assert "was damaged" in refusal(job)


def test_the_first_jobs_of_several_threads_share_one_pool(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created = []

    def create(store_root: Path, folder: Path) -> object:
        time.sleep(0.2)  # the other threads call `pool` meanwhile
        created.append(folder)
        return object()

    monkeypatch.setattr(performing, "WorkerPool", create)
    monkeypatch.setattr(performing, "_only_pool", functools.cache(performing._only_pool.__wrapped__))
    with ThreadPoolExecutor(4) as threads:
        pools = [threads.submit(performing.pool) for _ in range(4)]
    assert len({id(pool.result()) for pool in pools}) == 1
    assert len(created) == 1
