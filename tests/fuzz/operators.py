"""Cases of one operator, with arguments from PyTorch's own tests (`op_db`). Simple operators may surround this operator.

`op_db` has samples for about 600 operators and all their dtypes. Its import needs expecttest.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import Axis, ModuleCase
from tests.fuzz.ranges import UnusableCase, check_usable, random_range
from trtbuild.core.model.spec import NamedDim

#: Operators that are not tested, with the reason.
EXCLUDED: Mapping[str, str] = {
    "empty": "uninitialized memory",
    "empty_like": "uninitialized memory",
    "empty_permuted": "uninitialized memory",
    "empty_strided": "uninitialized memory",
    "new_empty": "uninitialized memory",
    "new_empty_strided": "uninitialized memory",
    "resize_": "uninitialized memory",
    "resize_as_": "uninitialized memory",
    "nn.functional.rrelu": "its samples are random; there is a hand-written test",
    "to_sparse": "sparse tensors cannot be outputs",
    "sparse.mm": "sparse tensors cannot be inputs",
    "sparse.sampled_addmm": "sparse tensors cannot be inputs",
}  # fmt: skip

#: Operators that have undefined results or crash if their arguments are random numbers (PyTorch 2.13).
_UNDEFINED: Mapping[str, str] = {
    "bucketize": "needs sorted boundaries",
    "searchsorted": "needs a sorted sequence",
    "_segment_reduce": "reads out of bounds where the lengths are not those of the segments",
    "lu_unpack": "writes out of bounds where a pivot is larger than the matrix",
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"),
        "writes out of bounds where the statistics have another size than the channels",
    ),
}

#: Dtype → its relative frequency, among the dtypes that an operator supports.
_DTYPES = {
    "float32": 10, "float16": 5, "bfloat16": 4, "float64": 3, "int64": 4, "int32": 3, "int16": 1, "int8": 1, "uint8": 1,
    "bool": 4, "complex64": 1,
}  # fmt: skip

#: The largest numbers of samples of an operator, of elements in a sample, and of attempts to find a usable case.
_MOST_SAMPLES, _MOST_ELEMENTS, _ATTEMPTS = 60, 20_000, 12

#: Later attempts try simpler cases. From these attempts on: only the first tensor is an input; only one axis is dynamic;
#: one random tensor is the only input; no axis is dynamic.
_FIRST_INPUT_ONLY, _ONE_DYNAMIC_AXIS, _RANDOM_INPUT_ONLY, _ALL_STATIC = 6, 7, 9, 11

#: Operators that are called before and after the tested operator: text, name for `torch_executed_ops`, supported dtypes.
_SIMPLE_OPERATORS = (
    ("{}.flip(0)", "aten.flip", "any"),
    ("torch.roll({}, 1, 0)", "aten.roll", "any"),
    ("-{}", "aten.neg", "number"),
    ("{} * 2", "aten.mul", "number"),
    ("{} + {}", "aten.add", "number"),
    ("~{}", "aten.bitwise_not", "bool"),
    ("torch.logical_not({})", "aten.logical_not", "any"),
    ("torch.where({0} > 0, {0}, -{0})", "aten.where", "number"),
    ("torch.stack([{0}, {0}])", "aten.stack", "any"),
    ("{}.unsqueeze(-1)", "aten.unsqueeze", "any"),
    ("{}.relu()", "aten.relu", "number"),
    ("{}.sum()", "aten.sum", "any"),
    ("{}.float()", "aten._to_copy", "any"),
    ("{}.half()", "aten._to_copy", "any"),
    ("{}.bool()", "aten._to_copy", "any"),
    ("{}.long()", "aten._to_copy", "any"),
)  # fmt: skip
#: This many entries at the start of `_SIMPLE_OPERATORS` keep the shape and the dtype of their input.
_TYPE_KEEPING_COUNT = 6


@functools.cache
def operators() -> tuple[Any, ...]:
    """The tested operators of `op_db`, in its order. The import takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    return tuple(op for op in op_db if op.name not in EXCLUDED)


