"""Files that a remote has lost or damaged after they were seen there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.store.transports.memory_transport import MemoryTransport
from trtbuild.core.recipes.record import Record
from trtbuild.store.remote.store import RemoteStore


@pytest.mark.parametrize("content", [None, b"PLAN", b"pla"])
def test_sends_a_file_again_that_the_remote_lacks(record_of: Callable[..., Record], content: bytes | None) -> None:
    """The entry of the record has the bytes of the small file, too, so this machine knows them."""
    transport = MemoryTransport()
    writer = RemoteStore(transport, "team")
    plan = writer.put_bytes(b"plan")
    key = writer.put_record(record_of(1, plan=plan)).recipe.key
    store = RemoteStore(transport, "team")
    assert store.find(key) is not None
    store.send_files([plan], lambda file: b"plan")
    if content is None:
        del transport.entries["cas", plan.sha256]
    else:
        transport.entries["cas", plan.sha256] = content
    store.send_files([plan], lambda file: b"plan")
    assert transport.entries.get(("cas", plan.sha256)) == content, "it was seen there a short time ago"
    assert store.repair_files([plan], lambda file: b"plan")
    assert transport.entries["cas", plan.sha256] == b"plan"
    assert not store.repair_files([plan], lambda file: b"plan")
