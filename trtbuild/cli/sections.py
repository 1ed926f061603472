"""The list of commands in a help text: by what one wants to do, in the order in which one does it."""

from __future__ import annotations

import click

SECTIONS: dict[str, tuple[str, ...]] = {
    "Begin": ("init", "doctor", "completion", "schema"),
    "Build": ("build", "plan", "why", "status", "graph"),
    "Look at results": ("inspect", "run", "verify", "bench", "diff"),
    "Cache": ("cache", "lock"),
}


class Sections(click.Group):
    """A group whose commands are listed in `SECTIONS`, if it is the outermost; what is in none of them is listed last."""

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
