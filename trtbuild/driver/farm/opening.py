"""Connects a build or a verification to its workers, and checks that it shares a store with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from trtbuild.driver.configuration import Configuration
from trtbuild.driver.farm import addresses
from trtbuild.driver.farm.addresses import LocalWorkers
from trtbuild.driver.farm.connecting import connect
from trtbuild.driver.farm.exchange import exchanges, remote_labels
from trtbuild.driver.farm.farm import Farm
from trtbuild.driver.farm.known_workers import KnownWorkers
from trtbuild.errors import EnvironmentFault
from trtbuild.store.layers.layered import LayeredStore


@contextlib.contextmanager
def open_farm(
    text: str, project: Path, configuration: Configuration, store: LayeredStore, report: Callable[[str], None]
) -> Iterator[Farm]:
    """The workers of the scheduler at the address `text`. `report` gets messages for the user.

    Raises UsageError or EnvironmentFault if the scheduler cannot be used. Raises EnvironmentFault, too, if workers have
    joined, but none of them shares the cache directory, and no remote cache is configured for reading and writing.
    """
    with connect(text, configuration.workers, project) as client:
        exchange_by_label = exchanges(store, configuration)
        workers = KnownWorkers(client, tuple(exchange_by_label), configuration.workers.wait_s, report)
        # local workers share the cache directory with the build, and other workers can share a remote cache
        may_lack_a_store = not isinstance(addresses.parse(text), LocalWorkers) and not remote_labels(configuration)
        # before the first worker has joined, the workers' stores are unknown, and the steps wait for a worker
        if may_lack_a_store and (overview := workers.overview()).workers and not overview.shares_a_store:
            raise EnvironmentFault(
                "the engines have to be exchanged through a store that this machine and the workers reach, and no remote "
                "cache is configured for reading and writing",
                hint='configure one here and on the workers: TRTBUILD_REMOTES="team=rw:https://cache.example/trtbuild"',
            )
        yield Farm(client, workers, store, exchange_by_label)
