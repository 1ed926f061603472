"""Run ``trtbuild verify`` on the GPU: on every package, on a model of the project, and on a package with a wrong engine.

Another machine, with another version of torch, traced the models of the project. This machine uses these traces after
``trtbuild lock``, which a Python without torch runs.

The wrong engine belongs to another model with the same inputs and outputs. It replaces the right engine in a copy of the
package. The index of the copy has the digest of the wrong engine, so only a run can show the error. `verify` must fail and
name the partition.
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
from trtbuild.core.model.verification_messages import worst_error
from trtbuild.core.model.verified import CutEntry
from trtbuild.core.values.codec import decode

#: The model and the partition whose engine is replaced, and the model whose engine replaces it. Inputs and outputs of both
#: engines have the shape (batch, 64).
_WRONG_MODEL, _WRONG_PARTITION, _REPLACEMENT_MODEL = "three_parts", "p0", "chosen"
_PROJECT_MODEL = "attention"


def rows(host: Host) -> Iterator[Row]:
    packages = [str(index.parent) for index in sorted((host.examples / "dist").glob("*/index.json"))]
    yield from verify_rows(host, host.examples, "its engines", packages)
    locked = host.trtbuild(host.examples, "lock", _PROJECT_MODEL, without_torch=True)
    if locked.returncode:
        yield Check(f"{_PROJECT_MODEL}: lock", False, locked.stderr.strip()[-300:])
    yield from verify_rows(host, host.examples, "its project", [_PROJECT_MODEL])
    yield _check_wrong_engine(host)


def verify_rows(host: Host, project: Path, title_ending: str, names: list[str]) -> Iterator[Row]:
    """Verify the models or packages `names` of a project. The title of each row ends with `title_ending`.

    Each entry of `cuts` is one comparison of the model in one cut (a way to divide a model into partitions). Entries for
    onnxruntime are left out.
    """
    process = host.trtbuild(project, "verify", "--json", *names)
    (host.work / f"verify-{project.name}.json").write_text(process.stdout)
    (host.work / f"verify-{project.name}.stderr").write_text(process.stderr)
    document = json.loads(process.stdout)
    for report in document["models"]:
        cuts = [decode(CutEntry, cut) for cut in report["cuts"] if cut["by"] != "onnxruntime"]
        not_run = [entry["reason"] for entry in report["not_run"]]
        found = "; ".join([*(_text(cut) for cut in cuts), *not_run]) or report["status"]
        yield Check(f"{report['model']}: verify by {title_ending}", bool(cuts) and report["ok"], found)
    for error in document["errors"]:
        print(f"    {error['text']}")


def _text(cut: CutEntry) -> str:
    error, tolerance = worst_error(cut)
    return f"{cut.status}, worst {error:.1e} of {tolerance:.0e} at {len(cut.points)} points"


def _check_wrong_engine(host: Host) -> Row:
    package = host.work / "wrong" / _WRONG_MODEL
    shutil.rmtree(package.parent, ignore_errors=True)
    shutil.copytree(host.examples / "dist" / _WRONG_MODEL, package)
    _replace_engine(package, host.examples / "dist" / _REPLACEMENT_MODEL)
    process = host.trtbuild(host.examples, "verify", "--json", str(package))
    (host.work / "wrong.json").write_text(process.stdout)
    (report,) = json.loads(process.stdout)["models"]
    wrong = {entry["partition"] for cut in report["cuts"] for entry in cut["partitions"] if entry["status"] == "wrong"}
    named = ", ".join(sorted(wrong)) or "none"
    return Check(
        "an engine that is wrong on purpose is found",
        process.returncode == 1 and wrong == {_WRONG_PARTITION},
        f"wrong: {named}",
    )


def _replace_engine(package: Path, other: Path) -> None:
    """Replace the engine of `package` with that of `other`, and write the new digest into the index."""
    index_file = package / "index.json"
    index, other_index = json.loads(index_file.read_text()), json.loads((other / "index.json").read_text())
    (target,) = index["targets"]
    path = _plan_path(index, target)
    data = (other / _plan_path(other_index, target)).read_bytes()
    (package / path).write_bytes(data)
    index["files"][path] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    index_file.write_text(json.dumps(index))


def _plan_path(index: Mapping[str, Any], target: str) -> str:
    return str(index["targets"][target]["engines"][_WRONG_PARTITION])
