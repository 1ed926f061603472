"""The worker servers of this process. They start when a test needs the first worker, and end with the process."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.warm.command_line import KINDS
from trtbuild.driver.workers.environments import worker_environment
from trtbuild.driver.workers.forking.owner import CAN_FORK_WORKERS, client_command

#: Prefixes of environment variables that a process reads at its start or when it imports torch. A forked worker does not
#: read them again.
READ_EARLY = (
    *("PYTHON", "LD_", "LC_", "LANG", "GLIBC_", "MALLOC_", "TMPDIR"),
    *("TORCH", "PYTORCH", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "GOMP_", "CUDA_", "NVIDIA_", "ONNX", "NPY_", "NUMPY"),
)

#: Exceptions to `READ_EARLY`, which are read only after the import of torch. In this process, torch or the trace stage may
#: have set them.
SET_BY_TORCH = ("CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR")

HERE = Path(__file__).parent

SCRIPT = Path(sys.executable).parent / "trtbuild"


class Servers:
    """One server for each kind of workers in `KINDS`, and one for commands. Each socket is the file `folder`/KIND."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._early_variables = _early_variables(os.environ)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.are_off = not CAN_FORK_WORKERS

    def can_fork(self, environment: Mapping[str, str]) -> bool:
        """Whether a worker with this `environment` can be forked."""
        return not self.are_off and _early_variables(environment) == self._early_variables

    def folder_for(self, environment: Mapping[str, str]) -> str | None:
        """The folder of the sockets, or None if workers with this `environment` cannot be forked."""
        return str(self.folder) if self.can_fork(environment) else None

    def python_arguments(self, module: str, environment: Mapping[str, str], *, cold: bool = False) -> list[str]:
        """Python's arguments for a command. Workers are forked, unless `environment` forbids it or `cold` is True.

        `module` is ``trtbuild.cli.main``, or ``trtbuild.__main__`` to run the console script.
        """
        folder = None if cold else self.folder_for(environment)
        if folder is not None:
            return [str(HERE / "command_line.py"), module, folder]
        return [str(SCRIPT)] if module == "trtbuild.__main__" else ["-m", module]

    def forked_command(self, module: str, environment: Mapping[str, str], *, cold: bool = False) -> list[str]:
        """Python's arguments for a command. The command is forked, too, if possible.

        The caller is not the parent of a forked command, so it cannot send signals to the command. It can only read the
        streams and the exit status.
        """
        folder = None if cold else self.folder_for(environment)
        if folder is None:
            return self.python_arguments(module, environment, cold=cold)
        return client_command(f"{folder}/command", [sys.executable, *self.python_arguments(module, environment)])[1:]

    @property
    def folder(self) -> Path:
        """The folder of the sockets. Starts the servers at the first use."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="trtbuild-warm-"))
            atexit.register(self.end)
            for kind in (*KINDS, "command"):
                self._processes.append(self._start_server(kind, self._folder))
        return self._folder

    def end(self) -> None:
        """End the servers and remove their sockets. A later use of `folder` starts new servers."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            process.wait(60)
        self._processes.clear()
        if self._folder is not None:
            for path in self._folder.iterdir():
                path.unlink()
            self._folder.rmdir()
            self._folder = None

    @property
    def pids(self) -> list[int]:
        """The process numbers of the servers that run."""
        return [process.pid for process in self._processes]

    def _start_server(self, kind: str, folder: Path) -> subprocess.Popen[bytes]:
        environment = dict(os.environ) if kind == "command" else worker_environment(kind)
        for name in SET_BY_TORCH:
            environment.pop(name, None)
        if kind == "trace":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        with socket.socket(socket.AF_UNIX) as listening, open(folder / f"{kind}.log", "wb") as log:
            listening.bind(str(folder / kind))
            listening.listen(64)
            command = [sys.executable, "-P", str(HERE / "server.py"), kind, str(listening.fileno())]
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=folder,
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )


def _early_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that must be equal in a server and in its forked workers."""
    early = {name: value for name, value in environment.items() if name.startswith(READ_EARLY)}
    return {name: value for name, value in early.items() if name not in SET_BY_TORCH}


servers = Servers()