def operator_case(seed: int) -> ModuleCase:
    """The case of a seed. Successive seeds use successive operators. Raises UnusableCase if there is no usable case."""
    rng = random.Random(seed)
    op = operators()[seed % len(operators())]
    call = _sample(op, rng, seed)
    for attempt in range(_ATTEMPTS):
        case = _case(call, rng, attempt)
        try:
            check_usable(case)
        except UnusableCase:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return case
    raise AssertionError("the last attempt is returned or raised")


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator. ``{0}`` in `text` is the first of `tensors`. `names` are further names that `text` can use."""

    text: str
    tensors: tuple[torch.Tensor, ...]
    names: Mapping[str, Any] = field(default_factory=dict)


def _sample(op: Any, rng: random.Random, seed: int) -> OperatorCall:
    """A call with a random sample of `op_db`, in a random dtype. Raises UnusableCase if there is no usable sample."""
    dtypes = {str(dtype).removeprefix("torch."): dtype for dtype in op.supported_dtypes("cpu")}
    weights = {name: weight for name, weight in _DTYPES.items() if name in dtypes}
    if not weights:
        raise UnusableCase(f"dtypes: {op.name} supports none of the tried dtypes")
    dtype = dtypes[rng.choices(list(weights), list(weights.values()))[0]]
    calls = list(calls_of(op, dtype, seed))
    rng.shuffle(calls)
    if rng.random() < 0.85:  # usually prefer calls without empty tensors, which a third of the samples have
        calls.sort(key=lambda call: not all(tensor.numel() for tensor in call.tensors))
    return calls[0]


def calls_of(op: Any, dtype: torch.dtype, seed: int) -> list[OperatorCall]:
    """A call for each small sample of `op_db`. Raises UnusableCase if there is no usable sample."""
    if op.name in _UNDEFINED:
        raise UnusableCase(f"undefined: {op.name} {_UNDEFINED[op.name]}")
    if dtype not in op.supported_dtypes("cpu"):
        raise UnusableCase(f"dtypes: {op.name} does not support {dtype}")
    torch.manual_seed(seed)
    random.seed(seed)
    try:
        with torch.no_grad():
            samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), _MOST_SAMPLES))
    except Exception as error:
        raise UnusableCase(f"samples: {op.name} has no samples of {dtype}: {type(error).__name__}") from error
    calls = [call for call in (_call_text(op, sample) for sample in samples) if call is not None]
    calls = [call for call in calls if sum(tensor.numel() for tensor in call.tensors) <= _MOST_ELEMENTS]
    if not calls:
        raise UnusableCase(f"samples: {op.name} has no small sample with dense tensors")
    return calls


def _call_text(op: Any, sample: Any) -> OperatorCall | None:
    """The call as text. None if an argument cannot be written as text, or if no argument has a tensor."""
    tensors: list[torch.Tensor] = []
    try:
        arguments = [_argument(value, tensors) for value in (sample.input, *sample.args)]
        arguments += [f"{name}={_argument(value, tensors)}" for name, value in sample.kwargs.items()]
    except UnusableCase:
        return None
    name = f"torch.{op.name}"
    function: Any = torch
    for part in op.name.split("."):
        function = getattr(function, part, None)
    if function is not op.op:
        name = f"op_{op.name.replace('.', '_')}"
        return OperatorCall(f"{name}({', '.join(arguments)})", tuple(tensors), {name: op.op}) if tensors else None
    return OperatorCall(f"{name}({', '.join(arguments)})", tuple(tensors)) if tensors else None


def _argument(value: Any, tensors: list[torch.Tensor]) -> str:
    """The text of one argument. Its tensors are added to `tensors`. Raises UnusableCase if the argument has no text."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise UnusableCase("sparse")
        tensors.append(value.detach())
        return f"{{{len(tensors) - 1}}}"
    if isinstance(value, list | tuple) and type(value) in (list, tuple, torch.Size):
        inner = ", ".join(_argument(item, tensors) for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, slice):
        return f"slice({', '.join(_argument(item, tensors) for item in (value.start, value.stop, value.step))})"
    if value is None or value is Ellipsis or isinstance(value, bool | int | float | complex | str):
        return repr(value).replace("{", "{{").replace("}", "}}")
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    raise UnusableCase(f"an argument of type {type(value).__name__}")


# -- the module, and ranges


def _case(call: OperatorCall, rng: random.Random, attempt: int) -> ModuleCase:
    """A case of a call. The tensors that are not inputs are constants."""
    inputs = [k for k in range(len(call.tensors)) if k == 0 or (attempt < _FIRST_INPUT_ONLY and rng.random() < 0.7)]
    if attempt >= _RANDOM_INPUT_ONLY:
        inputs = [rng.randrange(len(call.tensors))]
    axes, dims = _axes([call.tensors[k] for k in inputs], rng, attempt)
    # the inputs: some are changed by a simple operator
    statements, names_of_inputs, simple_operators = [], {}, []
    for number, k in enumerate(inputs):
        name = f"x{number}"
        if rng.random() < 0.6 and call.tensors[k].dim():
            text, operator = _operator_before(call.tensors[k].dtype, rng)
            statements.append(f"y{number} = {text.format(name, name)}")
            simple_operators.append(operator)
            name = f"y{number}"
        names_of_inputs[k] = name
    # the call
    parts = {f"c{k}": tensor for k, tensor in enumerate(call.tensors) if k not in names_of_inputs}
    names = [names_of_inputs.get(k, f"self.c{k}") for k in range(len(call.tensors))]
    statements.append(f"y = {call.text.format(*names)}")
    result = "y"
    if rng.random() < 0.7:
        result, operator = _result_after_operator(statements, call, [call.tensors[k] for k in inputs], rng, parts)
        simple_operators += [operator] if operator else []
    torch_executed = [name for name in dict.fromkeys(simple_operators) if rng.random() < 0.35]
    return ModuleCase(
        module_from_text(statements, result, len(inputs), parts, call.names),
        [(str(call.tensors[k].dtype).removeprefix("torch."), axes[number]) for number, k in enumerate(inputs)],
        dims,
        precision=rng.choices(["float32", "float16", "bfloat16"], [8, 1, 1])[0],
        torch_executed_ops=tuple(torch_executed),
    )


