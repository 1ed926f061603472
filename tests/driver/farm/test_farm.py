"""Engine steps on workers that are slow, missing, wrong or hostile. A test that causes a fault checks that the fault has
happened."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Future, Worker

from tests.driver.farm.cluster import VERSION, Behaviour, Cluster, Driver, engine_job
from tests.faults.disks import mounted
from trtbuild.core.model.spec import Target
from trtbuild.driver.configuration import Configuration, TrustSettings
from trtbuild.driver.farm import answers, labels, opening, performing
from trtbuild.driver.farm import farm as farm_module
from trtbuild.driver.farm.exchange import blob_files
from trtbuild.driver.farm.farm import CompiledOnWorker
from trtbuild.driver.farm.messages import PROTOCOL, Answer, FarmJob
from trtbuild.driver.farm.processes import processes_here
from trtbuild.driver.project import wiring
from trtbuild.errors import (
    BlobMissing,
    EnvironmentFault,
    NoWorker,
    RemoteDown,
    SchedulerLost,
    StoreError,
    StoreUnavailable,
    ToolchainError,
    WorkersError,
)
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.trust.signing import Signer

CI, STRANGER = Signer("ci", bytes(32)), Signer("stranger", bytes([1]) * 32)


class CountingBehaviour:
    """A `Behaviour` that records its jobs, and calls `answer` for each."""

    def __init__(self, answer: Callable[[str, str], Answer]) -> None:
        self.jobs: list[FarmJob] = []
        self._answer = answer

    def __call__(self, text: str, name: str) -> Answer:
        self.jobs.append(FarmJob.from_text(text))
        return self._answer(text, name)


def honest_answer(text: str, name: str) -> Answer:
    """The answer of a worker without a fault, even if `Cluster.behaviours` has a function for `name`."""
    return performing._do_job(FarmJob.from_text(text), name)


def test_an_engine_comes_from_a_worker(cluster: Cluster, driver: Driver, project: Path) -> None:
    cluster.add_worker("w1", project=project)
    compiled = driver.compile()
    assert compiled.worker == "w1"
    assert compiled.log == "pretended\n"
    assert driver.store.get_record(compiled.record.recipe.key) is not None
    assert driver.messages == []


def test_a_build_begins_before_the_first_worker_has_joined(cluster: Cluster, driver: Driver, project: Path) -> None:
    """A build begins without workers, but it does not begin if all workers that have joined use other stores."""
    with opening.open_farm(cluster.address, project, Configuration(), driver.store, driver.messages.append):
        pass
    cluster.add_worker(
        "apart", project=project, **{labels.directory_label(driver.store.local.root): "trtbuild store other"}
    )
    with (
        pytest.raises(EnvironmentFault, match="through a store that this machine and the workers reach"),
        opening.open_farm(cluster.address, project, Configuration(), driver.store, driver.messages.append),
    ):
        pass


def test_a_job_without_a_worker_fails_after_the_wait_and_the_next_one_at_once(
    cluster: Cluster, driver: Driver, project: Path
) -> None:
    cluster.add_worker("w1", project=project)
    started = time.monotonic()
    with pytest.raises(NoWorker) as caught:
        driver.compile(target=Target("hopper", 90, "tensorrt"), version="8.6.0")
    assert time.monotonic() - started >= 0.5  # the default `wait_s` of `Driver`
    (message,) = driver.messages
    for text in (message, caught.value.text):
        assert "no worker compiles for tensorrt 8.6.0 linux-x86_64 SM 90" in text
        assert f"tensorrt-rtx {VERSION} linux-x86_64 any SM (1 worker)" in text
    started = time.monotonic()
    with pytest.raises(NoWorker):
        driver.compile(b"second", target=Target("hopper", 90, "tensorrt"), version="8.6.0")
    assert time.monotonic() - started < 0.5


def test_a_label_that_was_typed_wrong_fits_no_job(cluster: Cluster, driver: Driver, project: Path) -> None:
    cluster.add_worker("w1", project=project, **{"any SM": "any sm"})
    with pytest.raises(NoWorker, match=r"compile for tensorrt-rtx \S+ linux-x86_64 any sm \(1 worker\)"):
        driver.compile()


def test_a_late_worker_is_used(cluster: Cluster, project: Path) -> None:
    driver = Driver(cluster.client, project, Configuration(), wait_s=30)
    with ThreadPoolExecutor(1) as thread:
        compiled = thread.submit(driver.compile)
        while not driver.messages:
            assert not compiled.done()
            time.sleep(0.01)
        cluster.add_worker("late", project=project)
        assert compiled.result(timeout=20).worker == "late"


def test_containers_with_one_host_name_and_process_id_can_join(cluster: Cluster, driver: Driver, project: Path) -> None:
    """Two calls in this process stand for two containers, or for a container and its successor."""
    names = {process.name for _ in range(2) for process in processes_here(project, 1, 1)}
    for name in names:
        cluster.add_worker(name, project=project)
    assert {worker.name for worker in driver.workers.overview(0.0).workers} == names
    assert len(names) == 2


def test_workers_of_another_release_are_left_out(cluster: Cluster, driver: Driver, project: Path) -> None:
    old = CountingBehaviour(honest_answer)
    cluster.add_worker("old", old, project=project, release="release 0.0")
    cluster.add_worker("new", project=project)
    assert driver.compile().worker == "new"
    assert old.jobs == []
    assert any("worker old is left out: it has trtbuild 0.0" in message for message in driver.messages)


def test_workers_with_another_toolchain_are_left_out(cluster: Cluster, driver: Driver, project: Path) -> None:
    other = CountingBehaviour(honest_answer)
    cluster.add_worker("other", other, project=project, **{f"tensorrt-rtx {VERSION}": "tensorrt-rtx 1.3.0"})
    with pytest.raises(NoWorker, match=r"the workers compile for tensorrt-rtx 1\.3\.0"):
        driver.compile()
    assert other.jobs == []


def test_workers_that_share_no_store_are_left_out(cluster: Cluster, driver: Driver, project: Path) -> None:
    store = labels.directory_label(driver.store.local.root)
    far = CountingBehaviour(honest_answer)
    cluster.add_worker("far", far, project=project, **{store: "trtbuild store elsewhere"})
    with pytest.raises(NoWorker, match="far: it shares no store with this build"):
        driver.compile()
    assert far.jobs == []


# -- workers that send wrong answers


def wrong_bytes(text: str, name: str) -> Answer:
    """Compile, and then damage the plan in the store."""
    answer = honest_answer(text, name)
    local = wiring.open_local(performing.directory())
    plan = json.loads(answer.document)["outputs"]["plan"]["sha256"]
    path = Path(local.entries.layout.entry_path("cas", plan))
    path.chmod(0o600)
    path.write_bytes(b"x" * path.stat().st_size)
    return answer


def another_engine(text: str, name: str) -> Answer:
    """Answer with the engine of another key."""
    job, recipe = engine_job(b"another")
    local = wiring.open_local(performing.directory())
    local.put_bytes(b"another")
    message = FarmJob.from_text(text)
    return honest_answer(
        replace(message, key=recipe.key, job=job, inputs=blob_files(local, [job.onnx])).to_text(), name
    )


def nonsense(text: str, name: str) -> Answer:
    return Answer(PROTOCOL, FarmJob.from_text(text).key, name, "done", document="{}", entry="[]")


def not_unicode(text: str, name: str) -> Answer:
    return Answer(PROTOCOL, FarmJob.from_text(text).key, name, "done", document="\ud800", entry="{}")


class UnreadableAnswer(Answer):
    """An answer whose text has only one member, the version of the protocol."""

    def to_text(self) -> str:
        return json.dumps({"protocol": PROTOCOL})


def unreadable(text: str, name: str) -> Answer:
    return UnreadableAnswer(PROTOCOL, FarmJob.from_text(text).key, name, "done")


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (unreadable, "the answer cannot be read"),
        (wrong_bytes, "was damaged"),
        (another_engine, "it is the record of another engine"),
        (nonsense, "it is not a record"),
        (not_unicode, "codec can't encode character"),
    ],
)
def test_a_wrong_answer_is_detected_and_its_worker_is_not_used_again(
    cluster: Cluster, driver: Driver, project: Path, behaviour: Behaviour, reason: str
) -> None:
    liar = CountingBehaviour(behaviour)
    cluster.add_worker("liar", liar, project=project)
    with pytest.raises(NoWorker, match=f"liar: its answer was wrong: .*{reason}"):
        driver.compile()
    cluster.add_worker("honest", project=project)
    assert driver.compile().worker == "honest"
    assert len(liar.jobs) == 1
    assert any(reason in message and "worker liar is left out" in message for message in driver.messages)


def test_a_record_without_a_trusted_signature_does_not_count(
    cluster: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTBUILD_SIGNING_KEY", STRANGER.text())
    monkeypatch.setenv("TRTBUILD_TRUSTED_KEYS", str(STRANGER.trusted))
    cluster.add_worker("unknown", project=project)
    driver = Driver(
        cluster.client, project, Configuration(trust=TrustSettings(keys=(CI.trusted,), signing_key=CI.text()))
    )
    with pytest.raises(WorkersError, match="unknown: its answer was wrong: its record does not count"):
        driver.compile()


def test_a_worker_signs_with_its_own_key(cluster: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTBUILD_SIGNING_KEY", STRANGER.text())
    monkeypatch.setenv("TRTBUILD_TRUSTED_KEYS", str(STRANGER.trusted))
    cluster.add_worker("w1", project=project)
    driver = Driver(cluster.client, project, Configuration(trust=TrustSettings(keys=(STRANGER.trusted,))))
    key = driver.compile().record.recipe.key
    entry = driver.store.local.get_action(key)
    assert entry is not None
    assert [signature.signer for signature in entry.signatures] == ["stranger"]


# -- workers that cannot do the job


def no_remote(text: str, name: str) -> Answer:
    return performing._answer_of_error(FarmJob.from_text(text).key, name, RemoteDown("the store is unreachable"))


def test_another_worker_does_the_job_of_one_that_cannot_do_it(cluster: Cluster, driver: Driver, project: Path) -> None:
    unfit = CountingBehaviour(no_remote)
    cluster.add_worker("unfit", unfit, project=project)
    with pytest.raises(NoWorker, match="unfit: the store is unreachable"):
        driver.compile()
    cluster.add_worker("fit", project=project)
    assert driver.compile().worker == "fit"
    assert len(unfit.jobs) == 1


def test_a_worker_that_was_left_out_gets_no_job_if_the_other_workers_have_just_ended(
    cluster: Cluster, driver: Driver, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit = CountingBehaviour(no_remote)
    cluster.add_worker("unfit", unfit, project=project)
    with pytest.raises(NoWorker):
        driver.compile()
    store, wait, found = labels.directory_label(driver.store.local.root), driver.workers.wait_for_store, []

    def find_a_worker_that_ends_at_once(*arguments: Any) -> str:
        found.append(store)
        return store if len(found) == 1 else wait(*arguments)

    monkeypatch.setattr(driver.workers, "wait_for_store", find_a_worker_that_ends_at_once)
    with pytest.raises(NoWorker):
        driver.compile()
    assert len(found) == 2 and len(unfit.jobs) == 1


def test_a_refusal_of_the_compiler_is_final(cluster: Cluster, driver: Driver, project: Path) -> None:
    def refuse(text: str, name: str) -> Answer:
        return performing._answer_of_error(FarmJob.from_text(text).key, name, ToolchainError("unsupported layer"))

    refusing = [CountingBehaviour(refuse), CountingBehaviour(refuse)]
    for number, behaviour in enumerate(refusing):
        cluster.add_worker(f"w{number}", behaviour, project=project)
    with pytest.raises(ToolchainError, match="unsupported layer"):
        driver.compile()
    assert sum(len(each.jobs) for each in refusing) == 1


def test_a_step_fails_after_the_third_death_of_its_compiler(cluster: Cluster, driver: Driver, project: Path) -> None:
    def die(text: str, name: str) -> Answer:
        error = {"type": "WorkerDied", "text": "the process that compiles the engine was ended by SIGKILL"}
        return Answer(PROTOCOL, FarmJob.from_text(text).key, name, "died", error=error, log="last words\n")

    dying = CountingBehaviour(die)
    cluster.add_worker("w1", dying, project=project)
    with pytest.raises(WorkersError, match=r"(w1: the process that compiles.*\s*){3}") as caught:
        driver.compile()
    assert len(dying.jobs) == 3
    assert caught.value.worker_log == "last words\n" * 3


def test_another_worker_does_the_job_of_one_that_does_not_send_its_answer(
    cluster: Cluster, driver: Driver, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "RESULT_TIMEOUT_S", 3.0)
    silent: list[str] = []

    def silence_the_first(worker: Worker) -> None:
        send = worker.handlers["get_data"]

        async def send_or_wait(comm: object, **options: object) -> object:
            if not silent:
                silent.append(worker.name)
                await asyncio.sleep(60)
            return await send(comm, **options)

        worker.handlers["get_data"] = send_or_wait

    for name in ("w1", "w2"):
        silence_the_first(cluster.add_worker(name, project=project))
    assert {driver.compile().worker, *silent} == {"w1", "w2"}
    assert driver.messages == [f"worker {silent[0]} is left out: it has not sent its answer in 3 s"]


def test_an_engine_of_a_worker_whose_clock_is_wrong_by_a_year_is_accepted(
    cluster: Cluster, driver: Driver, project: Path
) -> None:
    years: list[str] = []

    def answer_of_next_year(text: str, name: str) -> Answer:
        original_gmtime = time.gmtime
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "gmtime", lambda *_: original_gmtime(time.time() + 365 * 86400))
            answer = honest_answer(text, name)
        years.append(json.loads(answer.document)["provenance"]["finished"][:4])
        return answer

    cluster.add_worker("w1", answer_of_next_year, project=project)
    driver.compile()
    assert years == [str(time.gmtime().tm_year + 1)]


# -- several jobs, and an interrupted build


def test_two_builds_share_one_job(cluster: Cluster, project: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def wait(text: str, name: str) -> Answer:
        begun.set()
        assert may_end.wait(20)
        return honest_answer(text, name)

    slow = CountingBehaviour(wait)
    cluster.add_worker("w1", slow, project=project, slots=2)
    drivers = [Driver(cluster.client, project, Configuration()) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(drivers[0].compile)
        assert begun.wait(20)
        second = threads.submit(drivers[1].compile)
        deadline = time.monotonic() + 20
        while not drivers[1].farm._futures:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        may_end.set()
        assert first.result(timeout=20).record == second.result(timeout=20).record
    assert len(slow.jobs) == 1


def test_two_jobs_of_one_build_share_a_task_and_each_has_its_answer(
    cluster: Cluster, driver: Driver, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job releases only its future. Otherwise the scheduler would drop the task that both jobs share."""
    counting = CountingBehaviour(honest_answer)
    cluster.add_worker("w1", counting, project=project, slots=2)
    first_has_ended, both_wait = threading.Event(), threading.Barrier(2)
    answer_of, submit, order = answers.answer_of, cluster.client.submit, []

    def note_order(*arguments: Any, **options: Any) -> Future[str]:
        future = submit(*arguments, **options)
        order.append(id(future))
        return future

    def in_turns(future: Future[str], message: FarmJob) -> Answer:
        both_wait.wait(20)
        if id(future) != order[0]:
            assert first_has_ended.wait(20)
            time.sleep(0.5)  # the client needs time to process the release of the first future
        return answer_of(future, message)

    monkeypatch.setattr(cluster.client, "submit", note_order)
    monkeypatch.setattr(farm_module, "answer_of", in_turns)

    def compile_one() -> CompiledOnWorker:
        compiled = driver.compile()
        gc.collect()  # releases the future of this job
        first_has_ended.set()
        return compiled

    with ThreadPoolExecutor(2) as threads:
        compiled = [threads.submit(compile_one) for _ in range(2)]
        records = [each.result(timeout=60).record for each in compiled]
    assert records[0] == records[1]
    assert len(counting.jobs) == 1
    assert driver.farm._futures == []


