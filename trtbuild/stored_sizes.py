"""Read and write programs whose sizes torch alone cannot read or write: ``s - s//2``, ``math.ceil(s / 4)``.

When torch (2.13) reads a stored program, it checks that the sizes of each tensor are not negative. If the ranges of the
symbols do not prove this, torch needs an example (a number) of each symbol. It has the example of a symbol only if the
symbol alone is the size of a tensor that was read earlier. Otherwise torch fails, although it has written the program. A
partition that gets the second half of an axis is such a program.

Inside a block of `solve_sizes`, the missing examples are computed from the examples of the tensor's sizes and strides. The
program contains these examples. Tensors that torch alone can read are read as usual.

torch (2.13) writes and reads calls of ``math.trunc``, but not those of ``math.floor`` and ``math.ceil``. Inside a block of
`solve_sizes`, it writes and reads these, too. torch is imported when a function runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from trtbuild.process_wide import ProcessWideChange

#: The largest number of values (or of combinations of values of several symbols) that are tried.
_MAX_TRIED = 2**14


def _change_torch() -> Callable[[], object]:
    from torch._export.serde.serialize import _SYM_OPS, GraphModuleDeserializer
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    read_tensor = GraphModuleDeserializer.deserialize_tensor_meta

    def read_any_tensor(reader: GraphModuleDeserializer, tensor: Any) -> Any:
        try:
            return read_tensor(reader, tensor)
        except GuardOnDataDependentSymNode:
            _add_examples(reader, tensor)
            return read_tensor(reader, tensor)

    missing_functions = {math.floor, math.ceil} - _SYM_OPS

    def restore() -> None:
        GraphModuleDeserializer.deserialize_tensor_meta = read_tensor
        _SYM_OPS.difference_update(missing_functions)

    GraphModuleDeserializer.deserialize_tensor_meta = read_any_tensor
    _SYM_OPS.update(missing_functions)
    return restore


#: Inside a block of this context manager, ``torch.export.load`` reads such programs, and ``torch.export.save`` writes them.
solve_sizes = ProcessWideChange(_change_torch)


def _add_examples(reader: Any, tensor: Any) -> None:
    """Give an example to each symbol in the sizes and strides of a stored tensor, if the symbol has no example yet. With
    these examples, the sizes and strides are equal to their own stored examples. If no such numbers are found, no symbol
    gets an example."""
    ranges = reader.shape_env.var_to_range
    # torch also stores the examples of expressions in this table
    known = {expr: number for expr, number in reader.shape_env.backed_var_to_val.items() if expr.is_Symbol}
    numbers = [number.value for number in (*tensor.sizes, *tensor.strides) if number.type == "as_expr"]
    equations = [
        (reader._parse_sym_expr(number.expr_str).xreplace(known), number.hint.value)
        for number in numbers
        if number.hint
    ]
    symbols = sorted({symbol for expr, _ in equations for symbol in expr.free_symbols}, key=str)
    if any(symbol not in ranges for symbol in symbols):
        return
    choices = itertools.product(*(_first_numbers(ranges[symbol]) for symbol in symbols))
    for values in itertools.islice(choices, _MAX_TRIED):
        examples = dict(zip(symbols, values, strict=True))
        if all(expr.xreplace(examples) == example for expr, example in equations):
            for symbol, value in examples.items():
                reader.shape_env.add_backed_var_to_val(symbol, value)
            return


def _first_numbers(values: Any) -> range:
    """The first numbers in a range of values, because the range of a size that depends on data has no upper limit."""
    lower = max(values.lower, 0)  # because sizes and strides are not negative
    return range(int(lower), int(min(values.upper, lower + _MAX_TRIED)) + 1)
