"""Records of comparisons, and the fields of documents about comparisons."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.core.verified_values import WORST, a_cut_entry, a_partition_entry, a_whole_entry
from tests.store.memory_store import MemoryStore
from trtbuild.core.model.comparisons import Comparison, PartitionComparison, Report
from trtbuild.core.model.verification import Point
from trtbuild.core.model.verified import CutEntry, partition_entry, whole_entry
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.values.codec import encode
from trtbuild.driver.verification import records

POINT = Point(0, "max", (8,), 1)
WHOLE = Comparison(
    status="right", error=2e-7, tolerance=1e-5, precision="float32", text="", output=0, worst=POINT, points=5
)
PART = PartitionComparison(partition="model", onnx="a" * 64, **vars(WHOLE), place=None)
REPORT = Report(
    runner="onnxruntime",
    points=(POINT,),
    tolerance=1e-5,
    partitions=[PART],
    whole=WHOLE,
    lowered=WHOLE,
    worst_input="/worst.safetensors",
    versions={"torch": "2"},
)
RECIPE = Recipe("verify", 1, (("runner", "onnxruntime"),))


def test_a_wrong_conversion_or_an_engine_without_tf32_gets_no_hint_about_tf32() -> None:
    wrong = {"status": "wrong", "error": 2e-3, "tolerance": 1e-3}
    engine = a_cut_entry(
        by="engine", status="wrong", partitions=[a_partition_entry(**wrong)], whole=a_whole_entry(**wrong)
    )
    converted = a_cut_entry(targets=["ada", "blackwell"])

    def hint_count(cuts: Sequence[CutEntry], tf32: bool | None = True) -> int:
        with_hints = records.add_tf32_hints(cuts, tf32)
        return sum(entry.hint is not None for cut in with_hints for entry in (*cut.partitions, cut.whole))

    assert hint_count([converted, engine]) == hint_count([engine], tf32=None) == 2
    assert hint_count([replace(converted, status="wrong"), engine]) == 0
    assert hint_count([replace(converted, status="wrong", targets=["blackwell"]), engine]) == 2
    assert hint_count([converted, engine], tf32=False) == 0
    half = replace(engine, whole=a_whole_entry(**wrong, precision="float16"))
    assert hint_count([converted, half]) == 1


def test_a_stored_report_is_read_back_without_the_path_of_its_inputs() -> None:
    store = MemoryStore()
    record = records.store_record(store, RECIPE, REPORT)
    read_back, report = records.find_record(store, RECIPE)
    assert read_back == record and report is not None
    assert report == replace(REPORT, points=[POINT], worst_input=None)


@pytest.mark.parametrize("name", ["status", "precision", "points", "worst"])
def test_an_incomplete_report_is_a_miss(name: str) -> None:
    store = MemoryStore()
    record = records.store_record(store, RECIPE, REPORT)
    report = json.loads(store.get_bytes(record.outputs["report"].sha256))
    del report["whole"][name]
    output = store.put_bytes(json.dumps(report).encode())
    store.put_record(replace(record, outputs={"report": output}), replace=True)
    assert records.find_record(store, RECIPE) == (None, None)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"5", b'{"inputs": 5}'])
def test_an_unreadable_report_is_a_miss(text: bytes) -> None:
    store = MemoryStore()
    record = records.store_record(store, RECIPE, REPORT)
    store.put_record(replace(record, outputs={"report": store.put_bytes(text)}), replace=True)
    assert records.find_record(store, RECIPE) == (None, None)


def test_an_entry_from_a_record_has_the_order_of_the_record() -> None:
    """The fields of a record are in alphabetical order. Fields that the record lacks are at the end of the entry."""
    run, hit = (encode(whole_entry(WHOLE, WORST, recorded=recorded)) for recorded in (False, True))
    assert run == hit and list(run)[:2] == ["status", "error"] and list(hit) == sorted(run)
    run, hit = (encode(partition_entry(PART, WORST, {"ada": "0"}, recorded=recorded)) for recorded in (False, True))
    assert run == hit and list(run)[:3] == ["partition", "onnx", "status"] and list(run)[-2:] == ["place", "plans"]
    assert list(hit) == [*sorted(name for name in run if name != "plans"), "plans"]
