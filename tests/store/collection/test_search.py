"""`newest_records` finds the records of some stages, and leaves out entries that it cannot read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trtbuild.core.recipes.record import SCHEMA, Record
from trtbuild.store.collection.search import newest_records
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import record_entry

#: The end of the document of an engine's record.
END = f'"stage":"engine","version":1}},"schema":"{SCHEMA}"}}'
KEY = "a" * 64


def document(parts: str) -> bytes:
    """The document of an engine's record. `parts` is the JSON text of the parts of its recipe."""
    return f'{{"key":"{KEY}","outputs":{{}},"provenance":{{}},"recipe":{{"parts":{parts},{END}'.encode()


@pytest.mark.parametrize(
    ("damaged", "error"),
    [
        (document('[["a"'), ValueError),
        (document("{}"), ValueError),
        (document(f'[["a",{"[" * 600}{"]" * 600}]]'), ValueError),
    ],
    ids=["not JSON", "not a recipe", "nested too deeply"],
)
def test_leaves_out_a_record_with_a_damaged_document(
    local: LocalStore, record_of: Callable[..., Record], damaged: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        Record.from_bytes(damaged)
    sound = record_of(1, plan=local.put_bytes(b"plan"))
    local.put_record(sound)
    local.entries.write("ac", KEY, record_entry(local.put_bytes(damaged), {}).to_bytes())
    assert list(newest_records(local, {"engine"}, most_entries=10)) == [sound]


def test_reads_at_most_the_given_number_of_entries(local: LocalStore, record_of: Callable[..., Record]) -> None:
    for number in range(3):
        local.put_record(record_of(number))
    assert len(list(newest_records(local, {"engine"}, most_entries=2))) == 2


def test_leaves_out_records_of_other_stages(local: LocalStore, record_of: Callable[..., Record]) -> None:
    engine, trace = (local.put_record(record_of(1, stage=stage)) for stage in ("engine", "trace"))
    assert list(newest_records(local, {"trace"}, most_entries=10)) == [trace]
    assert list(newest_records(local, {"engine"}, most_entries=10)) == [engine]
