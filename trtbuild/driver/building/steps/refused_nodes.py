"""Name the PyTorch operator and module of each ONNX node that TensorRT refused.

TensorRT reports the names of ONNX nodes. Three documents of earlier steps lead from a node to its operator and module: the
list of partitions, the origins of a conversion's nodes, and the module paths of the program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from trtbuild.core.packages.name_table import name_table
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.driver.building.steps.package_record import read_origins
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.errors import ToolchainError, TrtbuildError

#: The largest number of nodes that a message lists.
_MAX_NODES = 5


def name_operators(error: ToolchainError, plan: ModelPlan, step: Step, lookups: StoreLookups) -> None:
    """Add the modules and operators of the refused nodes to `error`, which the engine step `step` has raised.

    Nodes without a known operator are left out. An error without a hint gets a hint: how to keep the operators in PyTorch.
    """
    try:
        operators_of_nodes = _operators_of_nodes(plan, step, lookups)
    except (TrtbuildError, OSError, LookupError, TypeError, ValueError, AttributeError):
        return  # an error here must not hide the error of TensorRT
    known_nodes = [(node, *operators_of_nodes[node][:2]) for node in error.nodes if node in operators_of_nodes]
    if not known_nodes:
        return
    lines = [
        f"{node} is {operator} in {path or 'the root module'}" for node, path, operator in known_nodes[:_MAX_NODES]
    ]
    more_lines = [f"and {len(known_nodes) - _MAX_NODES} more"] if len(known_nodes) > _MAX_NODES else []
    error.text += "".join(f"\n    {line}" for line in lines + more_lines)
    operators = ", ".join(dict.fromkeys(operator for _, _, operator in known_nodes))
    error.hint = (
        error.hint or f"keep the refused operators in PyTorch: partition: {{torch_executed_ops: [{operators}]}}"
    )


def _operators_of_nodes(plan: ModelPlan, step: Step, lookups: StoreLookups) -> Mapping[str, list[str]]:
    """Node → [module path, operator], for the partition of an engine step. Raises LookupError for an unknown partition."""
    contents = plan.contents
    if contents is None or step.target is None:
        raise LookupError(step.id)
    modules = json.loads(lookups.blob(contents.modules.sha256))
    origins = read_origins(contents, step.target, lookups)
    partition = step.id.partition("/engine/")[2].rpartition("@")[0]
    return name_table(contents.partitions_by_target[step.target], modules, origins)[partition]
