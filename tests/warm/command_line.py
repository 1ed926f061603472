"""``command_line.py MODULE FOLDER …``: runs trtbuild. Its workers are forked from the servers with sockets in FOLDER.

MODULE is ``trtbuild.cli.main`` (runs like ``python -m trtbuild.cli.main``) or ``trtbuild.__main__`` (runs like the
console script).
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtbuild.driver.workers.forking.owner import client_command

#: The kinds of workers that can be forked, because they load TensorRT only for a job.
KINDS = ("trace", "torch", "engine")

POOL = "trtbuild.driver.workers.pool"


class Finder:
    """An import hook that calls `replace_command` after the import of `POOL`.

    An import of `POOL` in this file would slow every command.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != POOL:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_replace(module: Any) -> None:
            execute(module)
            replace_command(lambda: self._folder)

        spec.loader.exec_module = execute_and_replace
        return spec


def replace_command(folder: Callable[[], str | None]) -> None:
    """Replace two functions of the driver, so that workers of `KINDS` are forked from servers with sockets in `folder()`.

    If `folder()` returns None, the workers start as in a normal build.
    """
    from trtbuild.driver.workers import worker_process  # the pool has already imported both modules
    from trtbuild.driver.workers.forking import lending

    original_command, original_start = worker_process.command, lending.start_servers

    def command(kind: str, *arguments: Any) -> list[str]:
        sockets, original = folder() if kind in KINDS else None, list(original_command(kind, *arguments))
        return original if sockets is None else client_command(f"{sockets}/{kind}", original)

    worker_process.command = command  # type: ignore[assignment]
    lending.start_servers = lambda directory: original_start(directory) if folder() is None else None


if __name__ == "__main__":
    main, folder = sys.argv.pop(1), sys.argv.pop(1)
    sys.meta_path.insert(0, Finder(folder))  # type: ignore[arg-type]
    sys.path[0] = str(Path(sys.executable).parent if main == "trtbuild.__main__" else Path.cwd())
    runpy.run_module(main, run_name="__main__", alter_sys=True)
