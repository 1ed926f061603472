"""``trtbuild worker``: compile and verify engines for the builds of a Dask scheduler."""

from __future__ import annotations

import os
from typing import Any

import click

from trtbuild.cli.commands.options import common_flags, request
from trtbuild.cli.commands.sections import Command, examples
from trtbuild.cli.terminal import terminal


@click.command(
    cls=Command,
    epilog=examples(
        "trtbuild worker tls://scheduler.example:8786",
        "trtbuild worker tcp://127.0.0.1:8786 --slots 2    # a scheduler on this machine",
    ),
)
@click.argument("address")
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of engines that are compiled at once without a GPU. Default: the number of cores.",
)
@click.option("--listen", metavar="IP", help="The address to listen on. Default: the one that reaches the scheduler.")
@common_flags
def worker(address: str, slots: int | None, listen: str | None, flags: dict[str, Any]) -> int:
    """Compile and verify engines for the builds of a Dask scheduler.

    ADDRESS is the address of the scheduler. There is one process for each GPU, and one for engines that need no GPU to be
    compiled. With PyTorch for CUDA, the processes with a GPU also compare engines with PyTorch, for verify. The command
    ends when the scheduler ends. Caches, keys and logs are those of the directory (-C) and of this machine's
    configuration.
    """
    from trtbuild.driver.farm import joining

    project = request(flags).project.absolute()
    joining.serve(project, address, slots=slots or os.cpu_count() or 1, listen=listen, report=terminal.write_message)
    return 0
