"""A machine with a remote, in this process. It looks up a record as the driver does, and builds it after a miss."""

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
from trtbuild.core.recipes.trust import Trust, TrustAll
from trtbuild.core.values.codec import encode
from trtbuild.errors import BlobMissing, EntryCorrupt, RecordUntrusted
from trtbuild.store.collection.check import verify
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.http import HttpTransport
from trtbuild.store.transports.patience import PatientTransport
from trtbuild.store.transports.settings import RemoteSettings

#: The outputs of the record: an engine in six chunks, and two files. The record's entry in the remote also contains the
#: bytes of `log`, because this file is small, but not those of `info`.
CONTENTS = {
    "plan": random.Random(1).randbytes(1_300_000),
    "info": random.Random(2).randbytes(20_000),
    "log": b"nothing to tell",
}
#: The outputs of a local build. The engine differs, so that a test can recognize a local build.
LOCAL_CONTENTS = {**CONTENTS, "plan": random.Random(3).randbytes(1_200_000)}
RECIPE = Recipe("engine", 1, (("graph", "of the test"), ("sm", 89)))
OTHER_RECIPE = Recipe("engine", 1, (("graph", "of the test"), ("sm", 120)))

PATIENCE_S = 0.4
#: The longest time that one test case may take. Most take 0.1 s.
LONGEST_CASE_S = 15.0
SECRET = "correct-horse-battery"
USER = f"builder:{SECRET}"


class Machine:
    """A machine with a local store, and a remote that it reads and writes."""

    def __init__(self, folder: Path, url: str, trust: Trust | None = None) -> None:
        self.trust = trust or TrustAll()
        settings = RemoteSettings("team", url, patience_s=PATIENCE_S)
        bare = DirectoryTransport(settings) if url.startswith("file:") else HttpTransport(settings, {})
        transport = PatientTransport(bare, PATIENCE_S, jitter=lambda: 0.05)
        remote = RemoteStore(transport, "team", self.trust, connections=4)
        self.local = LocalStore(folder, self.trust)
        self.store = LayeredStore(self.local, [remote], [remote])
        self.built = 0

    def build(self, recipe: Recipe = RECIPE, contents: Mapping[str, bytes] = CONTENTS) -> dict[str, bytes]:
        """The outputs of the record, or of a new build if the record cannot be read."""
        with self.store.session(), self.store.building(recipe.key):
            for _ in range(3):  # a lookup with a fault, a lookup after it, and the lookup of the new record
                try:
                    record = self.store.get_record(recipe.key, recipe)
                    if record is not None and all(self.store.has(output.sha256) for output in record.outputs.values()):
                        assert record.recipe.same_as(recipe)
                        return {name: self.store.get_bytes(output.sha256) for name, output in record.outputs.items()}
                except BlobMissing:
                    continue  # a blob was removed after the lookup, so the next lookup is a miss
                except (EntryCorrupt, RecordUntrusted):
                    pass
                self.built += 1
                outputs = {name: self.store.put_bytes(data) for name, data in contents.items()}
                self.store.put_record(Record(recipe, outputs, {"who": "a colleague"}))
        raise AssertionError("the built record cannot be read")

    def end(self) -> dict[str, Any]:
        """Finish as at the end of a command. Returns the report about the remote, with the warnings."""
        self.store.finish()
        self.store.close()
        (report,) = self.store.reports()
        return {**encode(report), "warnings": self.store.warnings()}


def publish_build(folder: Path, trust: Trust | None = None, **options: Any) -> dict[tuple[str, str], bytes]:
    """Build with an empty remote, and return the entries of the remote. `options` are for `Machine.build`."""
    with HostileCache() as cache:
        machine = Machine(folder, cache.url(), trust)
        machine.build(**options)
        assert machine.end()["records_sent"] == 1
    return cache.entries


def assert_no_secret(*texts: object) -> None:
    """Fail if a text contains the password, or the base64 form of ``user:password``."""
    for text in map(str, texts):
        for secret in (SECRET, base64.b64encode(USER.encode()).decode()):
            assert secret not in text


def assert_ended_well(machine: Machine, report: dict[str, Any], began: float) -> None:
    """Fail if the test case took too long, if the local store is damaged, or if a text contains a secret."""
    assert time.monotonic() - began < LONGEST_CASE_S
    assert verify(machine.local).damage == ()
    assert_no_secret(json.dumps(report, default=str), repr(machine.store.readers[0].transport.place))
