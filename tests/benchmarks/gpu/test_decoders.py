"""The measurement of decoders compares a decoder with PyTorch only if each package that the comparison needs was built."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from benchmarks.figure import Measurement, Value
from benchmarks.gpu.host import Host
from benchmarks.gpu.project import Hardware, write_decoders
from benchmarks.gpu.subjects.decoders import rows


class FakeHost(Host):
    """A host on which each command of trtbuild prints an empty document."""

    def trtbuild(self, project: Path, *arguments: str, without_torch: bool = False) -> subprocess.CompletedProcess[str]:
        document = {"totals": {}, "steps": [], "models": [], "errors": []}
        return subprocess.CompletedProcess(arguments, 0, json.dumps(document), "")


def test_the_growing_decoder_is_not_compared_without_prefill(tmp_path: Path) -> None:
    project = write_decoders(tmp_path / "decoders", Hardware(), layers=1, hidden=256)
    package = project / "dist" / "growing_decoder"
    package.mkdir(parents=True)
    index = {"targets": {"gpu": {"partitions": {"partitions": [{"kind": "tensorrt"}]}}}}
    (package / "index.json").write_text(json.dumps(index))
    host = FakeHost(
        examples=tmp_path,
        vit=tmp_path,
        quantized=tmp_path,
        decoders=project,
        python_without_torch=None,
        points=0,
        repeats=1,
        work=tmp_path,
        device="cpu",
    )
    _steps_that_ran, partitions = rows(host)
    assert partitions == Measurement("growing_decoder: partitions", Value("tensorrt", 1, ""))
