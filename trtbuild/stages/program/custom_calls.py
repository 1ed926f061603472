"""Replace calls of operators from outside PyTorch by inputs and outputs, and put the calls back after the lower step.

The lower step runs operators, but its process has not loaded the code of operators from outside PyTorch. So the step
works on an *opened* program, without their calls. The results of a call are inputs of the opened program, and the values
that a call reads are outputs. The lower step keeps the types of all inputs and outputs.

Rules
1. `open_calls` adds the results of all calls as the last inputs. It adds the values that calls read as the last outputs,
   except values that are inputs of the opened program, weights or constants.
2. `OpenedProgram.close` puts the calls back, each before the first reader of its results.
3. A number that a call reads (a size) is computed again from the sizes of the model's inputs. A size that depends on data
   is read from an earlier tensor that has it. Without such a tensor, ConversionRefused is raised.
4. A tensor that was contiguous in the traced program is made contiguous for its call, because kernels may rely on this
   layout. The lower step removes copies that only change the layout.
5. `OpenedProgram.close` adds checks of the results (`size_checks`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from trtbuild.errors import ConversionRefused
from trtbuild.stages.program.closing_calls import (
    OutputArgument,
    PlaceholderArgument,
    RemovedCall,
    SizeArgument,
    close_calls,
)
from trtbuild.stages.program.custom_operators import is_custom, overload_name
from trtbuild.stages.program.functional import Program, assemble
from trtbuild.stages.program.sizes import Point, PointEvaluator
from trtbuild.stages.program.symbols import Symbols

_PREFIX = "operator_result_"


@dataclass(frozen=True)
class OpenedProgram:
    """A program without the calls. Its first `output_count` outputs are those of the original program."""

    program: Program
    output_count: int
    calls: Sequence[RemovedCall]

    @property
    def added_inputs(self) -> list[torch.fx.Node]:
        return [node for node in self.program.input_nodes if node.name.startswith(_PREFIX)]

    def point_with_results(self, point: Point) -> Point:
        """Add to `point` a number for each symbol that only the added inputs have: the number of its range that is closest
        to 2. A point maps symbols to numbers."""
        ranges = self.program.exported.range_constraints
        sizes = (size for node in self.added_inputs for size in node.meta["val"].shape if not isinstance(size, int))
        symbols = {symbol for size in sizes for symbol in size.node.expr.free_symbols if symbol not in point}
        numbers = {}
        for symbol in symbols:
            bounds = ranges.get(symbol)
            low = 0 if bounds is None else int(bounds.lower)
            high = 2 if bounds is None or bounds.upper > 2 else int(bounds.upper)
            numbers[symbol] = max(low, high)
        return {**point, **numbers}

    def result_types(self, point: Point) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype and shape of each added input at a point of `point_with_results`."""
        evaluator = PointEvaluator(point)
        types = []
        for node in self.added_inputs:
            ((dtype, shape),) = evaluator.declared(node.meta["val"])
            types.append((node.name, str(dtype).removeprefix("torch."), tuple(size or 0 for size in shape)))
        return types

    def close(self, lowered: Program) -> Program:
        """Put the calls back into the lowered form of `program`. Raises ConversionRefused (rule 3)."""
        return close_calls(self.calls, self.output_count, lowered) if self.calls else lowered


def open_calls(program: Program) -> OpenedProgram:
    """Remove the calls from a copy of `program` (rule 1). Raises ConversionRefused for a call that cannot be removed, for
    example because it reads a float that is computed from a size."""
    calls = [node for node in program.graph.nodes if node.op == "call_function" and is_custom(node.target)]
    if not calls:
        return OpenedProgram(program, len(program.output_nodes), ())
    return _Opening(program, calls).open()


def checked_copy(program: Program) -> Program:
    """A copy of `program` with a check of each result of a call (rule 5), or `program` itself if it has no such call.

    Raises ConversionRefused, for example under rule 3."""
    opened = open_calls(program)
    return opened.close(opened.program)


