"""The address of a Dask scheduler, and the certificates for it.

Rules
1. Dask sends pickles and has no passwords. So a program that reaches a scheduler can run code on its workers and clients.
   For a scheduler on another host, trtbuild accepts only ``tls://`` with a client certificate.
2. ``local:N`` starts a scheduler on 127.0.0.1, N workers for engines that are compiled without a GPU, and one worker for
   each GPU. They use a new certificate, so other users cannot connect.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trtbuild.driver.configuration import WorkersSettings
from trtbuild.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from distributed.security import Security

_EXAMPLE = "write tls://scheduler.example:8786, or local:4 to try it on this machine"


@dataclass(frozen=True)
class LocalWorkers:
    """``local:N``: a scheduler and workers on this machine (rule 2). `count` is N."""

    count: int


@dataclass(frozen=True)
class SchedulerAddress:
    """The address of a scheduler: ``tls`` or ``tcp``, a host and a port."""

    scheme: str
    host: str
    port: int

    @property
    def is_on_this_host(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse(text: str) -> LocalWorkers | SchedulerAddress:
    """The address in `text`. Raises UsageError."""
    if match := re.fullmatch(r"local:([1-9][0-9]{0,3})", text):
        return LocalWorkers(int(match[1]))
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.path or parts.query or parts.username or parts.fragment:
        raise UsageError(f"{text!r} is not the address of a Dask scheduler", hint=_EXAMPLE)
    address = SchedulerAddress(parts.scheme, host, port)
    if address.scheme not in ("tls", "tcp"):
        raise UsageError(f"{text!r}: {address.scheme}:// is not a protocol of workers", hint=_EXAMPLE)
    if address.scheme == "tcp" and not address.is_on_this_host:
        raise UsageError(
            f"{text!r}: all programs that reach a scheduler can run code on its workers, and tcp:// has no certificates",
            hint=f"start the scheduler with certificates, and write tls://{host}:{port}",
        )
    return address


def security(address: SchedulerAddress, settings: WorkersSettings) -> Security | None:
    """The certificates for a scheduler; None for ``tcp://``.

    Raises UsageError if a file is not configured or cannot be read, and EnvironmentFault if Dask is not installed.
    """
    if address.scheme == "tcp":
        return None
    files: dict[str, Path] = {}
    for field, path in (("ca", settings.ca), ("cert", settings.cert), ("key", settings.key)):
        if path is None:
            raise UsageError(
                f"{address} needs a client certificate, and [workers] has no {field}",
                hint=f"set TRTBUILD_WORKERS_{field.upper()}, or {field} of [workers], to a PEM file",
            )
        try:
            path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}", hint=f"it is {field} of [workers]") from None
        files[field] = path
    prepare_dask()
    from distributed.security import Security

    ca, cert, key = (str(files[field]) for field in ("ca", "cert", "key"))
    return Security(
        require_encryption=True,
        tls_ca_file=ca,
        tls_client_cert=cert,
        tls_client_key=key,
        tls_worker_cert=cert,
        tls_worker_key=key,
        tls_scheduler_cert=cert,
        tls_scheduler_key=key,
    )


def prepare_dask() -> None:
    """Change the settings of Dask in this process and in the workers that it starts.

    * Dask's profiler is off, because it calls `sys._current_frames` every 10 ms. On Python 3.11 this call can block
      forever, and then the event loop of the worker is blocked, too (CPython issue 106883).
    * Dask's default environment variables for workers are not set. With one of them, ``OMP_NUM_THREADS=1``, PyTorch would
      use only one processor.

    Raises EnvironmentFault if Dask is not installed.
    """
    import importlib.util

    if importlib.util.find_spec("distributed") is None:
        raise EnvironmentFault("workers need Dask, which is not installed", hint="pip install 'trtbuild[dask]'")
    import dask.config
    import distributed  # noqa: F401 (adds its defaults to the configuration)

    dask.config.set(
        {
            "distributed.worker.profile.enabled": False,
            # without this entry, Dask sets PYTHONHASHSEED to 6640; "random" is Python's default
            "distributed.nanny.pre-spawn-environ": {"PYTHONHASHSEED": "random"},
        }
    )
