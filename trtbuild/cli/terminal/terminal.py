"""What the terminal at hand can show, and writing to it: colour, a live area, characters beyond ASCII.

Rules
1. Lines are made with colour, as if every stream could show it; `say` takes it out where it does not belong.
2. Colour, first match wins: ``NO_COLOR`` (not empty) no; ``FORCE_COLOR`` or ``CLICOLOR_FORCE`` (not empty, not 0) yes;
   ``CLICOLOR=0`` or ``TERM=dumb`` no; else whether the stream is a terminal. (no-color.org, force-color.org,
   bixense.com/clicolors; Python 3.13 has the same order.)
3. A live area needs a terminal that can move its cursor, and nobody who keeps a log: not under CI.
4. A stream that is not Unicode gets the nearest ASCII, never an exception.
5. Who reads standard output may have enough (``| head``): the command goes on and exits by its own result. Any other
   failure to write there is an error. What standard error does not take is lost, and the exit status tells.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import TextIO

import click

from trtbuild.errors import TrtbuildError

_ASCII = str.maketrans({"→": "->", "←": "<-", "…": "...", "·": "-", "×": "x", "–": "-", "≥": ">=", "≤": "<="})


def ensure_streams() -> bool:
    """Give a process that was started without standard output or error (``>&-``) one that takes everything. Whether it had
    a standard output."""
    had_output = sys.stdout is not None
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the rest of the process
    return had_output


def answer(text: str) -> None:
    """Write a command's result to standard output (rule 5). Raises TrtbuildError when that cannot be."""
    try:
        click.echo(text, nl=False, color=True)
        sys.stdout.flush()
    except OSError as error:
        _drop_the_rest(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return
        raise TrtbuildError(
            f"standard output cannot be written: {error.strerror or error}",
            hint="what was built is in the cache: run this again",
        ) from error


def _drop_the_rest(stream: TextIO) -> None:
    """What a stream has not taken goes nowhere. Else Python tries it again when the process ends, says so in its own
    words, and exits with 120 (seen with 3.11.2)."""
    with contextlib.suppress(OSError, ValueError):  # one without a descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def say(text: str) -> None:
    """Write a line, or several, to standard error (rule 5)."""
    try:
        click.echo(rendered(text, sys.stderr), file=sys.stderr, color=True)
    except OSError:
        _drop_the_rest(sys.stderr)


def rendered(text: str, stream: TextIO) -> str:
    """Text as it is written to `stream` (rules 1 and 4)."""
    shown = text if shows_colour(stream) else click.unstyle(text)
    if is_unicode(stream):
        return shown
    encoding = getattr(stream, "encoding", None) or "ascii"
    return shown.translate(_ASCII).encode(encoding, "replace").decode(encoding)


def shows_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Rule 2."""
    if environment.get("NO_COLOR"):
        return False
    if any(environment.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    if environment.get("CLICOLOR") == "0" or environment.get("TERM") == "dumb":
        return False
    return stream.isatty()


def can_be_live(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Rule 3."""
    if environment.get("CI", "").lower() not in ("", "0", "false"):
        return False
    return stream.isatty() and environment.get("TERM", "") not in ("dumb", "")


def is_unicode(stream: TextIO) -> bool:
    """Whether every character can be written to it."""
    return (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "").startswith("utf")


def bold(text: str) -> str:
    return click.style(text, bold=True)


def dim(text: str) -> str:
    return click.style(text, dim=True)


def red(text: str) -> str:
    return click.style(text, fg="red", bold=True)


def green(text: str) -> str:
    return click.style(text, fg="green")


def yellow(text: str) -> str:
    return click.style(text, fg="yellow")


def cyan(text: str) -> str:
    return click.style(text, fg="cyan")
