"""The commands that explain a plan: ``why``, ``graph``, ``status`` and ``affected``."""

from __future__ import annotations

import click

from trtbuild.cli.commands import completing, show
from trtbuild.cli.commands.options import common_flags, request
from trtbuild.cli.commands.sections import Command, examples
from trtbuild.cli.commands.show import Flags


@click.command(
    cls=Command, epilog=examples("trtbuild why vit", "trtbuild why vit/engine", "trtbuild why vit/engine/model@ada")
)
@click.argument("name", metavar="STEP|MODEL", shell_complete=completing.steps)
@common_flags
def why(name: str, flags: Flags) -> int:
    """Explain why a step would run now, or why it last ran."""
    from trtbuild.cli.screens import plans
    from trtbuild.driver.answers import inquiries

    show.paged(flags, inquiries.why(request(flags), name), plans.why_lines)
    return 0


@click.command(cls=Command, epilog=examples("trtbuild graph --format dot | dot -Tsvg > graph.svg"))
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option(
    "--format", "form", type=click.Choice(["text", "dot", "mermaid", "json"]), default="text", help="Default: text."
)
@click.option("--deps", metavar="STEP|MODEL", help="Only this step or model, and the steps from which it is made.")
@click.option("--rdeps", metavar="STEP|MODEL", help="Only this step or model, and the steps that are made from it.")
@common_flags
def graph(models: tuple[str, ...], form: str, deps: str | None, rdeps: str | None, flags: Flags) -> int:
    """Show the steps and their dependencies."""
    from trtbuild.cli.screens import graphs
    from trtbuild.driver.answers import inquiries

    document = inquiries.graph(request(flags, models), deps, rdeps)
    show.paged({**flags, "as_json": flags.get("as_json") or form == "json"}, document, graphs.graph_screen(form))
    return 0


@click.command(cls=Command)
@common_flags
def status(flags: Flags) -> int:
    """Show which models are up to date, and which steps have to run."""
    from trtbuild.cli.screens import plans
    from trtbuild.driver.answers import inquiries

    show.paged(flags, inquiries.status(request(flags)), plans.status_lines)
    return 0


@click.command(
    cls=Command, epilog=examples("trtbuild affected --since origin/main", "trtbuild affected --since HEAD~1 --json")
)
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--since", required=True, metavar="REV", help="A commit of git, with which the files are compared.")
@common_flags
def affected(models: tuple[str, ...], since: str, flags: Flags) -> int:
    """Show which models changes since a commit affect, and why.

    Runs nothing, and needs no torch. A model that was never traced counts as affected.
    """
    from trtbuild.cli.screens import plans
    from trtbuild.driver.answers import affected as affected_models
    from trtbuild.driver.answers import inquiries

    document = affected_models.affected(inquiries.read_only_workspace(request(flags, models)), since)
    show.paged(flags, document, plans.affected_lines)
    return 0
