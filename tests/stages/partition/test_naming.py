"""The names of partitions come from module paths, are unique, and are safe as file names."""

from __future__ import annotations

import pytest

from trtbuild.stages.partition.naming import partition_names
from trtbuild.stages.partition.regions import REST_REGION, Region

A, B = Region("layers.0"), Region("layers.1")


# `None` stands for a Torch partition
@pytest.mark.parametrize(
    ("regions", "names"),
    [
        ([], []),
        ([REST_REGION], ["model"]),
        ([None], ["model"]),
        ([A], ["layers.0"]),
        ([REST_REGION, None, REST_REGION], ["p0", "p1", "p2"]),
        ([REST_REGION, A, B, REST_REGION], ["p0", "layers.0", "layers.1", "p3"]),
        ([A, REST_REGION, A, B], ["layers.0#0", "p1", "layers.0#1", "layers.1"]),
        ([Region("l"), Region("l", 1), None], ["l#0", "l#1", "p2"]),
        ([Region("p1"), REST_REGION], ["p1", "p1_"]),
        ([REST_REGION, Region("p0"), Region("p0_")], ["p0__", "p0", "p0_"]),
        ([Region("input"), Region("weight"), REST_REGION], ["input_", "weight_", "p2"]),
        ([Region("a b"), Region("a/b"), Region("ä")], ["a_b#0", "a_b#1", "_"]),
    ],
)
def test_partition_names_come_from_regions_and_are_unique(regions: list[Region | None], names: list[str]) -> None:
    assert partition_names(regions) == names
