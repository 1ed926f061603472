"""The recorder of TensorRT's answers (`benchmarks.gpu_record`) asks its questions in child processes.

If a question crashes its process, the recorder notes the signal, and asks the other questions in a new process.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_record import record, record_fake
from tests.runtime.fake_tensorrt import probes

#: The recorder's worker, with the fake TensorRT as the library. If the fake raises `ProcessEnded`, the worker kills itself.
WORKER = """
import os, signal, sys
from pathlib import Path
from benchmarks import gpu_record
from tests.runtime.fake_gpu import FakeGpu
from tests.runtime.fake_tensorrt import FakeTensorRT, ProcessEnded

gpu = FakeGpu()
gpu.name, gpu.version = "a fake", 0
sys.modules["tensorrt"] = trt = FakeTensorRT(gpu)
trt.Builder = lambda logger: None
gpu_record.Driver = lambda: gpu
gpu_record.build = lambda _, builder, sample: trt.plan(next(name for name, each in trt.samples.items() if each is sample))
with Path(sys.argv[0]).with_name("processes").open("a") as log:
    print(*sys.argv[3:], file=log)
try:
    gpu_record.ask_probes(Path(sys.argv[2]), sys.argv[3:])
except ProcessEnded:
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_records_a_question_that_ends_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = ["addresses", "empty_tensors"]
    alone = [
        "runs_that_are_not_ready",
        "ends_the_process_by_a_profile_in_use",
        "ends_the_process_by_a_negative_profile",
    ]
    monkeypatch.setattr(probes, "PROBES", {name: probes.PROBES[name] for name in (*together, *alone)})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    (tmp_path / "worker.py").write_text(WORKER)
    recording: dict[str, Any] = record(60, (str(tmp_path / "worker.py"),))
    processes = [line.split() for line in (tmp_path / "processes").read_text().splitlines()]
    assert processes == [together, *([name] for name in alone)]
    assert recording["by"] == {"library": "tensorrt", "version": "8.6.1", "gpu": "a fake", "driver": 0}
    assert recording["answers"] == record_fake()["answers"]
    assert recording["answers"]["ends_the_process_by_a_profile_in_use"]["died"] == -signal.SIGSEGV
    # `in` names the call that ended the process: "the same" is the choice of the same profile in a second context
    assert recording["answers"]["ends_the_process_by_a_profile_in_use"]["in"] == "the same"
