"""Write the snapshot that `trtbuild.null_build` compares. The docstring of that module has the rules.

A snapshot contains the output of a command, and the identity of everything that this output depends on (`snapshot_rows`).
If an identity is not certain, no snapshot is written, and the next build makes the whole plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from trtbuild import null_build
from trtbuild.atomic import replace_file
from trtbuild.core.planning.graph import ModelPlan
from trtbuild.driver.answers import report
from trtbuild.driver.answers.documents import Build, Plan
from trtbuild.driver.answers.report import BuildResult
from trtbuild.driver.project.outcome import Outcome
from trtbuild.driver.project.workspace import Workspace
from trtbuild.driver.up_to_date.settled import Unsettled
from trtbuild.driver.up_to_date.snapshot_rows import SnapshotRows
from trtbuild.errors import BlobMissing, EntryCorrupt

#: Stands for the duration in the printed text. The number is exact in binary, and has the three decimals that are shown.
_PLACEHOLDER_S = 987.625

#: The largest number of snapshots in a project, one for each command line.
_MAX_SNAPSHOTS = 32


def keep(
    workspace: Workspace,
    result: BuildResult,
    arguments: list[str],
    render: Callable[[Build], str],
    extra_files: Iterable[str] = (),
) -> bool:
    """Write the snapshot of a build. Return whether it was written.

    A failed or forced build, or one with a result that must not be cached, gets no snapshot. `render` returns the printed
    text of a build's document. `extra_files` were written in addition to the outputs.
    """
    plans = result.outcome.plans
    uncacheable = [ran for _, ran in result.outcome.ran.values() if ran.uncacheable]
    if not result.ok or uncacheable or workspace.request.force:
        return False
    if workspace.store.uploads.lost_keys:  # a remote has kept another machine's engine, which the next build will use
        return False
    unchanged = [replace(written, changed=False) for written in result.written]
    remote_warnings = workspace.store.warnings()  # a build that uses the snapshot does not use remotes
    warnings = [text for text in result.warnings if text not in remote_warnings]
    document = report.build_document(
        replace(result, outcome=Outcome(plans), written=unchanged, warnings=warnings, remotes=[])
    )
    text = _with_placeholder(render(replace(document, duration_s=_PLACEHOLDER_S)))
    if text and null_build.DURATION_PLACEHOLDER not in text:
        return False
    return _keep(workspace, plans, arguments, text, extra_files)


def keep_plan(
    workspace: Workspace,
    plans: Mapping[str, ModelPlan],
    document: Plan,
    arguments: list[str],
    render: Callable[[Plan], str],
) -> bool:
    """Write the snapshot of a plan if it has nothing to run, needs no remote and has no warnings. Return whether it was
    written.

    `render` returns the printed text of the plan.
    """
    all_local = all(step.verdict == "hit" and step.source == "local" for step in document.steps)
    if not document.ok or not all_local or document.warnings or workspace.request.force:
        return False
    text = render(replace(document, duration_s=_PLACEHOLDER_S, remotes=[]))
    return _keep(workspace, plans, arguments, _with_placeholder(text), (), reads_cache=True)


def _keep(
    workspace: Workspace,
    plans: Mapping[str, ModelPlan],
    arguments: list[str],
    text: str,
    extra_files: Iterable[str],
    *,
    reads_cache: bool = False,
) -> bool:
    """Write a snapshot with the output `text`. Return whether it was written.

    With `reads_cache`, the output depends on the entries of the local cache.
    """
    try:
        rows = SnapshotRows(workspace, plans, extra_files)
        if reads_cache:
            rows.add_cache()
        _write_snapshot(workspace.project / null_build.SNAPSHOT_FOLDER, arguments, rows.to_bytes(arguments, text))
    except (Unsettled, OSError, ValueError, OverflowError, BlobMissing, EntryCorrupt):
        return False
    return True


def _with_placeholder(text: str) -> str:
    """Return `text` with null_build's placeholder instead of the number `_PLACEHOLDER_S`.

    If `text` has no duration, as the printed text of a plan, it is returned unchanged.
    """
    # the duration is the first such number in JSON, and the last one in other text
    split = text.partition if text.startswith('{"schema"') else text.rpartition
    before, separator, after = split(str(_PLACEHOLDER_S))
    return before + null_build.DURATION_PLACEHOLDER + after if separator else text


def _write_snapshot(folder: Path, arguments: list[str], snapshot: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / null_build.snapshot_name(os.getcwd(), arguments), snapshot, mode=0o600)  # noqa: PTH109
    snapshots = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in snapshots[_MAX_SNAPSHOTS:]:
        path.unlink(missing_ok=True)
