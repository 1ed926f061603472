"""The commands of trtbuild, and their exit statuses, also after errors and interrupts.

Most commands call the driver and pass the returned document to `show`. Results go to standard output (with ``--json``
exactly one document). Progress and errors go to standard error.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import traceback

import click

from trtbuild.cli.commands import completing, show
from trtbuild.cli.commands.build_command import build
from trtbuild.cli.commands.cache_commands import cache
from trtbuild.cli.commands.options import common_flags, request
from trtbuild.cli.commands.package_commands import diff, inspect, report
from trtbuild.cli.commands.plan_command import plan
from trtbuild.cli.commands.question_commands import affected, graph, status, why
from trtbuild.cli.commands.run_commands import bench
from trtbuild.cli.commands.run_commands import run as run_package
from trtbuild.cli.commands.sections import Sections, examples
from trtbuild.cli.commands.show import Flags
from trtbuild.cli.commands.verify_command import verify
from trtbuild.cli.commands.worker_command import worker
from trtbuild.cli.terminal import terminal
from trtbuild.errors import EnvironmentFault, InternalError, InterruptError, TrtbuildError


@click.group(
    cls=Sections,
    invoke_without_command=True,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("trtbuild init && trtbuild build", "trtbuild plan --json", "trtbuild why vit/engine"),
)
@click.option("--version", is_flag=True, help="Show the version; with --json, also the versions of the libraries.")
@click.pass_context
@common_flags
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
@common_flags
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
@common_flags
def doctor(flags: Flags) -> int:
    """Find problems of this installation, and show how to fix them."""
    from trtbuild.cli.screens import diagnoses
    from trtbuild.driver.doctor import examination

    document = examination.examine(request(flags))
    show.document(flags, document, diagnoses.doctor_lines)
    return 0 if document.ok else 1


@cli.command()
@click.argument("shell", type=click.Choice(completing.SHELLS))
@common_flags
def completion(shell: str, flags: Flags) -> int:
    """Print the completion script of a shell.

    It completes commands, flags, models, targets and steps. For bash, in ~/.bashrc:

        eval "$(trtbuild completion bash)"
    """
    terminal.write_result(completing.script(cli, shell))
    return 0


@cli.command(epilog=examples("trtbuild watch vit", "trtbuild watch -j 2 --target ada"))
@click.argument("models", nargs=-1, shell_complete=completing.models)
@common_flags
def watch(models: tuple[str, ...], flags: Flags) -> int:
    """Build MODELS, or all models, after each change of a file. End it with Ctrl-C.

    It keeps PyTorch and the libraries of the models loaded, also for trtbuild build in other terminals. Needs the extra
    `watch`.
    """
    from trtbuild.driver.watching.watcher import Watcher

    if flags.get("as_json"):
        raise click.UsageError("--json is for commands that end: use trtbuild build --json in another terminal")
    words = flags["arguments"]
    position = len(words) - len(_from_command_on(words))  # the builds have the same flags as this command
    files = [flags[name] for name in ("depfile", "trace_file", "events_file", "report_file") if flags.get(name)]
    Watcher(request(flags, models), [*words[:position], "build", *words[position + 1 :]], run, files).watch()
    return 0


@cli.command(
    epilog=examples(
        "trtbuild build && trtbuild lock",
        "trtbuild lock --check                  # in CI: does the lock match this commit?",
        "trtbuild build --upgrade && trtbuild lock --upgrade",
    )
)
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--check", is_flag=True, help="Write nothing; exit with status 1 if the lock is out of date.")
@common_flags
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
@common_flags
def schema(for_documents: bool, flags: Flags) -> int:
    """Print the JSON Schema of manifests, for editors."""
    if for_documents:
        from trtbuild.cli.commands import documents

        result = documents.schema()
    else:
        from trtbuild import manifest

        result = manifest.schema()
    terminal.write_result(json.dumps(result, indent=2) + "\n")
    return 0


cli.add_command(build)
cli.add_command(why)
cli.add_command(graph)
cli.add_command(status)
cli.add_command(affected)
cli.add_command(report)
cli.add_command(inspect)
cli.add_command(diff)
cli.add_command(cache)
cli.add_command(plan)
cli.add_command(verify)
cli.add_command(run_package)
cli.add_command(bench)
cli.add_command(worker)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. `trtbuild.__main__` calls this if neither the null build nor a watcher has answered.

    Exit codes: docs/terminal.md.
    """
    gc.disable()  # the search for cycles takes a fifth of the planning time, and a plan has no cycles
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in words
    had_stdout = terminal.ensure_streams()
    terminal.forget_result()
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
        show.interrupted(interrupt, as_json=as_json, command=_command(words))
        return InterruptError.exit_code
    except TrtbuildError as error:
        show.error(error, as_json=as_json, command=_command(words))
        return error.exit_code
    except Exception as error:  # a bug: with --json, standard output has one document, as after other errors
        bug = InternalError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        show.error(bug, as_json=as_json, command=_command(words))
        return bug.exit_code


def _command(words: list[str]) -> str:
    """The command's name in the schema of an error document, such as ``cache-gc``; "build" if `words` has no command."""
    words = [*_from_command_on(words), *words]
    command = next((word for word in words if word in cli.commands), "build")
    if command == "cache":
        subcommand = next((word for word in words if word in cache.commands), None)
        return subcommand if subcommand == "keygen" else f"cache-{subcommand}" if subcommand else command
    return "locked" if command == "lock" else command  # trtbuild.lock/1 is the schema of the lock file


def _from_command_on(words: list[str]) -> list[str]:
    """`words` without those before the command's name. Empty if the flags before the command have an error."""
    parser = cli.make_parser(click.Context(cli, resilient_parsing=True))
    _, from_command_on, _ = parser.parse_args(list(words))
    return from_command_on


if __name__ == "__main__":
    main()
