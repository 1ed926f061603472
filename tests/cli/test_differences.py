"""What differs, as a person reads it."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli.screens import differences

SIDE = {"kind": "model", "name": "vit", "known_from": "manifest", "engine_recipes": 0}


def shown(*entries: dict[str, Any]) -> list[str]:
    found = {"a": SIDE, "b": SIDE, "differences": list(entries)}
    return [click.unstyle(line) for line in differences.differing(found)][2:]


def test_what_one_side_has_alone_is_named_in_words() -> None:
    weight = {"dtype": "float32", "shape": [5, 32], "sha256": "ab" * 32}
    partition = {"kind": "tensorrt", "graph": "cd" * 32}
    assert shown(
        {"area": "partitions", "name": "p3", "change": "removed", "was": partition, "now": None, "targets": ["ada"]},
        {"area": "weights", "name": "head.weight", "change": "added", "was": None, "now": weight},
    ) == [
        "partitions:",
        "  - p3: tensorrt  cdcdcdcdcdcd  (ada)",
        "weights:",
        "  + head.weight: float32 [5, 32]  abababababab",
        "2 differences",
    ]
