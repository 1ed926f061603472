"""In a partition with wrong results, find the first operator whose value is wrong.

Rules
1. The value of each call of the partition's program is compared with that of the last ONNX node that came from the call. A
   call is right, wrong, or unknown. It is unknown if the node has another dtype, shape or number of outputs (float32 may
   replace a half type), or if there is no such node, for example because the optimizer has merged it. The tolerance depends
   on the call's precision (`precisions`).
2. A wrong call counts only if it reaches an output through calls that are all wrong or unknown. (A value with another
   layout in ONNX may look wrong, although the calls after it are right.)
3. The result names two calls: the first wrong call that counts, and the first unknown call that it depends on, through
   unknown calls only. The fault is between these two calls. Without such an unknown call, the result names the wrong call
   twice.
4. Values are compared in groups of at most `_GROUP_BYTES`. A larger value is compared alone. Each group needs one more run
   of the program and the ONNX model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Literal

import onnx
import torch

from trtbuild.core.model.comparisons import Operator, Place
from trtbuild.core.model.verification import RoundedType
from trtbuild.core.partition.partitions import Partition
from trtbuild.stages.half_types import HALF_TYPES
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.text import target_name
from trtbuild.stages.verify.comparing import deviation
from trtbuild.stages.verify.onnx_models.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.precisions import node_precisions
from trtbuild.stages.verify.running import OrderedInterpreter, placeholder_values

_GROUP_BYTES = 256 << 20

State = Literal["right", "wrong", "unknown"]


class FaultSearch:
    """Searches one partition.

    `modules` has (module path, operator) for each call of the lowered program. `origins` has (name, call): the name of an
    ONNX node, and the number of the call that it comes from."""

    def __init__(
        self,
        part: Partition,
        program: Program,
        model: bytes,
        origins: Sequence[tuple[str, int]],
        modules: Sequence[Sequence[str]],
        tolerances: Mapping[RoundedType, float],
    ) -> None:
        self._part = part
        self._program = program
        self._modules = modules
        self._calls = [node for node in program.graph.nodes if node.op == "call_function"]
        precisions = node_precisions(program)
        self._tolerances = [tolerances[precisions[node]] for node in self._calls]
        graph = onnx.ModelProto.FromString(model).graph
        nodes_by_name = {node.name: node for node in graph.node}
        order = {node.name: index for index, node in enumerate(graph.node)}
        #: Number of a call → the ONNX nodes that came from the call, in the order of the model.
        self._nodes: dict[int, list[onnx.NodeProto]] = {}
        for name, call in sorted(origins, key=lambda pair: order.get(pair[0], -1)):
            if name in nodes_by_name and 0 <= call < len(self._calls):
                self._nodes.setdefault(call, []).append(nodes_by_name[name])
        #: Number of a call → its largest error, and the text of a difference that is not a number.
        self._differences: dict[int, tuple[float, str]] = {}

    def find_place(
        self, runtime: OnnxRuntime, weights: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> Place | None:
        """Return the place of the fault for inputs with a wrong result; None if no wrong call counts (rule 2).

        Raises NotRunnable, PartFailed."""
        values = placeholder_values(self._program, weights, inputs)
        states: dict[int, State] = {}
        for group in self._groups(values):
            names = [name for call in group for name in self._outputs(call)]
            expected = _record_values(self._program, values, [self._calls[call] for call in group])
            onnx_values = dict(zip(names, runtime.values(self._part, inputs, names), strict=True))
            for call in group:
                results = [onnx_values[name] for name in self._outputs(call)]
                states[call] = self._compare_call(call, results, expected[self._calls[call]])
        return self._find_first_fault(states)

    def _outputs(self, call: int) -> list[str]:
        return [name for name in self._nodes[call][-1].output if name]

    def _groups(self, values: Sequence[torch.Tensor]) -> Iterator[list[int]]:
        sizes = _value_sizes(self._program, values)
        group: list[int] = []
        total = 0
        for call in sorted(self._nodes):
            size = sizes.get(self._calls[call], 0)
            if group and total + size > _GROUP_BYTES:
                yield group
                group, total = [], 0
            group.append(call)
            total += size
        if group:
            yield group

    def _compare_call(self, call: int, results: Sequence[torch.Tensor], expected: Any) -> State:
        """Compare the outputs of the call's ONNX node with the value that PyTorch computes (rule 1)."""
        expected_outputs = [expected] if isinstance(expected, torch.Tensor) else expected
        if not isinstance(expected_outputs, list | tuple) or len(expected_outputs) != len(results):
            return "unknown"
        worst = (0.0, "")
        for a, b in zip(results, expected_outputs, strict=True):
            if not isinstance(b, torch.Tensor) or a.shape != b.shape:
                return "unknown"
            converted = a.to(b.dtype) if b.dtype in HALF_TYPES and a.dtype is torch.float32 else a
            if converted.dtype != b.dtype:
                return "unknown"
            difference = deviation(converted, b)
            worst = max(worst, (difference.error, difference.text))
        self._differences[call] = worst
        return "wrong" if worst[0] > self._tolerances[call] else "right"

    def _find_first_fault(self, states: Mapping[int, State]) -> Place | None:
        """Apply rules 2 and 3."""
        wrong_or_unknown = {call for call in range(len(self._calls)) if states.get(call) != "right"}
        reaching_output = self._backwards_from(self._program.output_nodes, wrong_or_unknown)
        wrong = {call for call in reaching_output if states.get(call) == "wrong"}
        if not wrong:
            return None
        first = min(wrong)
        unknown_before = self._backwards_from(self._calls[first].all_input_nodes, reaching_output - wrong)
        error, text = self._differences[first]
        since = self._operator(min(unknown_before, default=first))
        return Place(self._operator(first), since, None if text else error, text)

    def _backwards_from(self, nodes: Sequence[torch.fx.Node], allowed: Set[int]) -> set[int]:
        """Return the calls among `nodes`, and those that they depend on. The search enters only calls of `allowed`."""
        call_numbers = {node: index for index, node in enumerate(self._calls)}
        found: set[int] = set()
        waiting = list(nodes)
        while waiting:
            call = call_numbers.get(waiting.pop(), -1)
            if call in allowed and call not in found:
                found.add(call)
                waiting += self._calls[call].all_input_nodes
        return found

    def _operator(self, call: int) -> Operator:
        number = self._part.calls[call] if call < len(self._part.calls) else -1
        nodes = tuple(node.name for node in self._nodes.get(call, ()))
        if 0 <= number < len(self._modules):
            return Operator(self._modules[number][0], self._modules[number][1], nodes)
        return Operator("", target_name(self._calls[call].target), nodes)


class _Recorder(OrderedInterpreter):
    """Runs a graph, and passes each call's value to `keep`."""

    def __init__(self, program: Program, keep: Any) -> None:
        super().__init__(program.exported.graph_module)
        self._keep = keep

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function":
            self._keep(n, value)
        return value


def _record_values(
    program: Program, values: Sequence[torch.Tensor], calls: Sequence[torch.fx.Node]
) -> dict[torch.fx.Node, Any]:
    """Return call → its value. `values` are the arguments of the program."""
    values_by_node: dict[torch.fx.Node, Any] = {}
    recorded_calls = set(calls)

    def record(node: torch.fx.Node, value: Any) -> None:
        if node in recorded_calls:
            values_by_node[node] = value

    with torch.no_grad():
        _Recorder(program, record).run(*values)
    return values_by_node


def _value_sizes(program: Program, values: Sequence[torch.Tensor]) -> dict[torch.fx.Node, int]:
    """Return call → the size of its value in bytes."""
    sizes: dict[torch.fx.Node, int] = {}

    def measure(node: torch.fx.Node, value: Any) -> None:
        tensors = value if isinstance(value, list | tuple) else [value]
        sizes[node] = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))

    with torch.no_grad():
        _Recorder(program, measure).run(*values)
    return sizes
