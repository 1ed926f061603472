"""``trtbuild build --verify``: compare the results of a build with PyTorch, and add the outcome to the build's result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trtbuild.core.model.verification import advice, error_text, tolerance_of
from trtbuild.core.packages import provenance
from trtbuild.driver.answers.report import BuildResult
from trtbuild.driver.building.events import Watcher
from trtbuild.driver.project.workspace import Workspace
from trtbuild.driver.verification.document import Options
from trtbuild.driver.verification.models import verify
from trtbuild.errors import VerificationFailed

Document = dict[str, Any]


def after_build(workspace: Workspace, result: BuildResult, watcher: Watcher) -> None:
    """Verify the models of a build, and add the outcome to its result. A failed comparison is an error of the build."""
    request = replace(workspace.request, force=False)
    found = verify(request, Options(), watcher)
    result.verification = found
    result.duration_s += found["duration_s"]
    result.warnings += [text for text in found["warnings"] if text not in result.warnings]
    for model in found["models"]:
        result.errors += [VerificationFailed(text, hint=hint) for text, hint in _failures(model)]
    for error in found["errors"]:
        result.errors.append(VerificationFailed(error["text"], hint=error["hint"]))


def known(result: BuildResult) -> BuildResult:
    """Return the result of a later build without any change: all comparisons are hits."""
    if result.verification is None:
        return result
    models = [
        {**model, "cuts": [{**cut, "verdict": "hit", "worst_input": None} for cut in model["cuts"]]}
        for model in result.verification["models"]
    ]
    return replace(result, verification={**result.verification, "duration_s": 0.0, "models": models})


def files(workspace: Workspace, result: BuildResult) -> list[str]:
    """Return the files that the verification has written beside the outputs."""
    if result.verification is None:
        return []
    folders = [dict(model.outputs).get("package") for model in workspace.models.values()]
    places = [workspace.project / folder / provenance.NAME for folder in folders if folder is not None]
    return [str(place) for place in places if place.is_file()]


def _failures(model: Document) -> Iterator[tuple[str, str]]:
    """Yield (error text, hint) for each failed comparison of a model."""
    for cut in model["cuts"]:
        wrong = [entry for entry in cut["partitions"] if entry["status"] == "wrong"]
        for entry in wrong:
            wrong_by = error_text(entry, tolerance_of(entry, cut))
            text = f"model {model['model']!r}, partition {entry['partition']!r} {wrong_by}"
            yield "\n  ".join([text, *advice(entry)]), _after(model, cut)
        for name, what in () if wrong else _WHOLES.items():
            if cut[name]["status"] == "wrong":
                text = f"model {model['model']!r}{what} {error_text(cut[name], tolerance_of(cut[name], cut))}"
                yield "\n  ".join([text, *advice(cut[name])]), _after(model, cut)


def _after(model: Document, cut: Document) -> str:
    worst = f" --replay {cut['worst_input']}" if cut["worst_input"] else ""
    return f"trtbuild verify {model['model']}{worst}; partition.torch_executed_ops keeps an operator in PyTorch"


_WHOLES = {"whole": "", "lowered": ", in its precision and by PyTorch itself,"}
