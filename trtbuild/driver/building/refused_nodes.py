"""What a compiler refused, in the user's words: a node of an ONNX model is an operator of one of the model's modules.

A compiler knows the names of ONNX nodes, which are canonical. Which operator of which module a node comes from is known to
the records of the steps before: the partition's document, the conversion's origins and the program's module paths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from trtbuild.core.packages.packaging import name_table
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.errors import BlobMissing, EntryCorrupt, ToolchainError

#: How many nodes a message says more about.
_MOST = 5


def say_where(error: ToolchainError, plan: ModelPlan, step: Step, look: StoreLookups) -> None:
    """Add to `error`, which the engine `step` met, the module and operator of each node that it is about, and what keeps
    these operators in PyTorch. What is not known is left out."""
    try:
        names = _names(plan, step, look)
    except (BlobMissing, EntryCorrupt, LookupError, TypeError, ValueError):
        return
    found = [(node, *names[node][:2]) for node in error.nodes if node in names]
    if not found:
        return
    lines = [f"{node} is {operator} in {path or 'the root module'}" for node, path, operator in found[:_MOST]]
    more = [f"and {len(found) - _MOST} more"] if len(found) > _MOST else []
    error.text += "".join(f"\n    {line}" for line in lines + more)
    operators = ", ".join(dict.fromkeys(operator for _, _, operator in found))
    error.hint = error.hint or f"keep what it refuses in PyTorch: partition: {{torch_executed_ops: [{operators}]}}"


def _names(plan: ModelPlan, step: Step, look: StoreLookups) -> Mapping[str, list[str]]:
    """Node → module path and operator, for the partition of an engine step. Raises LookupError where nothing is known."""
    contents = plan.contents
    if contents is None or step.target is None:
        raise LookupError(step.id)
    modules = json.loads(look.blob(contents.modules.sha256))
    origins = {graph: json.loads(look.blob(sha256)) for graph, sha256 in contents.origins.items()}
    part = step.id.partition("/engine/")[2].rpartition("@")[0]
    return name_table(contents.cuts[step.target], modules, origins)[part]
