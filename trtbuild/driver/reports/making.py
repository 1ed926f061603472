"""Make the report of a build from its events, the events of the build before, and the project's packages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from trtbuild.driver.event_log.events import Event
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.driver.reports.cached import CachedFacts
from trtbuild.driver.reports.comparison import compare
from trtbuild.driver.reports.critical_path import with_waits
from trtbuild.driver.reports.documents import Report, StepRow
from trtbuild.driver.reports.packages import view_packages
from trtbuild.driver.reports.replay import replay
from trtbuild.driver.reports.targets import target_rows
from trtbuild.driver.running.kept import kept_benches


def make_report(project: Path, log: Sequence[Event], before: Sequence[Event]) -> Report:
    """The report of the build with the events `log`. `before` are the events of the build before, if they are known.

    The report shows the packages that exist now, which a later build may have written.
    """
    build = replay(log)
    steps, critical_s = with_waits(build.steps, build.producers, build.last_s)
    cached = CachedFacts(project)
    rows = _with_signers(cached, steps.values())
    paths = {output.model: output.path for output in build.outputs if output.kind == "package"}
    modules = {row.model: cached.call_modules(row.key) for row in rows if row.stage == "lower" and row.model in paths}
    views = view_packages(project, paths, modules)
    finish, start = build.finish, build.start
    return Report(
        project=project.name,
        status=build.status,
        started=build.started,
        builder=start.builder if start is not None else "",
        trtbuild=start.trtbuild if start is not None else "",
        duration_s=build.last_s,
        jobs=build.jobs,
        totals=build.totals,
        saved_s=round(sum(row.saved_s for row in rows), 3),
        critical_s=critical_s,
        errors=finish.errors if finish is not None else [row.error for row in rows if row.error is not None],
        warnings=build.warnings,
        outputs=[(output.model, output.kind, output.path) for output in build.outputs],
        remotes=finish.remotes if finish is not None else [],
        steps=rows,
        phases=build.phases,
        targets=target_rows(rows),
        packages=views.packages,
        engines=views.engines,
        layers=views.layers,
        layers_left_out=views.left_out,
        benches=kept_benches(project / STATE_FOLDER, {row.model for row in rows}),
        comparison=compare(replay(before), build) if before else None,
        notes=views.notes,
    )


def _with_signers(cached: CachedFacts, rows: Iterable[StepRow]) -> list[StepRow]:
    listed = list(rows)
    signers = cached.signers(row.key for row in listed if row.stage == "engine" and row.key is not None)
    return [replace(row, signer=signers.get(row.key or "")) for row in listed]
