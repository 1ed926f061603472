"""A machine with a remote, in this process: it asks for a record as the driver does, and builds what it cannot get."""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.hostile_cache import HostileCache
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.core.recipes.trust import Everyone, Trust
from trtbuild.errors import BlobMissing, EntryCorrupt, RecordUntrusted
from trtbuild.store.collection.check import verify
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.http import HttpTransport
from trtbuild.store.transports.patience import Patient
from trtbuild.store.transports.settings import RemoteSettings

#: A plan in five chunks; one file that no entry is large enough for; and one that may be in the entry itself.
CONTENTS = {
    "plan": random.Random(1).randbytes(1_300_000),
    "info": random.Random(2).randbytes(20_000),
    "log": b"nothing to tell",
}
#: What is built here: engines are not reproducible. So it is seen which of the two is used.
OURS = {**CONTENTS, "plan": random.Random(3).randbytes(1_200_000)}
RECIPE = Recipe("engine", 1, (("graph", "of the test"), ("sm", 89)))
OTHER = Recipe("engine", 1, (("graph", "of the test"), ("sm", 120)))

PATIENCE_S = 0.4
#: No case may take longer, whatever the remote does. Most take a tenth of a second.
BOUND_S = 15.0
SECRET = "correct-horse-battery"
USER = f"builder:{SECRET}"


class Machine:
    """One machine: a local store, and a remote that it reads and writes."""

    def __init__(self, folder: Path, url: str, trust: Trust | None = None) -> None:
        self.trust = trust or Everyone()
        settings = RemoteSettings("team", url, patience_s=PATIENCE_S)
        bare = DirectoryTransport(settings) if url.startswith("file:") else HttpTransport(settings, {})
        transport = Patient(bare, PATIENCE_S, jitter=lambda: 0.05)
        remote = RemoteStore(transport, "team", self.trust, connections=4)
        self.local = LocalStore(folder, self.trust)
        self.store = LayeredStore(self.local, [remote], [remote])
        self.built = 0

    def build(self, recipe: Recipe = RECIPE, contents: Mapping[str, bytes] = CONTENTS) -> dict[str, bytes]:
        """The outputs: those of a record that can be had, or else newly built ones."""
        with self.store.session(), self.store.building(recipe.key):
            for _ in range(3):
                try:
                    record = self.store.get_record(recipe.key, recipe)
                    if record is not None and all(self.store.has(each.sha256) for each in record.outputs.values()):
                        assert record.recipe.same_as(recipe)
                        return {name: self.store.get_bytes(each.sha256) for name, each in record.outputs.items()}
                except BlobMissing:
                    continue  # gone since: it is not there any more for whoever looks again
                except (EntryCorrupt, RecordUntrusted):
                    pass
                self.built += 1
                outputs = {name: self.store.put_bytes(data) for name, data in contents.items()}
                self.store.put_record(Record(recipe, outputs, {"who": "a colleague"}))
        raise AssertionError("what was built cannot be had")

    def end(self) -> dict[str, Any]:
        """What the end of a command does; the report of the remote."""
        self.store.finish()
        self.store.close()
        (report,) = self.store.reports()
        report["said"] = self.store.warnings()
        return report


def published(folder: Path, trust: Trust | None = None, **what: Any) -> dict[tuple[str, str], bytes]:
    """The entries of a remote to which a machine has published what it built."""
    with HostileCache() as cache:
        machine = Machine(folder, cache.url(), trust)
        machine.build(**what)
        assert machine.end()["records_sent"] == 1
    return cache.entries


def assert_no_secret(*texts: object) -> None:
    """Neither the password nor what becomes of it in a header is in any of them."""
    for text in map(str, texts):
        for secret in (SECRET, base64.b64encode(USER.encode()).decode()):
            assert secret not in text


def check(machine: Machine, report: dict[str, Any], began: float) -> None:
    """Whatever the remote did: it ended soon, nothing wrong is in the local store, and no secret was told."""
    assert time.monotonic() - began < BOUND_S
    assert verify(machine.local).damage == ()
    assert_no_secret(json.dumps(report, default=str), repr(machine.store.readers[0].transport.place))
