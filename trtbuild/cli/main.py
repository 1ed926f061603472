"""The command line: each command is a few lines that call the driver and hand what it returns to `show`.

Standard output holds results (with ``--json`` one document and nothing else); progress and errors go to standard error.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from typing import Any

import click

from trtbuild.cli import show
from trtbuild.cli.options import common, request
from trtbuild.errors import InternalError, TrtbuildError

Flags = dict[str, Any]

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trtbuild")
@common
def cli(flags: Flags) -> None:
    """Build TensorRT engines from manifests, and rebuild only what has changed."""


@cli.command()
@click.argument("models", nargs=-1)
@common
def build(models: tuple[str, ...], flags: Flags) -> int:
    """Bring the outputs of MODELS (all, if none is named) up to date."""
    from trtbuild.driver import report
    from trtbuild.driver.build import Workspace
    from trtbuild.driver.build import build as run

    result = run(Workspace(request(flags, models)), show.progress(flags))
    show.document(flags, report.build_document(result), show.built)
    return 0 if result.ok else 1


@cli.command()
@click.argument("models", nargs=-1)
@common
def plan(models: tuple[str, ...], flags: Flags) -> int:
    """Say what a build would do, and why. Nothing is run; neither torch nor TensorRT is needed."""
    from trtbuild.driver import inquiries

    document = inquiries.plan(request(flags, models))
    show.document(flags, document, show.planned)
    return 0 if document["ok"] else 2


@cli.command()
@click.argument("name", metavar="STEP|MODEL")
@common
def why(name: str, flags: Flags) -> int:
    """Why a step, or a model's steps, would run now, or last ran."""
    from trtbuild.driver import inquiries

    show.document(flags, inquiries.why(request(flags), name), show.why)
    return 0


@cli.command()
@click.argument("models", nargs=-1)
@click.option("--format", "form", type=click.Choice(["text", "dot", "mermaid", "json"]), default="text")
@common
def graph(models: tuple[str, ...], form: str, flags: Flags) -> int:
    """The steps and what each of them consumes."""
    from trtbuild.driver import inquiries

    document = inquiries.graph(request(flags, models))
    show.document({**flags, "as_json": flags.get("as_json") or form == "json"}, document, show.graph_as(form))
    return 0


@cli.command()
@common
def status(flags: Flags) -> int:
    """For each model: is it up to date, and if not, what has to run?"""
    from trtbuild.driver import inquiries

    show.document(flags, inquiries.status(request(flags)), show.status)
    return 0


@cli.command()
@click.argument("path", metavar="PACKAGE|MODEL")
@common
def inspect(path: str, flags: Flags) -> int:
    """What is in a package: inputs, profiles, targets, partitions, and the operators that stayed in PyTorch."""
    from trtbuild.driver import inquiries

    show.document(flags, inquiries.inspect(request(flags), path), show.inspected)
    return 0


@cli.command()
@common
def schema(flags: Flags) -> int:
    """The JSON Schema of manifests, for editors."""
    from trtbuild import manifest

    click.echo(json.dumps(manifest.schema(), indent=2))
    return 0


@cli.group()
@common
def cache(flags: Flags) -> None:
    """Look at the cache, check it, and collect what is no longer used."""


@cache.command("stats")
@common
def cache_stats(flags: Flags) -> int:
    """How many records and blobs there are, by stage, and what chunking saves."""
    from trtbuild.driver import housekeeping

    show.document(flags, housekeeping.stats(request(flags)), show.fields)
    return 0


@cache.command("verify")
@common
def cache_verify(flags: Flags) -> int:
    """Read everything; what is not what its name says goes to quarantine."""
    from trtbuild.driver import housekeeping

    document = housekeeping.verify(request(flags))
    show.document(flags, document, show.fields)
    return 0 if document["ok"] else 1


@cache.command("gc")
@click.option("--max-size", metavar="SIZE", help="Keep at most this much, such as 50GiB.")
@click.option("--max-age", metavar="AGE", help="Remove what was not used for this long, such as 30d or 12h.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@common
def cache_gc(max_size: str | None, max_age: str | None, dry_run: bool, flags: Flags) -> int:
    """Remove the least recently used, never what a running build uses."""
    from trtbuild.driver import housekeeping

    document = housekeeping.collect(request(flags), max_size, max_age, dry_run=dry_run)
    show.document(flags, document, show.fields)
    return 0


def main(arguments: list[str] | None = None) -> None:
    """The console script. Exit codes: DESIGN section 9."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in given
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end a build in the same orderly way
    try:
        found = cli.main(given, prog_name="trtbuild", standalone_mode=False)
        return int(found or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        show.usage_error(error, as_json=as_json)
        return 2
    except (KeyboardInterrupt, click.exceptions.Abort):
        show.interrupted(as_json=as_json)
        return INTERRUPTED
    except TrtbuildError as error:
        show.error(error, as_json=as_json, command=_command(given))
        return error.exit_code
    except BrokenPipeError:
        raise
    except Exception as error:  # stdout holds one document whatever happens
        bug = InternalError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        show.error(bug, as_json=as_json, command=_command(given))
        return bug.exit_code


def _command(given: list[str]) -> str:
    names = [word for word in given if word in cli.commands]
    return names[0] if names else "build"


if __name__ == "__main__":
    main()
