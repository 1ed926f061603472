"""Find the inputs that make a model fail. For example, an integer may be too large for an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.core.values.value_ranges import ValueRange
from trtbuild.stages.program.functional import Program
from trtbuild.stages.verify.running import placeholder_values


def inputs_of_failure(
    program: Program, weights: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[int] | None:
    """Return the numbers of the inputs that the first failing call depends on; None if no call fails."""
    interpreter = _FailureFinder(program.exported.graph_module)
    try:
        with torch.no_grad():
            interpreter.run(*placeholder_values(program, weights, inputs))
    except Exception:  # an operator may raise any error
        if interpreter.failed_node is not None:
            ancestors = _ancestors(interpreter.failed_node)
            return [number for number, node in enumerate(program.input_nodes) if node in ancestors]
    return None


def inputs_of_partition(partitions: Partitions, part: Partition, numbers: Sequence[int] | None = None) -> list[int]:
    """Return the numbers of the model's inputs that a partition depends on.

    With `numbers`, only these inputs of the partition count."""
    partitions_by_name = {partition.name: partition for partition in partitions.partitions}
    input_numbers: set[int] = set()
    positions = range(len(part.inputs)) if numbers is None else numbers
    waiting = [part.inputs[number][0] for number in positions]
    seen: set[str] = set()
    while waiting:
        source_name, _, index = waiting.pop().rpartition(":")
        if source_name == "input":
            input_numbers.add(int(index))
        elif source_name != "weight" and source_name not in seen:
            seen.add(source_name)
            waiting += [source for source, _ in partitions_by_name[source_name].inputs]
    return sorted(input_numbers)


def describe_values(inputs: Mapping[str, torch.Tensor]) -> str:
    """Describe the values of integer inputs: ``ids has values from 0 to 19``."""
    return ", ".join(
        f"{name} has values from {int(value.min())} to {int(value.max())}" for name, value in inputs.items()
    )


def range_hint(inputs: Mapping[str, torch.Tensor], ranges: Mapping[str, ValueRange]) -> str:
    """Return a hint: how to set the range of one of `inputs` in the manifest."""
    name = next((input_name for input_name in inputs if input_name not in ranges), next(iter(inputs)))
    if name in ranges:
        return f"correct the range of {name}, {list(ranges[name])}, to the values that the model takes, and build again"
    dtype = str(inputs[name].dtype).removeprefix("torch.")
    return (
        f"say which values the model takes, and build again: `{name}: {{dtype: {dtype}, range: [LOWEST, HIGHEST]}}`; or "
        "give such inputs: trtbuild verify --replay FILE"
    )


def is_integer(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool) and value.numel() > 0


class _FailureFinder(torch.fx.Interpreter):
    failed_node: torch.fx.Node | None = None

    def run_node(self, n: torch.fx.Node) -> Any:
        try:
            return super().run_node(n)
        except Exception:
            self.failed_node = n
            raise


def _ancestors(node: torch.fx.Node) -> set[torch.fx.Node]:
    seen = {node}
    waiting = [node]
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return seen
