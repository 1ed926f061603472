"""The table of names: ONNX node of an engine → the module and the operator that it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtbuild.core.packages.contents import ToolchainPartitions

#: The table's file in a package.
NAMES_FILE = "names.json"


def name_table(
    toolchain_partitions: ToolchainPartitions,
    modules: Sequence[Sequence[str]],
    origins: Mapping[str, Sequence[Sequence[Any]]],
) -> dict[str, dict[str, list[str]]]:
    """Return the table: TensorRT partition → ONNX node → module path and operator.

    `modules` has an entry for each call of the lowered program. An entry begins with the call's module path and operator.
    `origins` maps the digest of a partition's program (`Partition.graph`) to pairs: an ONNX node, and the number of the
    partition's call that the node comes from.
    """
    table = {}
    for partition in toolchain_partitions.partitions.partitions:
        if partition.kind != "tensorrt":
            continue
        names = {}
        for node, call in origins.get(partition.graph, ()):
            lowered_call = partition.calls[call]
            if lowered_call >= 0:  # -1: the partition step added the call (`Partition.calls`)
                names[node] = list(modules[lowered_call][:2])
        table[partition.name] = names
    return table
