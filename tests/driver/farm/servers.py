"""Schedulers and workers as real processes on 127.0.0.1, and certificates for them."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.faults.processes import descendants, kill, wait_until_gone

#: A process has to start within this time.
START_S = 90.0


@dataclass(frozen=True)
class Certificates:
    """The files of a certificate authority, and of a certificate with its key."""

    ca: Path
    cert: Path
    key: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of trtbuild that name the files."""
        return {f"TRTBUILD_WORKERS_{name.upper()}": str(path) for name, path in vars(self).items()}


def make_certificates(folder: Path) -> Certificates:
    """Make a certificate authority, and a certificate that it has signed."""
    folder.mkdir()
    now = datetime.datetime.now(datetime.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("test authority", "127.0.0.1")]
    files = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    for number, path in enumerate((files.ca, files.cert)):  # number 0 is the authority, which signs both
        certificate = (
            x509.CertificateBuilder()
            .subject_name(names[number])
            .issuer_name(names[0])
            .public_key(keys[number].public_key())
            .serial_number(number + 1)
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=number == 0, path_length=None), critical=True)
            .sign(keys[0], hashes.SHA256())
        )
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files.key.write_bytes(keys[1].private_bytes(serialization.Encoding.PEM, form, plain))
    return files


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A process in its own session, and its log."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str], cwd: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                command, stdout=output, stderr=output, env=dict(environment), cwd=cwd, start_new_session=True
            )

    def wait_for(self, text: str) -> None:
        """Wait until the log contains `text`."""
        deadline = time.monotonic() + START_S
        while text not in self.log.read_text():
            assert self.popen.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        pids = [self.popen.pid, *descendants(self.popen.pid)]
        kill(pids)
        self.popen.wait(timeout=20)
        wait_until_gone(pids)


def scheduler_process(port: int, folder: Path, certificates: Certificates | None = None) -> Process:
    """Start ``dask scheduler`` on a port of 127.0.0.1.

    The scheduler gives up a worker after more than five seconds without a heartbeat. The setting is 3 s, but Dask waits
    for at least ten heartbeats, and these come every half second. After two deaths of workers during one job, the next
    death ends the job.
    """
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    if certificates is not None:
        command += ["--protocol", "tls", "--tls-ca-file", str(certificates.ca)]
        command += ["--tls-cert", str(certificates.cert), "--tls-key", str(certificates.key)]
    settings = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "2", "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "3s"}
    process = Process(command, folder / "scheduler.log", {**os.environ, **settings}, folder)
    process.wait_for("Scheduler at:")
    return process


def worker_process(
    address: str, folder: Path, environment: Mapping[str, str], *arguments: str, pretends: str | None = None
) -> Process:
    """Start ``trtbuild worker`` in `folder`. With `pretends`, a mode of `pretending.py`, the workers never compile."""
    folder.mkdir(exist_ok=True)
    paths = [*filter(None, [environment.get("PYTHONPATH")]), str(Path(__file__).parents[3])]
    variables = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)}
    if pretends is not None:
        variables["TRTBUILD_TEST_PRETENDS"] = pretends
        variables["DASK_DISTRIBUTED__WORKER__PRELOAD"] = json.dumps(["tests.driver.farm.pretending"])
    command = [sys.executable, "-m", "trtbuild", "worker", address, *arguments]
    process = Process(command, folder / "worker.log", variables, folder)
    process.wait_for("at the same time")  # the command prints these words when its workers have started
    return process


@contextlib.contextmanager
def killed_at_end(*processes: Process) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def worker_pids(process: Process) -> list[int]:
    """The pids of the Dask workers that ``trtbuild worker`` has started."""
    pids = []
    for pid in descendants(process.popen.pid):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"spawn_main" in line:
                pids.append(pid)
    return pids


def interrupt(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGINT)
