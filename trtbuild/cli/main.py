"""The commands. Each calls the driver and passes the returned document to `show`.

Results go to standard output (with ``--json`` exactly one document); progress and errors go to standard error.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import traceback
from functools import partial
from typing import Any

import click

from trtbuild.cli.commands import completing, show
from trtbuild.cli.commands.cache_commands import cache
from trtbuild.cli.commands.options import common, depfile, request
from trtbuild.cli.commands.plan_command import plan
from trtbuild.cli.commands.run_commands import bench
from trtbuild.cli.commands.run_commands import run as run_package
from trtbuild.cli.commands.sections import Sections, examples
from trtbuild.cli.commands.verify_command import verify
from trtbuild.cli.commands.worker_command import worker
from trtbuild.cli.terminal import terminal
from trtbuild.errors import EnvironmentFault, InternalError, TrtbuildError

Flags = dict[str, Any]

INTERRUPTED = 130

#: The flags of files that describe one build.
_FILES_OF_A_BUILD = {"trace_file", "events_file", "report_file"}


@click.group(
    cls=Sections,
    invoke_without_command=True,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("trtbuild init && trtbuild build", "trtbuild plan --json", "trtbuild why vit/engine"),
)
@click.option("--version", is_flag=True, help="Show the version; with --json, also the versions of the libraries.")
@click.pass_context
@common
def cli(context: click.Context, version: bool, flags: Flags) -> int:
    """Build TensorRT engines from manifests, and rebuild only what has changed."""
    if version:
        from trtbuild.driver.project import versions

        show.document(flags, versions.installed_versions(), lambda result: [f"trtbuild, version {result.trtbuild}"])
        context.exit(0)
    if context.invoked_subcommand is None:
        raise click.UsageError("Missing command.", context)
    return 0


@cli.command()
@click.argument("source", metavar="[SOURCE]", required=False)
@common
def init(source: str | None, flags: Flags) -> int:
    """Write a first manifest.

    The manifest is for SOURCE (module.path:callable). Without SOURCE, a small model is written, too. No file is
    overwritten.
    """
    from trtbuild.cli.screens import projects
    from trtbuild.driver.answers import new_project

    show.document(
        flags,
        new_project.create(request(flags).project, source, new_project.installed_toolchain()),
        projects.init_lines,
    )
    return 0


@cli.command()
@common
def doctor(flags: Flags) -> int:
    """Find problems of this installation, and show how to fix them."""
    from trtbuild.cli.screens import diagnoses
    from trtbuild.driver.doctor import examination

    document = examination.examine(request(flags))
    show.document(flags, document, diagnoses.doctor_lines)
    return 0 if document.ok else 1


@cli.command()
@click.argument("shell", type=click.Choice(completing.SHELLS))
@common
def completion(shell: str, flags: Flags) -> int:
    """Print the completion script of a shell.

    It completes commands, flags, models, targets and steps. For bash, in ~/.bashrc:

        eval "$(trtbuild completion bash)"
    """
    terminal.answer(completing.script(cli, shell))
    return 0


@cli.command(
    epilog=examples(
        "trtbuild build vit --target ada",
        "trtbuild build --frozen                # fail if anything is out of date",
        "trtbuild build vit --depfile build/vit.d --depfile-target build/vit.stamp    # for make",
    )
)
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--verify", "verifies", is_flag=True, help="Compare the result with PyTorch, as trtbuild verify does.")
@common
def build(models: tuple[str, ...], verifies: bool, flags: Flags) -> int:
    """Bring the outputs of MODELS, or of all models, up to date."""
    from trtbuild.cli.screens import builds
    from trtbuild.driver.answers import report
    from trtbuild.driver.building.build import build as run
    from trtbuild.driver.cache import build_history
    from trtbuild.driver.project.workspace import Workspace
    from trtbuild.driver.up_to_date import snapshot
    from trtbuild.driver.verification import verified_build

    with show.recorded(flags) as watcher:
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
    if not flags.keys() & _FILES_OF_A_BUILD:  # the null build writes none of these files
        answer = partial(show.text, flags, for_people=builds.build_lines)
        snapshot.keep(workspace, verified_build.repeated_result(result), flags["arguments"], answer, other_files)
    return 0 if result.ok else 1


@cli.command(
    epilog=examples("trtbuild report", "trtbuild report -o build.html --build 2    # the build before the last")
)
@click.option(
    "-o",
    "--output",
    default="trtbuild-report.html",
    show_default=True,
    metavar="FILE",
    help="Write the page to FILE.",
    shell_complete=completing.file,
)
@click.option("--build", "number", type=click.IntRange(min=1), default=1, metavar="N", help="The N-th last build.")
@common
def report(output: str, number: int, flags: Flags) -> int:
    """Write a report of the last build as one HTML page.

    The page needs no network. It shows the time line, why each step ran, partitions, layers, comparisons with PyTorch,
    and the changes since the build before. The last five builds are kept. A build that had nothing to do is not kept.
    """
    from trtbuild.cli.report_page.page import render
    from trtbuild.cli.screens import reports
    from trtbuild.driver.reports import report_file

    project = request(flags).project
    document = report_file.write_report(project, output, number, render)
    show.document(flags, document, reports.report_lines)
    return 0


@cli.command(epilog=examples("trtbuild why vit", "trtbuild why vit/engine", "trtbuild why vit/engine/model@ada"))
@click.argument("name", metavar="STEP|MODEL", shell_complete=completing.steps)
@common
def why(name: str, flags: Flags) -> int:
    """Explain why a step would run now, or why it last ran."""
    from trtbuild.cli.screens import plans
    from trtbuild.driver.answers import inquiries

    show.paged(flags, inquiries.why(request(flags), name), plans.why_lines)
    return 0


@cli.command(epilog=examples("trtbuild graph --format dot | dot -Tsvg > graph.svg"))
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option(
    "--format", "form", type=click.Choice(["text", "dot", "mermaid", "json"]), default="text", help="Default: text."
)
@click.option("--deps", metavar="STEP|MODEL", help="Only the steps from which it is made.")
@click.option("--rdeps", metavar="STEP|MODEL", help="Only the steps that are made from it.")
@common
def graph(models: tuple[str, ...], form: str, deps: str | None, rdeps: str | None, flags: Flags) -> int:
    """Show the steps and their dependencies."""
    from trtbuild.cli.screens import graphs
    from trtbuild.driver.answers import inquiries

    document = inquiries.graph(request(flags, models), deps, rdeps)
    show.paged({**flags, "as_json": flags.get("as_json") or form == "json"}, document, graphs.graph_screen(form))
    return 0


@cli.command()
@common
def status(flags: Flags) -> int:
    """Show which models are up to date, and which steps have to run."""
    from trtbuild.cli.screens import plans
    from trtbuild.driver.answers import inquiries

    show.paged(flags, inquiries.status(request(flags)), plans.status_lines)
    return 0


@cli.command(epilog=examples("trtbuild affected --since origin/main", "trtbuild affected --since HEAD~1 --json"))
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--since", required=True, metavar="REV", help="A commit of git, with which the files are compared.")
@common
def affected(models: tuple[str, ...], since: str, flags: Flags) -> int:
    """Show which models the changes since a commit touch, and why.

    Runs nothing, and needs no torch. A model that was never traced counts as affected.
    """
    from trtbuild.cli.screens import plans
    from trtbuild.driver.answers import affected as answer
    from trtbuild.driver.answers import inquiries

    document = answer.affected(inquiries.read_only_workspace(request(flags, models)), since)
    show.paged(flags, document, plans.affected_lines)
    return 0


@cli.command(
    epilog=examples(
        "trtbuild inspect                       # all packages of the project",
        "trtbuild inspect vit --layers",
        "trtbuild inspect dist/vit --onnx build/onnx --trtexec    # build the same engines with trtexec",
        "trtbuild inspect vit --precision       # what is computed in which type, and why",
    )
)
@click.argument("path", metavar="[PACKAGE|MODEL]", required=False, shell_complete=completing.packages)
@click.option("--layers", is_flag=True, help="Show the layers of each engine: module paths, operators and types.")
@click.option("--trtexec", is_flag=True, help="Show the trtexec command that builds the same engine, for each.")
@click.option("--memory", is_flag=True, help="Show the device memory that each engine needs. Uses the GPU.")
@click.option("--onnx", metavar="DIR", help="Write the ONNX models of the engines to DIR.")
@click.option("--precision", is_flag=True, help="Show instead what MODEL computes in which type. Needs PyTorch.")
@common
def inspect(
    path: str | None, layers: bool, trtexec: bool, memory: bool, onnx: str | None, precision: bool, flags: Flags
) -> int:
    """Show the contents of one package or of all.

    Shows inputs, profiles, targets, partitions, the operators that stay in PyTorch, and the result of trtbuild verify.
    """
    from trtbuild.cli.screens import packages
    from trtbuild.driver import inspection
    from trtbuild.driver.inspection import whole_project

    if precision:
        from trtbuild.cli.screens import precisions
        from trtbuild.driver.inspection.precision import inspect_precision

        show.paged(flags, inspect_precision(request(flags), path), precisions.precision_lines)
        return 0
    if path is None:
        found = whole_project.inspect_all(request(flags), layers=layers, memory=memory, onnx=onnx)
        show.paged(flags, found, packages.project_screen(layers=layers, trtexec=trtexec))
        return 0
    document = inspection.inspect(request(flags), path, layers=layers, memory=memory, onnx=onnx)
    show.paged(flags, document, packages.package_screen(layers=layers, trtexec=trtexec))
    return 0


@cli.command(
    epilog=examples("trtbuild diff dist/vit vit    # would a new build be the same?", "trtbuild diff old new --json")
)
@click.argument("first", metavar="A", shell_complete=completing.packages)
@click.argument("second", metavar="B", shell_complete=completing.packages)
@common
def diff(first: str, second: str, flags: Flags) -> int:
    """Show the differences between two packages or models.

    A and B are directories of packages, or names of models. A model stands for the package that would be built now. The
    exit status is 1 if they differ.
    """
    from trtbuild.cli.screens import differences as differences_screen
    from trtbuild.driver.answers import differences

    document = differences.diff(request(flags), first, second)
    show.document(flags, document, differences_screen.diff_lines)
    return 0 if document.same else 1


@cli.command(
    epilog=examples(
        "trtbuild build && trtbuild lock",
        "trtbuild lock --check                  # in CI: does the lock match this commit?",
        "trtbuild build --upgrade && trtbuild lock --upgrade",
    )
)
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--check", is_flag=True, help="Write nothing; exit with status 1 if the lock is out of date.")
@common
def lock(models: tuple[str, ...], check: bool, flags: Flags) -> int:
    """Write the keys and digests of a release to trtbuild.lock.

    The lock is for MODELS, or for all models. All of them must be built or be in a cache. Later plans use the versions
    in the lock, and trtbuild cache gc keeps the entries that it names.
    """
    from trtbuild.cli.screens import locks
    from trtbuild.driver.cache import locking

    document = locking.lock(request(flags, models), check=check)
    show.document(flags, document, locks.lock_lines)
    return 0 if document.ok else 1


@cli.command()
@click.option(
    "--documents", "for_documents", is_flag=True, help="Print the schema of the documents that --json prints."
)
@common
def schema(for_documents: bool, flags: Flags) -> int:
    """Print the JSON Schema of manifests, for editors."""
    if for_documents:
        from trtbuild.cli.commands import documents

        result = documents.schema()
    else:
        from trtbuild import manifest

        result = manifest.schema()
    terminal.answer(json.dumps(result, indent=2) + "\n")
    return 0


cli.add_command(cache)
cli.add_command(plan)
cli.add_command(verify)
cli.add_command(run_package)
cli.add_command(bench)
cli.add_command(worker)


def main(arguments: list[str] | None = None) -> None:
    """The console script. Exit codes: docs/terminal.md."""
    gc.disable()  # a plan has many small values and no cycles; the search for cycles takes a fifth of the planning time
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in words
    had_stdout = terminal.ensure_streams()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends a build as Ctrl-C does
    try:
        if not had_stdout and (as_json or not {"-q", "--quiet"}.intersection(words)):
            raise EnvironmentFault("standard output is closed", hint="redirect it (>/dev/null), or use --quiet")
        exit_code = cli.main(words, prog_name="trtbuild", standalone_mode=False, obj={"arguments": list(words)})
        return int(exit_code or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        show.usage_error(error, as_json=as_json, command=_command(words))
        return 2
    except (KeyboardInterrupt, click.exceptions.Abort) as stop:
        interrupt = stop.__cause__ or stop  # click wraps a KeyboardInterrupt in its own exception
        show.interrupted(unsent=getattr(interrupt, "unsent", 0))
        return INTERRUPTED
    except TrtbuildError as error:
        show.error(error, as_json=as_json, command=_command(words))
        return error.exit_code
    except Exception as error:  # also after a bug, stdout has one document
        bug = InternalError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        show.error(bug, as_json=as_json, command=_command(words))
        return bug.exit_code


def _command(words: list[str]) -> str:
    """The command's name in the schema of its document; "build" if the words contain no command."""
    parser = cli.make_parser(click.Context(cli, resilient_parsing=True))
    _, without_flags, _ = parser.parse_args(list(words))  # empty if the flags before the command have an error
    command = next((word for word in (*without_flags, *words) if word in cli.commands), "build")
    return "locked" if command == "lock" else command  # trtbuild.lock/1 is the lock file itself


if __name__ == "__main__":
    main()