class _Opening:
    def __init__(self, program: Program, calls: Sequence[torch.fx.Node]) -> None:
        self._program = program
        self._calls = calls
        self._symbols = Symbols(program)
        self._graph = torch.fx.Graph()
        self._copies: dict[torch.fx.Node, torch.fx.Node] = {}
        #: The outputs of the opened program, as nodes of `program`.
        self._outputs = list(program.output_nodes)

    def open(self) -> OpenedProgram:
        program, signature = self._program, self._program.exported.graph_signature
        for node in program.placeholders:
            self._copy(node)
        results = [dict(self._add_results(number, call)) for number, call in enumerate(self._calls)]
        for node in program.graph.nodes:
            if node.op not in ("placeholder", "output") and node not in self._copies and not is_custom(node.target):
                self._copy(node)
        calls = [self._removed_call(node, added) for node, added in zip(self._calls, results, strict=True)]
        copied_outputs = [self._copies[node] for node in self._outputs]
        self._graph.output(tuple(copied_outputs))
        inputs = [*signature.input_specs]
        inputs += [_input_spec(name) for added in results for name in added]
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in copied_outputs]
        module = torch.fx.GraphModule(program.exported.graph_module, self._graph)
        opened = assemble(module, inputs, outputs, program.exported.range_constraints, program.exported.constants)
        return OpenedProgram(Program(opened, program.weights), len(program.output_nodes), calls)

    def _removed_call(self, node: torch.fx.Node, results: dict[str, tuple[int | None, torch.fx.Node]]) -> RemovedCall:
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), self._argument)
        return RemovedCall(node, args, kwargs, results)

    def _copy(self, node: torch.fx.Node) -> None:
        self._copies[node] = copy = self._graph.node_copy(node, self._copies.__getitem__)
        copy.meta = dict(node.meta)

    def _add_results(self, number: int, call: torch.fx.Node) -> Iterator[tuple[str, tuple[int | None, torch.fx.Node]]]:
        """Add an input for each result of `call` that the program reads. Yields its name and its value in
        `RemovedCall.results`."""
        readers: list[tuple[int | None, torch.fx.Node]] = [(None, call)]  # one tensor: the call is its own result
        if not isinstance(call.meta["val"], torch.Tensor):
            readers = [(reader.args[1], reader) for reader in call.users]
            if any(reader.target is not operator.getitem for _, reader in readers):
                raise ConversionRefused(
                    f"the model passes all results of {overload_name(call.target)} to one operator",
                    hint="read the results one by one",
                )
        inputs_by_index: dict[int | None, torch.fx.Node] = {}
        for index, reader in readers:
            if index in inputs_by_index:
                self._copies[reader] = inputs_by_index[index]
                continue
            name = f"{_PREFIX}{number}_{len(inputs_by_index)}"
            placeholder = self._graph.placeholder(name)
            placeholder.meta = {"val": reader.meta["val"]}
            inputs_by_index[index] = self._copies[reader] = placeholder
            yield name, (index, reader)

    def _argument(self, node: torch.fx.Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt | int):
            return SizeArgument(value)
        if not isinstance(value, torch.Tensor):
            raise ConversionRefused(
                f"an operator from outside PyTorch reads {type(value).__name__} {node.name}, which is not a tensor",
                hint="pass a tensor instead",
            )
        copy = self._copies[node]
        if copy.op == "placeholder":
            return PlaceholderArgument(copy.name)
        if node not in self._outputs:
            self._outputs.append(node)
        return OutputArgument(self._outputs.index(node), _is_contiguous(value, self._symbols))


def _input_spec(name: str) -> InputSpec:
    return InputSpec(kind=InputKind.USER_INPUT, arg=TensorArgument(name), target=None)


def _is_contiguous(value: torch.Tensor, symbols: Symbols) -> bool:
    """Whether a tensor without data is contiguous. Sizes are compared as expressions, so that torch adds no guards."""
    if value.layout is not torch.strided:
        return False
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        number = symbols.size_expression(size)
        if number != 1 and symbols.size_expression(stride) != symbols.size_expression(expected):
            return False
        expected = size * expected
    return True
