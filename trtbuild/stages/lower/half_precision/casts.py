"""Insert the casts for the decisions of `trtbuild.stages.lower.half_precision.dtypes`.

Half is float16 or bfloat16. A repeated module is a module with a number in its path, such as ``layers.3``.

Rules
1. The readers in one repeated module share one cast of a value to each dtype.
2. Most casts to half belong to the module that computes the value, and all readers share them. So repeated modules exchange
   values in half, and equal layers have equal casts. But the following casts belong to the module that reads the value:
   * casts to float32;
   * casts of weights and constants to half;
   * casts of values that may leave the range of half (`Range.WIDE` or wider);
   * casts between float16 and bfloat16, unless the reader computes in the default precision of the model. So layers with
     the default precision stay equal beside a layer with another precision.
3. Weights stay in the dtype in which they are stored. The compiler folds their casts.
4. Only values that were float32 before this pass are cast, never integers, booleans and other floating types.
5. The parameters of a `SCALING` operator (batch normalization) stay float32, even if its input is half.
6. Each changed node is run again on fake values, and must return the dtype that was decided.
"""

from __future__ import annotations

import operator

import torch

from trtbuild.stages.lower.half_precision.dtypes import Dtypes, repeat_of, role_of
from trtbuild.stages.lower.half_precision.operators import Role
from trtbuild.stages.lower.half_precision.ranges import Range, is_float32, tensors
from trtbuild.stages.lower.modules import common_stack, set_stack, stack_of
from trtbuild.stages.lower.propagate import propagate, refresh
from trtbuild.stages.program.text import target_name

_TO_COPY = torch.ops.aten._to_copy.default


class CastInserter:
    """Inserts the casts for `dtypes` into one graph."""

    def __init__(self, graph: torch.fx.Graph, dtypes: Dtypes) -> None:
        self._graph = graph
        self._dtypes = dtypes
        # collected before casts are inserted, because casts change the dtypes of nodes
        self._float32_nodes = {node for node in graph.nodes if is_float32(node)}
        roles = {node: role_of(node) for node in graph.nodes if node.op == "call_function"}
        self._shape_nodes = {node for node, role in roles.items() if role is Role.SHAPE}
        self._scaling_nodes = {node for node, role in roles.items() if role is Role.SCALING}
        #: (value, dtype, repeated module of the readers) → the cast. The module is "" for a cast that all readers share,
        #: and for readers that are in no repeated module.
        self._casts: dict[tuple[torch.fx.Node, torch.dtype, str], torch.fx.Node] = {}
        #: The nodes whose inputs or dtypes have changed (`propagate.refresh`).
        self._changed: set[torch.fx.Node] = set()

    def insert(self) -> None:
        """Insert all casts."""
        for node in list(self._graph.nodes):
            if node.op not in ("call_function", "output") or node.target is operator.getitem:
                self._refresh(node)
                continue
            if node in self._shape_nodes:
                self._set_float32(node)
                continue
            dtype = self._dtypes.dtype_of(node)
            for source in self._inputs_to_cast(node):
                converted = self._cast_to(source, dtype, node) if source in self._float32_nodes else source
                if converted is not source:
                    node.replace_input_with(source, converted)
                    self._changed.add(node)
            self._refresh(node)

    def _inputs_to_cast(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """The inputs that `node` reads in the dtype in which it computes (rule 5)."""
        if node in self._scaling_nodes and node in self._dtypes.half:
            return list(node.all_input_nodes[:1])
        return list(node.all_input_nodes)

    def _cast_to(self, source: torch.fx.Node, dtype: torch.dtype, reader: torch.fx.Node) -> torch.fx.Node:
        """Return a node with the value of `source` in `dtype`, for `reader`: a cast, or `source` itself."""
        if source in self._dtypes.half:
            if self._dtypes.half[source] is dtype:
                return source
            is_shared = dtype is self._dtypes.default and dtype is not torch.float32
            return self._share_cast(source, dtype, reader) if is_shared else self._insert_cast(source, dtype, reader)
        if dtype is not torch.float32:
            return self._cast_to_half(source, dtype, reader)
        half = self._dtypes.half_between_modules(source, reader)
        if half is None:
            return source
        # `reader` computes in float32, but repeated modules exchange this value in half (dtypes.py, rules 4 and 6)
        return self._insert_cast(self._cast_to_half(source, half, reader), torch.float32, reader)

    def _cast_to_half(self, source: torch.fx.Node, half: torch.dtype, reader: torch.fx.Node) -> torch.fx.Node:
        if source in self._dtypes.weights_and_constants or self._dtypes.ranges[half][source] >= Range.WIDE:
            return self._insert_cast(source, half, reader)
        return self._share_cast(source, half, reader)

    def _share_cast(self, source: torch.fx.Node, half: torch.dtype, reader: torch.fx.Node) -> torch.fx.Node:
        """Return the cast of `source` that all readers share. It belongs to the module that computes `source`."""
        key = (source, half, "")
        if key not in self._casts:
            is_call = source.op == "call_function"
            with self._graph.inserting_after(source) if is_call else self._graph.inserting_before(reader):
                self._casts[key] = self._call_cast(source, half)
            set_stack(self._casts[key], stack_of(source))
        return self._casts[key]

    def _insert_cast(self, source: torch.fx.Node, dtype: torch.dtype, reader: torch.fx.Node) -> torch.fx.Node:
        """Return the cast of `source` for the readers in one repeated module.

        The cast stands before its first reader, and belongs to the innermost module call that encloses all its readers.
        """
        key = (source, dtype, repeat_of(reader))
        if key in self._casts:
            set_stack(self._casts[key], common_stack([stack_of(self._casts[key]), stack_of(reader)]))
            return self._casts[key]
        with self._graph.inserting_before(reader):
            self._casts[key] = self._call_cast(source, dtype)
        set_stack(self._casts[key], stack_of(reader))
        return self._casts[key]

    def _call_cast(self, source: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        cast = self._graph.call_function(_TO_COPY, (source,), {"dtype": dtype})
        propagate(cast)
        return cast

    def _set_float32(self, node: torch.fx.Node) -> None:
        """Set the argument `dtype` of a call such as ``zeros_like``, which otherwise returns the dtype of its input."""
        if node in self._float32_nodes and node.kwargs.get("dtype") is None:
            node.kwargs = {**node.kwargs, "dtype": torch.float32}

    def _refresh(self, node: torch.fx.Node) -> None:
        were_float32 = [tensor.dtype is torch.float32 for tensor in tensors(node)]
        if not refresh(node, self._changed):
            return
        dtype = self._dtypes.dtype_of(node)
        for tensor, was_float32 in zip(tensors(node), were_float32, strict=True):
            if was_float32 and tensor.dtype is not dtype:
                raise TypeError(
                    f"{target_name(node.target)} returns {tensor.dtype} instead of {dtype}: "
                    "its row in trtbuild/stages/lower/half_precision/operators.py is wrong"
                )
