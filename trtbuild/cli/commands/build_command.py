"""``trtbuild build``: the flags of a build, and its output."""

from __future__ import annotations

from functools import partial

import click

from trtbuild.cli.commands import completing, show
from trtbuild.cli.commands.options import common_flags, depfile, request
from trtbuild.cli.commands.sections import Command, examples
from trtbuild.cli.commands.show import Flags

#: The flags for files that describe one build. The null build prints a stored output, and cannot write such files.
_FILES_OF_A_BUILD = {"trace_file", "events_file", "report_file"}


@click.command(
    cls=Command,
    epilog=examples(
        "trtbuild build vit --target ada",
        "trtbuild build --frozen                # fail if anything is out of date",
        "trtbuild build vit --depfile build/vit.d --depfile-target build/vit.stamp    # for make",
    ),
)
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--verify", "verifies", is_flag=True, help="Compare the result with PyTorch, as trtbuild verify does.")
@common_flags
def build(models: tuple[str, ...], verifies: bool, flags: Flags) -> int:
    """Bring the outputs of MODELS, or of all models, up to date."""
    from trtbuild.cli.screens import builds
    from trtbuild.driver.answers import report
    from trtbuild.driver.building.build import build as run
    from trtbuild.driver.cache import build_history
    from trtbuild.driver.project.workspace import Workspace
    from trtbuild.driver.up_to_date import snapshot
    from trtbuild.driver.verification import verified_build

    with show.recording_watcher(flags) as watcher:
        with watcher.phase("read the manifests"):
            workspace, dependency_file = Workspace(request(flags, models)), depfile(flags)
        result = run(workspace, watcher)
        if verifies and result.ok:
            verified_build.verify_build(workspace, result, watcher)
        document = report.build_document(result)
        watcher.build_finished(document)
    if dependency_file is not None and result.ok:
        dependency_file.write(workspace, result)
    other_files = [
        *([] if dependency_file is None else [str(dependency_file.path)]),
        *verified_build.provenance_files(workspace, result),
    ]
    build_history.note_build(workspace.project, document)
    show.document(flags, document, builds.build_lines)
    show.problems(builds.failures(document))
    show.summary(document)
    if not flags.keys() & _FILES_OF_A_BUILD:
        render = partial(show.text, flags, to_lines=builds.build_lines)
        snapshot.keep(workspace, verified_build.repeated_result(result), flags["arguments"], render, other_files)
    return 0 if result.ok else 1
