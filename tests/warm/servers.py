"""The worker servers of this process: started when a test first needs a worker, and ended with the process."""

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
from trtbuild.driver.workers.worker import FORKS

#: What a process reads when it starts, or when it loads torch: a copy has read it before.
READ_EARLY = (
    *("PYTHON", "LD_", "LC_", "LANG", "GLIBC_", "MALLOC_", "TMPDIR"),
    *("TORCH", "PYTORCH", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "GOMP_", "CUDA_", "NVIDIA_", "ONNX", "NPY_", "NUMPY"),
)

#: Of those, what torch sets in a process that loads it, as this one may; it is read late.
SET_BY_TORCH = ("CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR")

HERE = Path(__file__).parent


class Servers:
    """One server of each kind. `folder` has their sockets, which are named as the kinds."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._early = _early(os.environ)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.off = not FORKS or not hasattr(os, "pidfd_open")

    def suit(self, environment: Mapping[str, str]) -> bool:
        """Whether a worker with these variables may be a copy."""
        return not self.off and _early(environment) == self._early

    def folder_for(self, environment: Mapping[str, str]) -> str | None:
        """The folder, where workers with these variables may be copies."""
        return str(self.folder) if self.suit(environment) else None

    @property
    def folder(self) -> Path:
        """Where the sockets are; the servers are started here."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="trtbuild-warm-"))
            atexit.register(self.end)
            for kind in KINDS:
                self._processes.append(self._started(kind, self._folder))
        return self._folder

    def end(self) -> None:
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
        return [process.pid for process in self._processes]

    def _started(self, kind: str, folder: Path) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name not in SET_BY_TORCH}
        environment = {**environment, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}  # as a worker's
        if kind == "trace":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        safe_path = ["-P"] if sys.version_info >= (3, 11) else []
        with socket.socket(socket.AF_UNIX) as listening, open(folder / f"{kind}.log", "wb") as log:
            listening.bind(str(folder / kind))
            listening.listen(64)
            command = [sys.executable, *safe_path, str(HERE / "server.py"), kind, str(listening.fileno())]
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


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    early = {name: value for name, value in environment.items() if name.startswith(READ_EARLY)}
    return {name: value for name, value in early.items() if name not in SET_BY_TORCH}


servers = Servers()
