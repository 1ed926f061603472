"""The common flags of all commands, such as ``--json`` and ``--offline``.

They are accepted before and after every command, and the later value is used. The help of a command shows the flags that
are meant for it. The help of `trtbuild` shows all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from trtbuild.cli.commands import completing
from trtbuild.core.planning.graph import STAGES
from trtbuild.driver.project.workspace import Request
from trtbuild.driver.up_to_date.depfile import Depfile
from trtbuild.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

#: Commands of ``cache`` that read manifests.
_CACHE_COMMANDS = ("cache push", "cache pull", "cache export", "cache verify")
#: Commands that read manifests.
_MANIFEST_COMMANDS = (
    "build",
    "watch",
    "plan",
    "why",
    "status",
    "graph",
    "affected",
    "inspect",
    "run",
    "bench",
    "diff",
    "lock",
    "verify",
    "doctor",
    *_CACHE_COMMANDS,
)
#: Commands that plan, except `lock`, `inspect` and those of `cache`.
_PLANNING_COMMANDS = ("build", "watch", "plan", "why", "status", "graph", "affected", "diff", "verify")
#: `build`, and `watch`, which passes its flags to the builds.
_BUILD_COMMANDS = ("build", "watch")
#: Commands whose long results are shown in a pager.
_PAGED_COMMANDS = ("plan", "why", "status", "graph", "affected", "inspect")
#: Commands that plan with the versions of a lock file.
_LOCKED_VERSION_COMMANDS = (*_PLANNING_COMMANDS, "lock", "inspect", *_CACHE_COMMANDS)


class _Flag(click.Option):
    """A common flag. The help of a command shows the flag only if the command uses it.

    `commands` are the commands that use the flag. If `commands` is empty, all commands except those in `not_for` use it."""

    def __init__(
        self, *args: Any, commands: tuple[str, ...] = (), not_for: tuple[str, ...] = (), **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self._commands = commands
        self._not_for = not_for

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        if ctx.parent is not None and self._commands and _name_of(ctx) not in self._commands:
            return None
        if ctx.parent is not None and _name_of(ctx) in self._not_for:
            return None
        return super().get_help_record(ctx)


def _name_of(ctx: click.Context) -> str | None:
    """The command's name in the tuples above, such as ``plan`` or ``cache push``."""
    is_in_group = ctx.parent is not None and ctx.parent.parent is not None
    return f"{ctx.parent.command.name} {ctx.command.name}" if is_in_group and ctx.parent else ctx.command.name


