"""``trtbuild verify`` on the GPU: the engines of every package, one model by its project, and a package with an engine
that is wrong on purpose.

The project's trace was made on another machine, by another torch: this machine may use it because of ``trtbuild lock``.

The wrong engine belongs to another model with the same inputs and outputs. It replaces the right one in a copy of the
package, and the copy's index has its digest. All digests are right, so only a run can show the error. `verify` must fail
and name the partition.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.figure import Check, Row
from benchmarks.gpu.host import Host
from trtbuild.core.model.verification_messages import worst
from trtbuild.core.model.verified import CutEntry
from trtbuild.core.values.codec import decode

#: Model and partition whose engine is replaced, and by whose: both take and give (batch, 64).
_WRONG, _PART, _BY = "three_parts", "p0", "chosen"
_BY_PROJECT = "attention"


def rows(host: Host) -> Iterator[Row]:
    """A row for each package, then the project's, then the wrong one."""
    packages = [str(index.parent) for index in sorted((host.examples / "dist").glob("*/index.json"))]
    yield from _verified(host, "its engines", packages)
    locked = host.trtbuild(host.examples, "lock", _BY_PROJECT, bare=True)
    if locked.returncode:
        yield Check(f"{_BY_PROJECT}: lock", False, locked.stderr.strip()[-300:])
    yield from _verified(host, "its project", [_BY_PROJECT])
    yield _wrong_on_purpose(host)


def _verified(host: Host, by: str, what: list[str]) -> Iterator[Row]:
    done = host.trtbuild(host.examples, "verify", "--json", *what)
    (host.work / "verify.json").write_text(done.stdout)
    (host.work / "verify.stderr").write_text(done.stderr)
    for report in json.loads(done.stdout)["models"]:
        cuts = [decode(CutEntry, cut) for cut in report["cuts"] if cut["by"] != "onnxruntime"]
        missed = [entry["reason"] for entry in report["not_run"]]
        found = "; ".join([*(_said(cut) for cut in cuts), *missed]) or report["status"]
        yield Check(f"{report['model']}: verify by {by}", bool(cuts) and report["ok"], found)
    for error in json.loads(done.stdout)["errors"]:
        print(f"    {error['text']}")


def _said(cut: CutEntry) -> str:
    error, tolerance = worst(cut)
    return f"{cut.status}, worst {error:.1e} of {tolerance:.0e} at {len(cut.points)} points"


def _wrong_on_purpose(host: Host) -> Row:
    package = host.work / "wrong" / _WRONG
    shutil.rmtree(package.parent, ignore_errors=True)
    shutil.copytree(host.examples / "dist" / _WRONG, package)
    _replace(package, host.examples / "dist" / _BY)
    done = host.trtbuild(host.examples, "verify", "--json", str(package))
    (host.work / "wrong.json").write_text(done.stdout)
    (report,) = json.loads(done.stdout)["models"]
    wrong = {entry["partition"] for cut in report["cuts"] for entry in cut["partitions"] if entry["status"] == "wrong"}
    named = ", ".join(sorted(wrong)) or "none"
    return Check(
        "an engine that is wrong on purpose is found", done.returncode == 1 and wrong == {_PART}, f"wrong: {named}"
    )


def _replace(package: Path, other: Path) -> None:
    """Put the engine of another package into this one, and its digest into the index."""
    file = package / "index.json"
    index, theirs = json.loads(file.read_text()), json.loads((other / "index.json").read_text())
    (target,) = index["targets"]
    path = _plan(index, target)
    data = (other / _plan(theirs, target)).read_bytes()
    (package / path).write_bytes(data)
    index["files"][path] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    file.write_text(json.dumps(index))


def _plan(index: Mapping[str, Any], target: str) -> str:
    return str(index["targets"][target]["engines"][_PART])
