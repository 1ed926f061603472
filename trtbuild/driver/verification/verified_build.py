"""``trtbuild build --verify``: verify the models of a build, and add the verification to the build's result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trtbuild.core.model.verification_messages import advice_lines, error_text
from trtbuild.core.model.verified import CutEntry, ModelEntry, PackageEntry
from trtbuild.core.packages import provenance
from trtbuild.driver.answers.report import BuildResult
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.project.outcome import Interrupted
from trtbuild.driver.project.workspace import Workspace
from trtbuild.driver.verification.document import Options
from trtbuild.driver.verification.models import verify
from trtbuild.errors import VerificationFailed


def verify_build(workspace: Workspace, result: BuildResult, watcher: Watcher) -> None:
    """Verify the models of a build, and add the verification to its result. A wrong result or an error fails the build.

    Raises Interrupted if the user stops the verification."""
    request = replace(workspace.request, force=False)
    try:
        verification = verify(request, Options(), watcher)
    except KeyboardInterrupt as stop:
        raise Interrupted(result.outcome) from stop
    result.verification = verification
    result.duration_s += verification.duration_s
    result.warnings += [text for text in verification.warnings if text not in result.warnings]
    for model in verification.models:
        result.errors += [VerificationFailed(text, hint=hint) for text, hint in _failures(model)]
    result.errors += [VerificationFailed(error.text, hint=error.hint) for error in verification.errors]


def repeated_result(result: BuildResult) -> BuildResult:
    """Return the result of a later build without any change: all its comparisons are read from records."""
    if result.verification is None:
        return result
    models = [
        replace(model, cuts=[replace(cut, verdict="hit", worst_input=None) for cut in model.cuts])
        for model in result.verification.models
    ]
    return replace(result, verification=replace(result.verification, duration_s=0.0, models=models))


def provenance_files(workspace: Workspace, result: BuildResult) -> list[str]:
    """Return the paths of the packages' provenance files that exist; an empty list without a verification."""
    if result.verification is None:
        return []
    folders = [dict(model.outputs).get("package") for model in workspace.models.values()]
    paths = [workspace.project / folder / provenance.PROVENANCE_FILE for folder in folders if folder is not None]
    return [str(path) for path in paths if path.is_file()]


def _failures(model: ModelEntry | PackageEntry) -> Iterator[tuple[str, str]]:
    """Yield (error text, hint) for the wrong results of a model: of partitions, the whole model and the lowered program.

    A wrong result of the whole model is left out if a partition of the same cut is wrong, too."""
    for cut in model.cuts:
        wrong = [entry for entry in cut.partitions if entry.status == "wrong"]
        for entry in wrong:
            text = f"model {model.model!r}, partition {entry.partition!r} {error_text(entry)}"
            yield "\n  ".join([text, *advice_lines(entry)]), _hint(model.model, cut)
        # wrong partitions explain a wrong whole model, but not a wrong lowered program
        whole_model = () if wrong else ((cut.whole, ""),)
        for whole, suffix in (*whole_model, (cut.lowered, ", lowered and run by PyTorch without engines,")):
            if whole.status == "wrong":
                text = f"model {model.model!r}{suffix} {error_text(whole)}"
                yield "\n  ".join([text, *advice_lines(whole)]), _hint(model.model, cut)


def _hint(model: str, cut: CutEntry) -> str:
    worst = f" --replay {cut.worst_input}" if cut.worst_input else ""
    return f"trtbuild verify {model}{worst}; partition.torch_executed_ops keeps an operator in PyTorch"
