"""Help texts, with the commands in sections. Help goes to standard output, as results do."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli.terminal import terminal

#: The title of each section → its commands, in the usual order of their use.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Begin": ("init", "doctor", "completion", "schema"),
    "Build": ("build", "watch", "plan", "why", "status", "graph", "affected", "worker"),
    "Look at results": ("report", "inspect", "run", "verify", "bench", "diff"),
    "Cache": ("cache", "lock"),
}


class Command(click.Command):
    """A command whose help is written like a result, so that errors of standard output are handled in the same way."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option


def _show_help(context: click.Context, _: click.Parameter, is_requested: Any) -> None:
    if is_requested and not context.resilient_parsing:
        terminal.write_result(f"{context.get_help()}\n")
        context.exit()


class Sections(Command, click.Group):
    """A group of commands. The help of the outermost group shows `SECTIONS`, and then the other commands.

    Hidden commands are left out.
    """

    command_class = Command
    group_class = type  # subgroups are `Sections`, too

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        remaining = {name: command for name, command in self.commands.items() if not command.hidden}
        width = max(len(name) for name in remaining)
        limit = formatter.width - width - 6
        sections = SECTIONS if ctx.parent is None else {}  # `cache verify` is in no section, although `verify` is
        rest_title = "Other" if sections else "Commands"
        for title, names in {**sections, rest_title: tuple(remaining)}.items():
            shown = [(name, remaining.pop(name)) for name in names if name in remaining]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(
                        [(name.ljust(width), command.get_short_help_str(limit)) for name, command in shown]
                    )


def examples(*lines: str) -> str:
    """The epilog of a help text, with these command lines as examples."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
