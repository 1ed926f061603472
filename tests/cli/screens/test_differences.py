"""The result of ``trtbuild diff`` as text."""

from __future__ import annotations

import click

from trtbuild.cli.screens import differences
from trtbuild.driver.answers.differences import Diff, Difference, PartitionDifference, Side

SIDE = Side(name="vit", kind="model", model="vit", known_from="manifest", engine_recipes=0)


def lines_of(*entries: Difference) -> list[str]:
    """The lines about `entries`, after the two lines about the sides."""
    result = Diff(same=False, a=SIDE, b=SIDE, differences=entries)
    return [click.unstyle(line) for line in differences.diff_lines(result)][2:]


def test_a_value_of_one_side_only_is_described_in_words() -> None:
    weight = {"dtype": "float32", "shape": [5, 32], "sha256": "ab" * 32}
    partition = {"kind": "tensorrt", "graph": "cd" * 32}
    assert lines_of(
        PartitionDifference(area="partitions", name="p3", change="removed", was=partition, now=None, targets=["ada"]),
        Difference(area="weights", name="head.weight", change="added", was=None, now=weight),
    ) == [
        "partitions:",
        "  - p3: tensorrt  cdcdcdcdcdcd  (ada)",
        "weights:",
        "  + head.weight: float32 [5, 32]  abababababab",
        "2 differences",
    ]
