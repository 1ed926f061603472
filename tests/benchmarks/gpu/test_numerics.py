"""The measurement of ``trtbuild verify`` puts a wrong engine into a package, and its digest into the index."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from benchmarks.gpu.subjects.numerics import _WRONG_PARTITION, _replace_engine


def _package(folder: Path, plan: bytes) -> Path:
    path = folder / "engines" / "gpu" / "p0.plan"
    path.parent.mkdir(parents=True)
    path.write_bytes(plan)
    files = {"engines/gpu/p0.plan": {"sha256": hashlib.sha256(plan).hexdigest(), "size": len(plan)}}
    index = {"targets": {"gpu": {"engines": {_WRONG_PARTITION: "engines/gpu/p0.plan"}}}, "files": files}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def test_replaces_the_engine_and_its_digest(tmp_path: Path) -> None:
    one, other = _package(tmp_path / "one", b"one"), _package(tmp_path / "other", b"the other")
    _replace_engine(one, other)
    assert (one / "engines/gpu/p0.plan").read_bytes() == b"the other"
    entry = json.loads((one / "index.json").read_text())["files"]["engines/gpu/p0.plan"]
    assert entry == {"sha256": hashlib.sha256(b"the other").hexdigest(), "size": 9}
