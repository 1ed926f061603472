"""``command_line.py FOLDER …``: ``python -m trtbuild.cli.main …``, with the worker servers that listen in a folder."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The workers that a copy can be: those that load torch and run no compiler.
KINDS = ("trace", "torch")

POOL = "trtbuild.driver.workers.pool"


class Finder:
    """Finds the module that starts workers, and has it ask for them; importing it here would load it for every command."""

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
            replace_command(module, lambda: self._folder)

        spec.loader.exec_module = execute_and_replace
        return spec


def replace_command(pool: Any, folder: Callable[[], str | None]) -> None:
    """Have a module that starts workers start clients of the servers in `folder`, where it says one."""
    cold = pool.command
    client = str(Path(__file__).absolute().with_name("client.py"))

    def command(kind: str, *arguments: Any) -> list[str]:
        found = folder() if kind in KINDS else None
        if found is None:
            return list(cold(kind, *arguments))
        return [sys.executable, "-I", "-S", client, f"{found}/{kind}", kind, *map(str, arguments)]

    pool.command = command


if __name__ == "__main__":
    sys.meta_path.insert(0, Finder(sys.argv.pop(1)))  # type: ignore[arg-type]
    sys.path[0] = str(Path.cwd())  # as -m has it
    runpy.run_module("trtbuild.cli.main", run_name="__main__", alter_sys=True)
