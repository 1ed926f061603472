"""Writes the generated pages of docs/ except manifest.md and aten-operators.md. ``make docs`` runs this program.

docs/command-line.md is made from the commands of `trtbuild`, and docs/python-api.md from the public names of the package.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from docs.files import files

DOCS = Path(__file__).parent

NOTE = "<!-- Generated from the code by `make docs`; a test compares the two. Change the code, not this file. -->"

COMMAND_LINE = f"""\
# Command line

{NOTE}

`trtbuild COMMAND --help` shows the text of this page in a terminal. The [exit statuses](terminal.md#exit-status) are the
same for all commands.
"""

COMMON = """\
## Common flags

A common flag stands before or after the command. The last one wins. The section of each command lists the common flags
that have an effect there.
"""

PYTHON_API = f"""\
# Python API

{NOTE}

`import trtbuild` offers the names on this page. The import loads neither PyTorch nor TensorRT.
[In a program](in-a-program.md) and [Loading and running a package](runtime.md) show how to use them.
`torch.compile(model, backend="trtbuild")` needs no import. Its options are those of `trtbuild.compile` from `target` on.
"""

ERRORS = """\
## Errors

All errors are in `trtbuild.errors`. The text of an error says what is wrong, where, and what to do next. A command
exits with the status of its error.

| error | exit status | meaning |
|---|---|---|
"""


# -- the command line ------------------------------------------------------------------------------------------------


def command_line() -> str:
    """Return the text of docs/command-line.md."""
    from trtbuild.cli.commands.sections import SECTIONS
    from trtbuild.cli.main import cli

    context = click.Context(cli, info_name="trtbuild", help_option_names=["-h", "--help"])
    common = {option.name for option in cli.params if option.name != "version"}
    listed = [name for names in SECTIONS.values() for name in names]
    unlisted = sorted(set(cli.commands) - set(listed))
    parts = [COMMAND_LINE, COMMON, _table(_options(cli, context)), _epilog(cli)]
    for title, names in {**SECTIONS, **({"Other": tuple(unlisted)} if unlisted else {})}.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _command(cli.commands[name], click.Context(cli.commands[name], context, name), common)
    return _joined(parts)


def _command(command: click.Command, context: click.Context, common: set[str | None]) -> Iterable[str]:
    """Yield the section of a command, then those of its subcommands. `common` has the names of common options."""
    path = context.command_path
    yield f"### `{path}`\n"
    yield f"```\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```\n"
    yield _text(command.help or "") + "\n"
    options = [option for option in _options(command, context) if option.name not in common]
    if options:
        yield _table(options, context)
    shared = [option for option in _options(command, context) if option.name in common]
    if shared:
        flags = ", ".join(f"`{option.opts[0]}`" for option in shared)
        yield f"[Common flags](#common-flags): {flags}.\n"
    yield _epilog(command)
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _command(inner, click.Context(inner, context, name), common)


def _options(command: click.Command, context: click.Context) -> list[click.Option]:
    """Return the options that the help of `command` shows, but ``--help`` only for the top command."""
    options = [option for option in command.get_params(context) if isinstance(option, click.Option)]
    shown = [option for option in options if option.get_help_record(context) is not None]
    return [option for option in shown if context.parent is None or "--help" not in option.opts]


def _table(options: list[click.Option], context: click.Context | None = None) -> str:
    rows = ["| flag | meaning |", "|---|---|"]
    for option in options:
        record = option.get_help_record(context or click.Context(click.Command("trtbuild")))
        assert record is not None
        flags, meaning = (" ".join(text.split()).replace("|", "\\|") for text in record)
        rows.append(f"| `{flags}` | {_code(meaning)} |")
    return "\n".join(rows) + "\n"


def _epilog(command: click.Command) -> str:
    """Return the examples of a command as code. They are its epilog, whose first line is a heading."""
    lines = (command.epilog or "").replace("\b\n", "").splitlines()[1:]
    return "```sh\n" + "\n".join(line.removeprefix("  ") for line in lines) + "\n```\n" if lines else ""


def _text(text: str) -> str:
    """Return a help text as Markdown. Indented lines are not changed, because Markdown reads them as code."""
    return "\n".join(line if line.startswith("    ") else _code(line) for line in inspect.cleandoc(text).splitlines())


def _code(text: str) -> str:
    """Return `text` with flags, environment variables and file names in backquotes. Existing backquotes stay."""
    flag, variable = r"--[a-z][\w-]*", r"\$?TRTBUILD_[A-Z_]+=?"
    word = rf"(?<![`\w$])({flag}|{variable}|[\w*/]+\.(?:yaml|lock|npz|npy|safetensors|svg)|~/\.\w+)(?![`\w])"
    parts = text.split("`")  # every second part is in backquotes already
    return "`".join(part if number % 2 else re.sub(word, r"`\1`", part) for number, part in enumerate(parts))


# -- the Python API --------------------------------------------------------------------------------------------------


def python_api() -> str:
    """Return the text of docs/python-api.md."""
    import trtbuild
    from trtbuild.driver.in_program.options import options_of
    from trtbuild.driver.packages.exported_file import LoadedFile
    from trtbuild.runtime.calls.loaded import Loaded

    parts = [PYTHON_API]
    parts += _function("trtbuild.load", trtbuild.load)
    parts += _class("The result of `trtbuild.load`", "Loaded", Loaded, constructor=False)
    parts += _class("The result of `trtbuild.load` for a `.pt2` file", "LoadedFile", LoadedFile, constructor=False)
    parts += _function("trtbuild.compile", trtbuild.compile)
    parts += ["### Options of `trtbuild.compile`\n", *_documented("options_of", options_of)]
    parts += _class("`trtbuild.Input`", "trtbuild.Input", trtbuild.Input)
    parts += _function("trtbuild.trace", trtbuild.trace)
    parts += _function("trtbuild.save", trtbuild.save)
    parts += _class("`trtbuild.TritonPythonModel`", "TritonPythonModel", trtbuild.TritonPythonModel, constructor=False)
    parts += [ERRORS + "\n".join(_error_rows()) + "\n"]
    return _joined(parts)


def _function(name: str, function: Callable[..., Any]) -> Iterable[str]:
    yield f"## `{name}`\n"
    yield from _documented(name, function)


def _documented(name: str, function: Callable[..., Any]) -> Iterable[str]:
    yield f"```python\n{_signature(name, function)}\n```\n"
    yield _docstring(function)


def _class(title: str, name: str, kind: type, *, constructor: bool = True) -> Iterable[str]:
    yield f"## {title}\n"
    if constructor:
        yield f"```python\n{_signature(name, kind.__init__, method=True)}\n```\n"
    yield _docstring(kind)
    for member, value in vars(kind).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if member.startswith("_") or not (inspect.isfunction(function) or isinstance(value, property)):
            continue
        if not value.__doc__ or member == "runner":  # users call `module`, which calls `runner`
            continue
        if isinstance(value, property):
            yield f"### `{member}`\n"
        else:
            yield f"### `{member}()`\n"
            yield f"```python\n{_signature(member, function, method=True)}\n```\n"
        yield _docstring(value.fget if isinstance(value, property) else function)


def _signature(name: str, function: Callable[..., Any], *, method: bool = False) -> str:
    """Return the signature of `function` with the name `name`. For a `method`, `self` is left out."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if method else 0 :]
    texts: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}".replace("'", '"')
        texts.append(f"{stars}{parameter.name}: {parameter.annotation}{default}")  # annotations are strings
    result = signature.return_annotation
    tail = "" if function.__name__ == "__init__" else f" -> {result}"
    line = f"{name}({', '.join(texts)}){tail}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){tail}"


def _docstring(documented: Any) -> str:
    text = inspect.getdoc(documented) or ""
    return text.replace("``", "`") + "\n"


def _error_rows() -> Iterable[str]:
    """Yield a table row for each error. The rows of subclasses are indented."""
    from trtbuild import errors

    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.TrtbuildError):
            depth = sum(issubclass(base, errors.TrtbuildError) for base in kind.__mro__) - 1
            first = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split()).replace("``", "`")
            yield f"| {'&nbsp;&nbsp;' * depth}`{name}` | {kind.exit_code} | {first} |"


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part)


#: The file of a generated page → the function that returns its text.
PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": command_line,
    "python-api.md": python_api,
    "files.md": lambda: files(NOTE),
}


def main() -> None:
    """Write the generated pages."""
    for name, text_of_page in PAGES.items():
        (DOCS / name).write_text(text_of_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
