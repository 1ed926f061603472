"""Write results and messages, in the form that the output stream supports: colour, a live area, Unicode.

Rules
1. All lines are made with colour. `render` removes the colour for streams that do not show it.
2. The first match decides whether a stream gets colour: no with ``NO_COLOR`` (not empty); yes with ``FORCE_COLOR`` or
   ``CLICOLOR_FORCE`` (not empty, not 0); no with ``CLICOLOR=0`` or ``TERM=dumb``; otherwise yes if the stream is a
   terminal. (no-color.org, force-color.org, bixense.com/clicolors; Python 3.13 has the same order.)
3. A live area is rewritten in place, so it needs a terminal that can move its cursor. Under CI there is no live area,
   because CI keeps a log.
4. A stream without Unicode gets similar ASCII characters, and ``?`` for other characters that it lacks. No character
   raises an exception.
5. If the reader of standard output closes it early (``| head``), the command continues, and its result decides the exit
   status. Any other failure to write to standard output is an error. Failures to write to standard error are ignored.
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
    """Replace a missing standard output or error (``>&-``) by the null device. Return whether standard output existed."""
    had_output = sys.stdout is not None
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the rest of the process
    return had_output


_has_written_result = False


def has_written_result() -> bool:
    """Whether this process has begun to write a command's result."""
    return _has_written_result


def forget_result() -> None:
    """Make `has_written_result` return False, because a new command begins."""
    global _has_written_result
    _has_written_result = False


def write_result(text: str) -> None:
    """Write a command's result to standard output (rules 4 and 5). Raises TrtbuildError if the write fails."""
    global _has_written_result
    _has_written_result = True
    try:
        click.echo(render(text, sys.stdout), nl=False, color=True)
        sys.stdout.flush()
    except OSError as error:
        _discard_buffer(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return
        raise TrtbuildError(
            f"standard output cannot be written: {error.strerror or error}",
            hint="the results are in the cache: run the command again",
        ) from error


def _discard_buffer(stream: TextIO) -> None:
    """Discard the text that a stream has buffered.

    Otherwise Python tries to write the text when the process ends, prints a message, and exits with 120 (seen with
    3.11.2).
    """
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def write_message(text: str) -> None:
    """Write lines to standard error (rules 4 and 5)."""
    try:
        click.echo(render(text, sys.stderr), file=sys.stderr, color=True)
    except OSError:
        _discard_buffer(sys.stderr)


def render(text: str, stream: TextIO) -> str:
    """The text without the colour and the characters that `stream` does not support (rules 1 and 4)."""
    shown = text if shows_colour(stream) else click.unstyle(text)
    if is_unicode(stream):  # only lone surrogates can fail here: they stand for bytes of a file name that are not UTF-8
        is_writable = shown.isascii() or getattr(stream, "errors", None) not in (None, "strict")
        return shown if is_writable else shown.encode("utf-8", "replace").decode("utf-8")
    encoding = getattr(stream, "encoding", None) or "ascii"
    return shown.translate(_ASCII).encode(encoding, "replace").decode(encoding)


def shows_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether colour is written to a stream (rule 2)."""
    if environment.get("NO_COLOR"):
        return False
    if any(environment.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    if environment.get("CLICOLOR") == "0" or environment.get("TERM") == "dumb":
        return False
    return stream.isatty()


def can_be_live(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a stream can show a live area (rule 3)."""
    if environment.get("CI", "").lower() not in ("", "0", "false"):
        return False
    return stream.isatty() and environment.get("TERM", "") not in ("dumb", "")


def is_unicode(stream: TextIO) -> bool:
    """Whether every character can be written to a stream."""
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


#: The mark at the start of a line about something that was added, removed or changed.
CHANGE_MARKS = {"added": green("+"), "removed": red("-"), "changed": yellow("~")}