def test_a_full_disk_of_the_driver_is_not_the_fault_of_a_worker(
    cluster: Cluster, driver: Driver, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = CountingBehaviour(honest_answer)
    cluster.add_worker("w1", counting, project=project)

    def full(*_: object, **__: object) -> None:
        raise StoreUnavailable("no space left on the driver")

    monkeypatch.setattr(farm_module, "verified_record", full)
    with pytest.raises(StoreUnavailable, match="no space left on the driver"):
        driver.compile()
    assert len(counting.jobs) == 1
    assert not any("left out" in message for message in driver.messages)


def test_a_farm_has_room_for_a_job_in_each_slot_of_its_workers(cluster: Cluster, driver: Driver, project: Path) -> None:
    cluster.add_worker("w1", project=project, slots=2)
    label = labels.engine_label(engine_job(b"onnx")[0])
    assert driver.farm.has_room(label)
    driver.farm.begin(label)
    assert driver.farm.has_room(label)
    driver.farm.begin(label)
    assert not driver.farm.has_room(label)
    driver.farm.end(label)
    assert driver.farm.has_room(label)


def test_a_slot_of_another_build_is_not_free(cluster: Cluster, driver: Driver, project: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def wait(text: str, name: str) -> Answer:
        begun.set()
        assert may_end.wait(20)
        return honest_answer(text, name)

    cluster.add_worker("w1", wait, project=project)
    other = Driver(cluster.client, project, Configuration())
    label = labels.engine_label(engine_job(b"onnx")[0])
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(other.compile)
        assert begun.wait(20)
        assert driver.workers.usable_slots(label, ()) == 0
        may_end.set()
        running.result(timeout=20)


def test_an_interrupted_build_does_not_wait_for_its_jobs(cluster: Cluster, driver: Driver, project: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def wait(text: str, name: str) -> Answer:
        begun.set()
        may_end.wait(20)
        return honest_answer(text, name)

    cluster.add_worker("w1", wait, project=project)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(driver.compile)
        assert begun.wait(20)
        driver.farm.cancel()
        with pytest.raises(SchedulerLost, match="the build was interrupted"):
            running.result(timeout=20)
        may_end.set()


# -- bytes through a remote cache


def test_bytes_go_through_a_remote_cache(
    cluster: Cluster, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "remote").mkdir()
    url = f"file://{tmp_path / 'remote'}"
    monkeypatch.setenv("TRTBUILD_REMOTES", f"shared=rw:{url}")
    cluster.add_worker("far", project=project)
    configuration = Configuration(remotes=(RemoteSettings("team", url),))
    driver = Driver(cluster.client, project, configuration, root=tmp_path / "cache of the driver")
    compiled = driver.compile(os.urandom(2 << 20))  # several chunks
    assert compiled.worker == "far"
    assert driver.store.local.get_record(compiled.record.recipe.key) is not None
    assert wiring.open_local(project).has(compiled.record.outputs["plan"].sha256), "the worker has another cache"
    driver.store.finish()
    assert list((tmp_path / "remote" / "ac").glob("*/*")), "the driver publishes the record"


def test_a_job_goes_through_another_store_when_the_workers_of_its_store_have_ended(
    cluster: Cluster, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first worker shares the cache directory with the build, and the second one only the remote cache."""
    (tmp_path / "remote").mkdir()
    url = f"file://{tmp_path / 'remote'}"
    begun, has_ended = threading.Event(), threading.Event()

    def wait(text: str, name: str) -> Answer:
        begun.set()
        has_ended.wait(20)
        return honest_answer(text, name)

    driver = Driver(cluster.client, project, Configuration(remotes=(RemoteSettings("team", url),)), wait_s=30)
    near = cluster.add_worker("near", wait, project=project)
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=rw:{url}")
    with ThreadPoolExecutor(1) as thread:
        compiled = thread.submit(driver.compile)
        assert begun.wait(20)
        store = labels.directory_label(driver.store.local.root)
        cluster.add_worker("far", project=project, **{store: "trtbuild store elsewhere"})
        cluster.stop(near)
        has_ended.set()
        try:
            assert compiled.result(timeout=20).worker == "far"
        finally:
            driver.farm.cancel()


def test_a_worker_with_a_full_disk_is_left_out(
    cluster: Cluster, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "remote").mkdir()
    url = f"file://{tmp_path / 'remote'}"
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=rw:{url}")
    configuration = Configuration(remotes=(RemoteSettings("team", url),))
    driver = Driver(cluster.client, project, configuration, root=tmp_path / "cache of the driver")
    with mounted(tmp_path / "small", "size=512k") as small:
        monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(small / "cache"))
        cluster.add_worker("full", project=project)
        with pytest.raises(NoWorker, match=r"full: .*[Nn]o space left"):
            driver.compile(os.urandom(2 << 20))
        cluster.clear()


def test_a_worker_that_has_lost_the_remote_cache_is_left_out(
    cluster: Cluster, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of the remote disappears after the driver has put the inputs there."""
    remote = tmp_path / "remote"
    remote.mkdir()
    url = f"file://{remote}"
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=rw:{url}")

    def lose_the_remote(text: str, name: str) -> Answer:
        shutil.rmtree(remote)
        return performing._answer_of_error("", name, _error_of_job(text, name))

    cluster.add_worker("far", lose_the_remote, project=project)
    configuration = Configuration(remotes=(RemoteSettings("team", url),))
    driver = Driver(cluster.client, project, configuration, root=tmp_path / "cache of the driver")
    with pytest.raises(NoWorker, match="far: "):
        driver.compile()
    assert not remote.exists()


# -- inputs that a worker cannot read


def test_a_damaged_input_is_not_the_fault_of_a_worker(cluster: Cluster, driver: Driver, project: Path) -> None:
    """The build then runs the step again that made the input, as it does without workers."""
    input_file = Path(driver.store.local.entries.layout.entry_path("cas", engine_job(b"onnx")[0].onnx))

    def damage_and_answer(text: str, name: str) -> Answer:
        input_file.chmod(0o600)
        input_file.write_bytes(b"ONNX")
        return performing._answer_of_error("", name, _error_of_job(text, name))

    damaging = CountingBehaviour(damage_and_answer)
    cluster.add_worker("w1", damaging, project=project)
    with pytest.raises(BlobMissing):
        driver.compile()
    assert len(damaging.jobs) == 1
    cluster.behaviours.clear()
    assert driver.compile().worker == "w1"
    assert driver.messages == []


@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_input_that_the_remote_cache_has_lost_is_sent_again(
    cluster: Cluster, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    url = f"file://{remote}"
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=rw:{url}")

    def lose_the_input_once(text: str, name: str) -> Answer:
        (file,) = remote.glob(f"cas/*/{FarmJob.from_text(text).inputs[0].sha256}")
        if len(losing.jobs) == 1:
            file.unlink()
            if is_damaged:
                file.write_bytes(b"ONNX")
            return performing._answer_of_error("", name, _error_of_job(text, name))
        return honest_answer(text, name)

    losing = CountingBehaviour(lose_the_input_once)
    cluster.add_worker("far", losing, project=project)
    configuration = Configuration(remotes=(RemoteSettings("team", url),))
    driver = Driver(cluster.client, project, configuration, root=tmp_path / "cache of the driver")
    assert driver.compile().worker == "far"
    assert len(losing.jobs) == 2
    assert driver.messages == []


def _error_of_job(text: str, name: str) -> Exception:
    """The error of a job that cannot succeed."""
    with pytest.raises(StoreError) as caught:
        honest_answer(text, name)
    return caught.value
