"""The stores through which a driver and its workers exchange blobs: a cache directory of one host, or a remote cache.

Rules
1. Both sides name a store by its label (`labels`). They can use a remote cache if both read and write it under the same
   URL. On one host, they can use a cache directory. `Overview.store_for` chooses the store.
2. `receive` verifies each blob that it reads. So a wrong byte is an error, and never part of an input or an engine.
3. A remote cache is used only for the files of blobs. The driver alone publishes records there.
4. If a worker cannot read a blob, the blob may be at fault and not the worker. So the driver looks for the blob again, and
   repairs it if possible (`repair`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from trtbuild.driver.configuration import Configuration
from trtbuild.driver.farm import labels
from trtbuild.driver.farm.messages import BlobFiles
from trtbuild.errors import EntryCorrupt
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.layers.sendable import file_reader
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore


class Exchange(Protocol):
    """A store that both sides reach."""

    def send(self, local: LocalStore, blobs: Iterable[BlobFiles]) -> None:
        """Make blobs of the local store available to the other side. Raises StoreError."""

    def receive(self, local: LocalStore, blobs: Iterable[BlobFiles]) -> None:
        """Make blobs of the other side available in the local store (rule 2). Raises StoreError."""

    def repair(self, local: LocalStore, blobs: Iterable[BlobFiles]) -> bool:
        """Verify blobs that were sent, and send those again that the other side cannot read. Returns whether there are any.

        Raises BlobMissing or EntryCorrupt if the local store lacks one of them. Raises other StoreErrors, too."""


class SameDirectory:
    """The other side uses the same cache directory, so no bytes are moved."""

    def send(self, local: LocalStore, blobs: Iterable[BlobFiles]) -> None:
        """Do nothing."""

    def receive(self, local: LocalStore, blobs: Iterable[BlobFiles]) -> None:
        read = file_reader(local)
        for blob in blobs:
            whole = hashlib.sha256()
            for file in local.files_of(blob.sha256):
                whole.update(read(file))
            if whole.hexdigest() != blob.sha256:
                raise EntryCorrupt(f"the files of blob {blob.sha256} are those of another blob")

    def repair(self, local: LocalStore, blobs: Iterable[BlobFiles]) -> bool:
        """Verify blobs. Only the step that made a damaged blob can repair it."""
        self.receive(local, blobs)
        return False


class ThroughRemote:
    """A remote cache that both sides read and write."""

    def __init__(self, remote: RemoteStore) -> None:
        self._remote = remote

    def send(self, local: LocalStore, blobs: Iterable[BlobFiles]) -> None:
        self._remote.send_files([file for blob in blobs for file in blob.files], file_reader(local))

    def receive(self, local: LocalStore, blobs: Iterable[BlobFiles]) -> None:
        for blob in blobs:
            if not local.has(blob.sha256):
                self._remote.fetch(blob.sha256, blob.files, local)

    def repair(self, local: LocalStore, blobs: Iterable[BlobFiles]) -> bool:
        return self._remote.repair_files([file for blob in blobs for file in blob.files], file_reader(local))


def exchanges(store: LayeredStore, configuration: Configuration) -> Mapping[str, Exchange]:
    """The stores of this machine that can be shared with workers, by label. The cache directory is the first."""
    found: dict[str, Exchange] = {labels.directory_label(store.local.root): SameDirectory()}
    for label, name in remote_labels(configuration):
        remote = next(remote for remote in store.readers if remote.name == name)
        found[label] = ThroughRemote(remote)
    return found


def remote_labels(configuration: Configuration) -> Sequence[tuple[str, str]]:
    """The label and the name of each remote cache that this machine reads and writes."""
    return [
        (labels.remote_label(settings.url), settings.name)
        for settings in configuration.remotes
        if settings.read and settings.write
    ]


def blob_files(local: LocalStore, blobs: Iterable[str]) -> tuple[BlobFiles, ...]:
    """The files of each blob of a local store. Raises BlobMissing."""
    return tuple(BlobFiles(sha256, local.files_of(sha256)) for sha256 in dict.fromkeys(blobs))