def _operator_before(dtype: torch.dtype, rng: random.Random) -> tuple[str, str]:
    """The text and the name of a simple operator that keeps shape and dtype."""
    suitable = [(text, name) for text, name, kind in _SIMPLE_OPERATORS[:_TYPE_KEEPING_COUNT] if _takes(kind, dtype)]
    return rng.choice(suitable)


def _takes(kind: str, dtype: torch.dtype) -> bool:
    """Whether an operator for `kind` (any, number, bool) takes a dtype."""
    return kind == "any" or (kind == "bool") == (dtype is torch.bool)


def _result_after_operator(
    statements: list[str],
    call: OperatorCall,
    inputs: Sequence[torch.Tensor],
    rng: random.Random,
    parts: Mapping[str, Any],
) -> tuple[str, str]:
    """The expression of a simple operator on the first result in ``y``, and the operator's name.

    If the operator cannot use ``y``, the expression is ``y`` and the name is empty.
    """
    module = module_from_text(statements, "y", len(inputs), parts, call.names)
    try:
        with torch.no_grad():
            value = module(*[value.clone() for value in inputs])
    except Exception:  # `check_usable` raises UnusableCase for this failure
        return "y", ""
    leaves = pytree.tree_leaves(value)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return "y", ""
    dtype = leaves[0].dtype
    text, operator = rng.choice([(text, operator) for text, operator, kind in _SIMPLE_OPERATORS if _takes(kind, dtype)])
    name = "y" if isinstance(value, torch.Tensor) else "y[0]"
    result = text.format(name, name)
    return rng.choice([result, f"({result}, y)"]), operator


def _axes(
    tensors: Sequence[torch.Tensor], rng: random.Random, attempt: int
) -> tuple[list[list[Axis]], tuple[NamedDim, ...]]:
    """The axes of the inputs, and the named dims.

    The dynamic axes are one random axis, all axes that have the same size as a random axis, all axes, or none. Axes of
    size 0 are never dynamic.
    """
    axes: list[list[Axis]] = [list(tensor.shape) for tensor in tensors]
    places = [(k, axis) for k, shape in enumerate(axes) for axis, size in enumerate(shape) if size]
    if not places or attempt >= _ALL_STATIC:
        return axes, ()
    kind = rng.choice(["one", "one", "size", "size", "each", "all"]) if attempt < _ONE_DYNAMIC_AXIS else "one"
    k, axis = rng.choice(places)
    size = tensors[k].shape[axis]
    chosen = [(k, axis)]
    if kind == "size":
        chosen = [place for place in places if tensors[place[0]].shape[place[1]] == size]
    elif kind in ("each", "all"):
        chosen = places
    return axes, tuple(_dims(axes, chosen, kind, rng))


def _dims(
    axes: list[list[Axis]], chosen: Sequence[tuple[int, int]], kind: str, rng: random.Random
) -> Iterator[NamedDim]:
    """Replace the chosen `axes` by ranges, and yield the named dims of these ranges.

    Axes with the same size share a range. If `kind` is ``each``, they share a range only if its sizes are multiples
    of a `unit` above 1.
    """
    by_size: dict[Any, list[tuple[int, int]]] = {}
    for k, axis in chosen:
        by_size.setdefault(axes[k][axis], []).append((k, axis))
    for number, (size, places) in enumerate(by_size.items()):
        unit = rng.choice([2, size]) if size % 2 == 0 and rng.random() < 0.2 else 1
        span = random_range(rng, size, unit)
        for k, axis in places:
            axes[k][axis] = random_range(rng, size) if kind == "each" and unit == 1 else span
        if unit > 1 or (len(places) > 1 and kind != "each"):
            yield NamedDim(f"d{number}", tuple((f"x{k}", axis) for k, axis in places), unit)
