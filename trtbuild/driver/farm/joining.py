"""``trtbuild worker``: start the worker processes of this machine, and serve a scheduler until the scheduler ends.

Dask's nannies start the processes, and start them again when they die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trtbuild.driver.farm import addresses
from trtbuild.driver.farm.addresses import LocalWorkers, SchedulerAddress
from trtbuild.driver.farm.processes import WorkerProcess, processes_here
from trtbuild.driver.project import wiring
from trtbuild.errors import UsageError, WorkersError

#: After this many seconds, a worker gives up a scheduler that it cannot reach.
CONNECT_TIMEOUT_S = 30.0

#: After this many seconds, a worker gives up a process that does not start. On a busy machine with a slow disk, a process
#: needs minutes to load its libraries.
START_TIMEOUT_S = 600.0


def serve(project: Path, text: str, *, slots: int, listen: str | None, report: Callable[[str], None]) -> None:
    """Join the scheduler at the address `text`, and work until the scheduler ends.

    `report` is called with one line for each process. The processes listen on the address `listen`. If it is None, they
    listen on the address from which this machine reaches the scheduler. Raises UsageError, ToolchainMissing or
    WorkersError.
    """
    address = addresses.parse(text)
    if isinstance(address, LocalWorkers):
        raise UsageError(
            f"{text!r} is not a scheduler that a worker can join", hint="write tls://scheduler.example:8786"
        )
    addresses.prepare_dask()
    security = addresses.security(address, wiring.load_configuration(project).workers)
    processes = processes_here(project, 1, slots)
    asyncio.run(_serve(address, processes, listen or _own_address(address), security, report))


def _own_address(address: SchedulerAddress) -> str:
    """The address of this machine from which it reaches the scheduler. Raises WorkersError."""
    if address.is_on_this_host:
        return "127.0.0.1" if ":" not in address.host else "::1"
    import socket

    try:
        family, kind, _, _, endpoint = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(endpoint)  # UDP: this sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise WorkersError(
            f"{address} cannot be reached: {error}", hint="check the host name and the network"
        ) from error


async def _call_scheduler(address: SchedulerAddress, security: object | None) -> None:
    """Ask the scheduler for its identity. Raises an error if the scheduler does not answer in time."""
    from distributed.core import rpc
    from distributed.security import Security

    connection: Any = security or Security()
    arguments = connection.get_connection_args("worker")
    async with rpc(str(address), timeout=CONNECT_TIMEOUT_S, connection_args=arguments) as scheduler:
        # the time-out of `rpc` is for connecting only; this one is for connecting and for the answer
        await asyncio.wait_for(scheduler.identity(), 2 * CONNECT_TIMEOUT_S)


async def _serve(
    address: SchedulerAddress,
    processes: Sequence[WorkerProcess],
    host: str,
    security: object | None,
    report: Callable[[str], None],
) -> None:
    from distributed import Nanny

    nannies = [
        Nanny(str(address), death_timeout=START_TIMEOUT_S, **process.options(host, security)) for process in processes
    ]
    try:
        try:
            await _call_scheduler(address, security)
        except Exception as error:  # Dask raises many types: RuntimeError, OSError, TimeoutError
            raise WorkersError(
                f"the scheduler {address} cannot be joined: {str(error) or type(error).__name__}",
                hint="check that it runs, and that it accepts this certificate",
            ) from error
        try:
            await asyncio.gather(*nannies)
        except Exception as error:
            raise WorkersError(
                f"a worker process has not started: {str(error) or type(error).__name__}",
                hint="the log above may have the reason",
            ) from error
        for process in processes:
            jobs = "1 job" if process.slots == 1 else f"{process.slots} jobs"
            report(f"{process.name}: {jobs} at the same time")
        await asyncio.gather(*(nanny.finished() for nanny in nannies))
    finally:
        await asyncio.gather(*(nanny.close(timeout=5) for nanny in nannies), return_exceptions=True)
