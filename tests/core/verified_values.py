"""Entries of a verification's document.

A test gives the fields that it needs. The other fields have the values of a right result.
A cut is one way in which a model is divided into partitions."""

from __future__ import annotations

from typing import Any

from trtbuild.core.model.verified import CutEntry, ModelEntry, NamedPoint, PartitionEntry, WholeEntry

WORST = NamedPoint(profile="rows", which="max", dims={"batch": 8}, seed=1, zeros=False)

_RIGHT = {
    "status": "right",
    "error": 2e-7,
    "tolerance": 1e-5,
    "precision": "float32",
    "text": "",
    "output": 0,
    "worst": WORST,
    "points": 5,
}


def a_whole_entry(**more: Any) -> WholeEntry:
    return WholeEntry(**{**_RIGHT, **more})


def a_partition_entry(partition: str = "model", **more: Any) -> PartitionEntry:
    return PartitionEntry(**{"partition": partition, "onnx": "a" * 64, **_RIGHT, "place": None, "plans": {}, **more})


def a_cut_entry(**more: Any) -> CutEntry:
    defaults = {
        "by": "onnxruntime",
        "against": "PyTorch",
        "targets": ["ada"],
        "toolchain": "tensorrt-rtx 1.7.1.116",
        "status": "right",
        "tolerance": 1e-5,
        "points": [WORST] * 5,
        "partitions": [a_partition_entry()],
        "whole": a_whole_entry(),
        "lowered": a_whole_entry(),
        "worst_input": ".trtbuild/verify/net.safetensors",
        "versions": {},
        "finished": None,
        "builder": None,
        "verdict": "run",
        "key": None,
        "machine": {"platform": "linux-x86_64"},
    }
    return CutEntry(**{**defaults, **more})


def a_model_entry(*cuts: CutEntry, **more: Any) -> ModelEntry:
    """Return the entry of a model. Without cuts, the status is `failed`."""
    wrong = any(cut.status == "wrong" for cut in cuts)
    status = "wrong" if wrong else "right" if cuts else "failed"
    return ModelEntry(**{"model": "net", "ok": status == "right", "status": status, "cuts": cuts, **more})
