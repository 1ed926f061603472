"""Forks real builds from a process that has imported the driver already: a build a second instead of one every three.

One line in, ``["build", "--json"]``; one line out, the pid of the child that does it, in a session of its own. When the
child has ended, another line: its pid and its wait status. Everything else of a build is as ever: its workers are new
processes, its locks and files its own.
"""

from __future__ import annotations

import json
import os
import sys

from trtbuild.cli import main
from trtbuild.cli.commands import show  # noqa: F401
from trtbuild.driver.answers import report  # noqa: F401
from trtbuild.driver.building import build  # noqa: F401
from trtbuild.driver.project import environment, wiring  # noqa: F401


def serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            err = os.open(order["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            code = 70
            try:
                code = main.run(order["arguments"])
                sys.stdout.flush()
            finally:
                os._exit(code)
        print(json.dumps(["started", pid]), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(["ended", pid, status]), flush=True)


if __name__ == "__main__":
    serve()
