"""Help texts: commands by what one wants to do, in the order in which one does it; written as any result is."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli.terminal import terminal

SECTIONS: dict[str, tuple[str, ...]] = {
    "Begin": ("init", "doctor", "completion", "schema"),
    "Build": ("build", "plan", "why", "status", "graph"),
    "Look at results": ("inspect", "run", "verify", "bench", "diff"),
    "Cache": ("cache", "lock"),
}


class _Helped(click.Command):
    """A command whose help goes to standard output by `terminal.answer`."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option


def _show_help(context: click.Context, _: click.Parameter, asked: Any) -> None:
    if asked and not context.resilient_parsing:
        terminal.answer(f"{context.get_help()}\n")
        context.exit()


class Sections(_Helped, click.Group):
    """A group whose commands are listed in `SECTIONS`, if it is the outermost; what is in none of them is listed last."""

    command_class = _Helped
    group_class = type  # of this kind too

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        left = {name: command for name, command in self.commands.items() if not command.hidden}
        width = max(len(name) for name in left)
        limit = formatter.width - width - 6
        sections = SECTIONS if ctx.parent is None else {}  # `cache verify` is not `verify`
        rest = "Other" if sections else "Commands"
        for title, names in {**sections, rest: tuple(left)}.items():
            shown = [(name, left.pop(name)) for name in names if name in left]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(
                        [(name.ljust(width), command.get_short_help_str(limit)) for name, command in shown]
                    )


def examples(*lines: str) -> str:
    """An epilog of lines that can be typed."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
