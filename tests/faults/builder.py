"""Forks real builds from a process that has imported the driver, so that a build takes one second instead of three.

Each line of standard input is a JSON object: the arguments of a build, and the files for its standard output and error.
This process prints two lines for each build: ``["started", PID]`` and ``["ended", PID, WAIT_STATUS]``. The build runs in a
new session. Otherwise it is like any build: its workers are new processes, and it has its own locks and files.
"""

from __future__ import annotations

import json
import os
import sys

# imported here, so that forked builds need not import these modules
from trtbuild.cli import main
from trtbuild.cli.commands import show  # noqa: F401
from trtbuild.driver.answers import report  # noqa: F401
from trtbuild.driver.building import build  # noqa: F401
from trtbuild.driver.project import environment, wiring  # noqa: F401


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            out = os.open(request["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            err = os.open(request["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            code = 70  # EX_SOFTWARE, if the build raises an exception
            try:
                code = main.run(request["arguments"])
                sys.stdout.flush()
            finally:
                os._exit(code)
        print(json.dumps(["started", pid]), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(["ended", pid, status]), flush=True)


if __name__ == "__main__":
    serve()
