"""The backend of ``torch.compile(model, backend="trtbuild", options={…})``.

Rules
1. `options` may have the arguments of `options_of`, and also `pass_through_build_failures` and `max_specializations`.
2. Engines for a graph are built at the first call of the graph. At that time the weights exist, torch is not tracing, and
   errors reach the program unchanged.
3. Engines are built for the ranges of ``torch._dynamo.mark_dynamic(x, 0, min=…, max=…)``. The opt size is the size of the
   first call. If a size or an integer argument has no range, engines are built for each of its values, for at most
   `max_specializations` values. PyTorch runs the graph for other values. A warning explains how to set a range.
4. A graph that cannot become an engine runs in PyTorch, with a warning. With `pass_through_build_failures` or
   `require_full_compilation`, it is an error. Wrong options, and a machine that cannot build, are always errors.
5. The engines contain the weights. If a parameter is replaced or written to, the next call builds the graph again. (An
   in-place write such as ``parameter.data.add_(1)`` outside of an optimizer is not detected, because torch does not count
   it.) After more than `MAX_CHANGES` changes PyTorch runs the graph, with a warning: the model is probably being trained,
   and engines for each training step are useless. After `SETTLED_CALLS` calls or more without a change, the next change
   counts as the first.
6. Engines have no gradients. PyTorch runs the graph if an input requires a gradient and gradients are enabled. It also
   runs the graph under autocast.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trtbuild.core.model import spec
from trtbuild.core.model.spec import NamedDim, Origin, Profile, ShapeRange
from trtbuild.driver.in_program.arguments.described import ModuleInputs
from trtbuild.driver.in_program.arguments.inputs import dtype_name
from trtbuild.driver.in_program.compiling import build_module
from trtbuild.driver.in_program.kept_weights import KeptWeights
from trtbuild.driver.in_program.messages import reword_errors
from trtbuild.driver.in_program.options import Options, options_of
from trtbuild.driver.in_program.tracing import calling_line
from trtbuild.errors import ConversionRefused, SourceError, ToolchainError, TrtbuildError, UsageError
from trtbuild.runtime.calls.callers import warn

#: Limits of rule 5.
MAX_CHANGES, SETTLED_CALLS = 2, 100
#: The default of `max_specializations` (rule 3).
MAX_SPECIALIZATIONS = 8


def backend(graph: Any, example_inputs: Sequence[Any], **arguments: Any) -> Callable[..., Any]:
    """Return a function that runs `graph`. TorchDynamo calls `backend` for each graph.

    Raises UsageError for wrong options, and ConversionRefused if the graph must become an engine and cannot (rule 4).
    """
    from trtbuild.stages.dynamo.graph import NotSupported, read_graph

    options = dict(arguments.get("options") or {})
    strict = bool(options.pop("pass_through_build_failures", False))
    max_specializations = options.pop("max_specializations", MAX_SPECIALIZATIONS)
    if type(max_specializations) is not int:
        raise UsageError(
            f"max_specializations is {max_specializations!r}",
            hint="write how many values get separate engines, such as 8",
        )
    options.setdefault("device", _device_of(graph, example_inputs))
    with reword_errors():
        resolved = options_of(**options)
    strict = strict or resolved.partition.require_full_compilation
    try:
        captured = read_graph(graph)
    except NotSupported as reason:
        if strict:
            raise ConversionRefused(f"a graph of torch.compile has no engine: {reason}") from None
        _warn(f"a graph of torch.compile runs in PyTorch: {reason}")
        return graph.forward  # type: ignore[no-any-return]
    return _Graph(captured, resolved, strict, max_specializations, calling_line())


class _Graph:
    """One graph, and the modules that were built for it. `strict`: a graph without engines is an error (rule 4)."""

    def __init__(self, captured: Any, options: Options, strict: bool, max_specializations: int, origin: Origin) -> None:
        self._captured = captured
        self._options = options
        self._strict = strict
        self._max_specializations = max_specializations
        self._origin = origin
        self._eager_forward: Callable[..., Any] = captured.module.forward
        #: Values of the open symbols (sizes and integers without a range) → the module, or None if PyTorch runs the graph.
        self._modules: dict[tuple[int, ...], Any] = {}
        self._weights: KeptWeights | None = None
        self._calls = self._changes = 0
        self._runs_in_pytorch = False
        self._positions = tuple(entry.position for entry in captured.tensors)
        self._open_symbols = tuple(captured.open_symbols)
        #: Held while a module is looked up or built, so that only one thread builds it.
        self._lock = threading.RLock()

    def __call__(self, *arguments: Any) -> Any:
        if self._runs_in_pytorch or self._needs_gradient(arguments):
            return self._eager_forward(*arguments)
        sizes = self._captured.sizes(arguments)
        with self._lock:
            module = self._find_module(arguments, sizes)
        if module is None:
            return self._eager_forward(*arguments)
        tensors = module(*[arguments[position] for position in self._positions])
        return self._captured.assemble_outputs(tensors, arguments, sizes)

    def _find_module(self, arguments: Sequence[Any], sizes: Mapping[Any, int]) -> Any:
        """Return the module for this call, which is built if necessary; None if PyTorch runs the graph."""
        if self._runs_in_pytorch:  # set by another thread since `__call__` read it
            return None
        self._calls += 1
        if self._weights is None or self._weights.have_changed(arguments):
            if self._note_new_weights():
                return None
            self._modules.clear()
            self._weights = KeptWeights(
                [(weight.position, arguments[weight.position]) for weight in self._captured.weights]
            )
        key = tuple(sizes.get(symbol, 0) for symbol in self._open_symbols)
        if key not in self._modules:
            self._modules[key] = self._new_module(arguments, sizes)
        return self._modules[key]

    def _note_new_weights(self) -> bool:
        """Count a change, except at the first call. Return whether PyTorch runs the graph from now on (rule 5)."""
        if self._weights is not None:
            self._changes = 1 if self._calls > SETTLED_CALLS else self._changes + 1
        self._calls = 0
        if self._changes <= MAX_CHANGES:
            return False
        self._runs_in_pytorch, self._weights = True, None
        self._modules.clear()
        _warn(
            f"a graph of torch.compile runs in PyTorch from now on: its weights have changed {self._changes} times, each "
            f"time within {SETTLED_CALLS} calls, and each change needs new engines; compile the model after training"
        )
        return True

    def _needs_gradient(self, arguments: Sequence[Any]) -> bool:
        import torch

        return torch.is_grad_enabled() and any(arguments[position].requires_grad for position in self._positions)

    def _new_module(self, arguments: Sequence[Any], sizes: Mapping[Any, int]) -> Any:
        """Build a module for the values of the open symbols in `sizes`. Return it, or None if PyTorch runs the graph."""
        if self._open_symbols:
            if len(self._modules) >= self._max_specializations:
                _warn(
                    f"a graph of torch.compile has had {self._max_specializations} sizes without a range: "
                    "PyTorch runs the others"
                )
                return None
            if not self._modules:
                _warn(
                    "torch.compile passed sizes without a range, or integers, and engines are built for each value; "
                    "torch._dynamo.mark_dynamic(x, axis, min=…, max=…) sets a range"
                )
        if _is_autocast_on(self._options):
            _warn("a graph of torch.compile runs in PyTorch: it is called under autocast; use precision= instead")
            return None
        fixed_values = {symbol: sizes.get(symbol, 0) for symbol in self._open_symbols}
        try:
            with reword_errors():
                return self._build(arguments, fixed_values)
        except UsageError:
            raise
        except (SourceError, ConversionRefused, ToolchainError) as error:
            if self._strict:
                raise
            _warn(f"a graph of torch.compile runs in PyTorch: {error}")
            return None

    def _build(self, arguments: Sequence[Any], fixed_values: Mapping[Any, int]) -> Any:
        from trtbuild.stages.dynamo.graph import NotSupported
        from trtbuild.stages.dynamo.rewriting import convert_to_module

        try:
            module = convert_to_module(self._captured, arguments, fixed_values)
        except NotSupported as reason:
            raise ConversionRefused(f"a graph of torch.compile has no engine: {reason}") from None
        first_error: TrtbuildError | None = None
        # The first try is for the marked ranges. If such a range begins at 1 and the trace fails, the second try is for
        # the range of TorchDynamo, which begins at 2 (rule 3 of stages.dynamo.graph).
        for with_marks in (True, False):
            module_inputs = self._describe(arguments, fixed_values, with_marks)
            if first_error is not None and module_inputs == self._describe(arguments, fixed_values, True):
                break  # the second try would be for the same ranges
            try:
                return build_module(module, module_inputs, self._options, "graph", self._origin)
            except SourceError as error:
                first_error = first_error or error
        if first_error is None:
            raise AssertionError("a graph is built or refused")
        raise first_error

    def _describe(self, arguments: Sequence[Any], fixed_values: Mapping[Any, int], with_marks: bool) -> ModuleInputs:
        """Return the inputs with their ranges. Static axes have the sizes of `arguments`.

        `with_marks`: ranges begin at the `min` of ``mark_dynamic``, if there is one, instead of at TorchDynamo's minimum.
        """
        captured = self._captured
        dims = {dim.symbol: dim for dim in captured.dims if dim.symbol not in fixed_values}
        inputs, shapes = [], []
        for tensor_number, entry in enumerate(captured.tensors):
            first_sizes = tuple(int(size) for size in arguments[entry.position].shape)
            min_sizes, max_sizes = list(first_sizes), list(first_sizes)
            for dim in dims.values():
                lower_bound = dim.marked_low if with_marks and dim.marked_low is not None else dim.low
                for number, axis, factor in dim.axes:
                    if number == tensor_number:
                        min_sizes[axis], max_sizes[axis] = max(1, lower_bound) * factor, int(dim.high or 0) * factor
            inputs.append(spec.Input(entry.name, dtype_name(entry.dtype)))
            shapes.append((entry.name, ShapeRange(tuple(min_sizes), first_sizes, tuple(max_sizes))))
        named_dims = []
        for dim_number, dim in enumerate(dims.values()):
            axes_by_factor: dict[int, list[tuple[str, int]]] = {}
            for tensor_number, axis, factor in dim.axes:
                axes_by_factor.setdefault(factor, []).append((captured.tensors[tensor_number].name, axis))
            named_dims += [
                NamedDim(f"s{dim_number}_{factor}", tuple(axes), factor) for factor, axes in axes_by_factor.items()
            ]
        return ModuleInputs(tuple(inputs), (Profile("0", tuple(shapes)),), tuple(named_dims))


def _device_of(graph: Any, example_inputs: Sequence[Any]) -> str | None:
    for value in example_inputs:
        device = getattr(value, "device", None)
        if device is not None:
            return str(device)
    return None


def _is_autocast_on(options: Options) -> bool:
    import torch

    kind = str(options.device if options.device is not None else "cuda").partition(":")[0]
    return bool(torch.is_autocast_enabled(kind))


def _warn(text: str) -> None:
    warn(f"trtbuild: {text}")