#: Each common flag: its names, and the arguments of its `_Flag`.
_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("-C", "directory"),
        {"metavar": "DIR", "help": "The directory of the project.", "shell_complete": completing.directory},
    ),
    (
        ("-f", "--file", "files"),
        {
            "metavar": "FILE",
            "multiple": True,
            "commands": _MANIFEST_COMMANDS,
            "help": "A manifest. Default: trtbuild.yaml, or manifests/*.yaml if that is missing.",
            "shell_complete": completing.file,
        },
    ),
    (
        ("--target", "targets"),
        {
            "metavar": "NAME",
            "multiple": True,
            "commands": (*_PLANNING_COMMANDS, "run", "bench", *_CACHE_COMMANDS),
            "help": "Only this target.",
            "shell_complete": completing.targets,
        },
    ),
    (
        ("-j", "--jobs", "jobs"),
        {
            "type": click.IntRange(min=1),
            "metavar": "N",
            "commands": _BUILD_COMMANDS,
            "help": "Number of steps that run at the same time. Default: the number of cores.",
        },
    ),
    (
        ("--workers", "workers"),
        {
            "metavar": "ADDRESS",
            "commands": (*_BUILD_COMMANDS, "verify"),
            "help": "Compile or verify engines on the workers of a Dask scheduler: tls://host:8786, or local:4.",
        },
    ),
    (
        ("--keep-going", "keep_going"),
        {
            "is_flag": True,
            "default": None,
            "commands": _BUILD_COMMANDS,
            "help": "After a failure, continue with the steps that do not depend on it.",
        },
    ),
    (
        ("--force", "force"),
        {
            "is_flag": True,
            "default": None,
            "commands": (*_BUILD_COMMANDS, "plan", "why", "status", "graph", "verify"),
            "help": "Run all steps, even if their results are cached.",
        },
    ),
    (
        ("--frozen", "frozen"),
        {
            "is_flag": True,
            "default": None,
            "commands": _BUILD_COMMANDS,
            "help": "Build nothing; exit with status 3 if a step would have to run.",
        },
    ),
    (
        ("--offline", "offline"),
        {
            "is_flag": True,
            "default": None,
            "commands": (*_PLANNING_COMMANDS, "lock", "inspect", "doctor", "cache export", "cache verify"),
            "help": "Use no remote cache, like an empty TRTBUILD_REMOTES.",
        },
    ),
    (
        ("--upgrade", "upgrade"),
        {
            "is_flag": True,
            "default": None,
            "commands": _LOCKED_VERSION_COMMANDS,
            "help": "Use the installed versions instead of those in trtbuild.lock.",
        },
    ),
    (
        ("--until", "until"),
        {
            "type": click.Choice(STAGES),
            "commands": (*_BUILD_COMMANDS, "plan", "cache push", "cache pull", "cache export"),
            "help": "Only the steps up to this stage, without outputs. Up to `convert`, no GPU is needed.",
        },
    ),
    (
        ("--depfile", "depfile"),
        {
            "metavar": "FILE",
            "commands": _BUILD_COMMANDS,
            "help": "After a build: write its dependencies to FILE, for make and ninja.",
            "shell_complete": completing.file,
        },
    ),
    (
        ("--depfile-target", "depfile_targets"),
        {
            "metavar": "NAME",
            "multiple": True,
            "commands": _BUILD_COMMANDS,
            "help": "The target of the rule in that file. Default: the outputs.",
        },
    ),
    (
        ("--trace", "trace_file"),
        {
            "metavar": "FILE",
            "commands": _BUILD_COMMANDS,
            "help": "Write the times of all steps to FILE, for ui.perfetto.dev and chrome://tracing.",
        },
    ),
    (
        ("--no-pager", "no_pager"),
        {
            "is_flag": True,
            "default": None,
            "commands": _PAGED_COMMANDS,
            "help": "Print long results directly, not by $PAGER.",
        },
    ),
    (
        ("--events", "events_file"),
        {
            "metavar": "FILE",
            "commands": _BUILD_COMMANDS,
            "help": "Write the events of the build to FILE while it runs, as JSON lines.",
            "shell_complete": completing.file,
        },
    ),
    (
        ("--report", "report_file"),
        {
            "metavar": "FILE",
            "commands": _BUILD_COMMANDS,
            "help": "Write a report of the build to FILE, one HTML page, as trtbuild report does.",
            "shell_complete": completing.file,
        },
    ),
    (
        ("--json", "as_json"),
        {
            "is_flag": True,
            "default": None,
            "not_for": ("watch",),
            "help": "Print one JSON document on standard output.",
        },
    ),
    (("-q", "--quiet", "quiet"), {"is_flag": True, "default": None, "help": "Print errors only."}),
)


def common_flags(command: Command) -> Command:
    """Add the common flags to a command or group.

    The command gets a dict in its argument `flags`: the values of these flags, and the values that its group got.
    """

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        inherited = (context.parent or context).obj or {}
        # the last name of an option is the name of its parameter
        flags_of_command = {names[-1]: kwargs.pop(names[-1]) for names, _ in _OPTIONS}
        flags = {**inherited, **{name: value for name, value in flags_of_command.items() if value not in (None, ())}}
        context.obj = flags
        return command(*args, flags=flags, **kwargs)

    wrapped: Any = wrapper
    for names, settings in reversed(_OPTIONS):
        wrapped = click.option(*names, cls=_Flag, **settings)(wrapped)
    return wrapped  # type: ignore[no-any-return]


def request(flags: dict[str, Any], models: tuple[str, ...] = ()) -> Request:
    """The flags as a request to the driver."""
    return Request(
        project=Path(flags.get("directory") or "."),
        files=tuple(flags.get("files", ())),
        models=models,
        targets=tuple(flags.get("targets", ())),
        jobs=flags.get("jobs"),
        keep_going=bool(flags.get("keep_going")),
        force=bool(flags.get("force")),
        frozen=bool(flags.get("frozen")),
        upgrade=bool(flags.get("upgrade")),
        offline=bool(flags.get("offline")),
        until=flags.get("until"),
        workers=flags.get("workers"),
    )


def depfile(flags: dict[str, Any]) -> Depfile | None:
    """The file of dependencies that `--depfile` names, or None. Raises UsageError if only `--depfile-target` is used."""
    targets = tuple(flags.get("depfile_targets", ()))
    if "depfile" not in flags:
        if targets:
            raise UsageError("--depfile-target needs --depfile", hint="add --depfile FILE")
        return None
    return Depfile(Path(flags["depfile"]), targets)
