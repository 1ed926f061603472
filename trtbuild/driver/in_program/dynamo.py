"""The backend of ``torch.compile(model, backend="trtbuild", options={…})``.

Rules
1. `options` are those of `options.options_of`, and `pass_through_build_failures` and `max_specializations`.
2. A graph is built when it is called for the first time: then its weights are there, no tracing of torch's is under way,
   and errors reach the program as they are. Whatever the cache has is found there, of another process, of CI.
3. Engines are built for the ranges of ``torch._dynamo.mark_dynamic(x, 0, min=…, max=…)``, opt being the first call's size.
   A size without a bound gets engines for each value that it has, and so does an integer argument: at most
   `max_specializations`, and one warning that says how to name a range.
4. What no engine can be built for runs in PyTorch, with a warning (an error with `pass_through_build_failures`). Wrong
   options, and a machine that cannot build, are errors always.
5. Weights are in the engines. A parameter that is replaced or written to afterwards is noticed at the next call, and the
   graph is built again with what it is now. (Writes into ``parameter.data`` are not: torch does not count them.) Weights
   that change again and again are being trained, and an engine for each step is no use: after `CHANGES` PyTorch runs the
   graph from then on, with a warning. A change behind `SETTLED` calls is no such one.
6. There are no gradients: where one is asked for (an input that requires it), or under autocast, PyTorch runs the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trtbuild.core.model import spec
from trtbuild.core.model.spec import NamedDim, Origin, Profile, ShapeRange
from trtbuild.driver.in_program.compiling import build_module, caller
from trtbuild.driver.in_program.described import Described
from trtbuild.driver.in_program.inputs import dtype_name
from trtbuild.driver.in_program.kept_weights import KeptWeights
from trtbuild.driver.in_program.messages import in_arguments
from trtbuild.driver.in_program.options import Options, options_of
from trtbuild.errors import ConversionRefused, SourceError, ToolchainError, TrtbuildError, UsageError
from trtbuild.runtime.calls.callers import warn

#: How often weights may change, where each time fewer than so many calls came before.
CHANGES, SETTLED = 2, 100
#: How many values of sizes without bounds, and of integers, one graph is built for.
SPECIALIZATIONS = 8


def backend(graph: Any, example_inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """What TorchDynamo calls with each graph. Raises UsageError for options that are wrong."""
    from trtbuild.stages.dynamo.graph import NotSupported, capture

    options = dict(given.get("options") or {})
    strict = bool(options.pop("pass_through_build_failures", False))
    most = options.pop("max_specializations", SPECIALIZATIONS)
    if type(most) is not int:
        raise UsageError(f"max_specializations is {most!r}", hint="write a number of sets of engines, such as 8")
    options.setdefault("device", _device(graph, example_inputs))
    with in_arguments():
        resolved = options_of(**options)
    strict = strict or resolved.partition.require_full_compilation
    try:
        captured = capture(graph)
    except NotSupported as reason:
        if strict:
            raise ConversionRefused(f"a graph of torch.compile has no engine: {reason}") from None
        _warn(f"a graph of torch.compile runs in PyTorch: {reason}")
        return graph.forward  # type: ignore[no-any-return]
    return _Graph(captured, resolved, strict, most, caller())


class _Graph:
    """One graph, and what was built for it."""

    def __init__(self, captured: Any, options: Options, strict: bool, most: int, origin: Origin) -> None:
        self._captured = captured
        self._options = options
        self._strict = strict
        self._most = most
        self._origin = origin
        self._eager: Callable[..., Any] = captured.module.forward
        #: Values of the open symbols → what runs then; None is PyTorch.
        self._built: dict[tuple[int, ...], Any] = {}
        self._weights: KeptWeights | None = None
        self._calls = self._changes = 0
        self._trains = False
        self._positions = tuple(entry.position for entry in captured.tensors)
        self._open = tuple(captured.open)

    def __call__(self, *arguments: Any) -> Any:
        """What the graph returns."""
        if self._trains or self._wants_gradient(arguments):
            return self._eager(*arguments)
        self._calls += 1
        if self._weights is None or self._weights.have_changed(arguments):
            if self._gives_up():
                return self._eager(*arguments)
            self._built.clear()
            self._weights = KeptWeights([(w.position, arguments[w.position]) for w in self._captured.weights])
        sizes = self._captured.sizes(arguments)
        key = tuple(sizes.get(symbol, 0) for symbol in self._open)
        if key not in self._built:
            self._built[key] = self._make(arguments, sizes, key)
        module = self._built[key]
        if module is None:
            return self._eager(*arguments)
        return self._captured.put_back(module(*[arguments[position] for position in self._positions]), sizes)

    def _gives_up(self) -> bool:
        """Whether the weights, which are new or have changed, are to be left to PyTorch."""
        if self._weights is not None:
            self._changes = 1 if self._calls > SETTLED else self._changes + 1
        self._calls = 0
        if self._changes <= CHANGES:
            return False
        self._trains, self._weights = True, None
        self._built.clear()
        _warn(
            f"a graph of torch.compile runs in PyTorch from now on: its weights have changed {self._changes} times, each "
            f"time before {SETTLED} calls, and each change needs engines of its own; compile the model when it is trained"
        )
        return True

    def _wants_gradient(self, arguments: Sequence[Any]) -> bool:
        import torch

        return torch.is_grad_enabled() and any(arguments[position].requires_grad for position in self._positions)

    def _make(self, arguments: Sequence[Any], sizes: Mapping[Any, int], key: tuple[int, ...]) -> Any:
        """A module for the values `key` of the open symbols, or None where PyTorch runs it."""
        if self._open:
            if len(self._built) >= self._most:
                _warn(f"a graph of torch.compile has had {self._most} sizes without a range: PyTorch runs the others")
                return None
            if not self._built:
                _warn(
                    "torch.compile handed over sizes without a range, or integers, and engines are built for each value; "
                    "torch._dynamo.mark_dynamic(x, axis, min=…, max=…) names a range"
                )
        if _is_autocast(self._options):
            _warn("a graph of torch.compile runs in PyTorch: it is called under autocast; say precision= instead")
            return None
        fixed = {symbol: sizes.get(symbol, 0) for symbol in self._open}
        try:
            with in_arguments():
                return self._build(arguments, fixed)
        except UsageError:
            raise
        except (SourceError, ConversionRefused, ToolchainError) as error:
            if self._strict:
                raise
            _warn(f"a graph of torch.compile runs in PyTorch: {error}")
            return None

    def _build(self, arguments: Sequence[Any], fixed: Mapping[Any, int]) -> Any:
        from trtbuild.stages.dynamo.graph import NotSupported
        from trtbuild.stages.dynamo.rewriting import as_module

        try:
            module = as_module(self._captured, arguments, fixed)
        except NotSupported as reason:
            raise ConversionRefused(f"a graph of torch.compile has no engine: {reason}") from None
        first: TrtbuildError | None = None
        for marked in (True, False):  # rule 3 of stages.dynamo.graph
            described = self._described(arguments, fixed, marked)
            if first is not None and described == self._described(arguments, fixed, True):
                break
            try:
                return build_module(module, described, self._options, "graph", self._origin)
            except SourceError as error:
                first = first or error
        if first is None:
            raise AssertionError("a graph is built or refused")
        raise first

    def _described(self, arguments: Sequence[Any], fixed: Mapping[Any, int], marked: bool) -> Described:
        """The inputs with their ranges: the sizes of the first call where nothing is dynamic."""
        captured = self._captured
        dims = {dim.symbol: dim for dim in captured.dims if dim.symbol not in fixed}
        inputs, shapes = [], []
        for number, entry in enumerate(captured.tensors):
            given = tuple(int(size) for size in arguments[entry.position].shape)
            low, high = list(given), list(given)
            for dim in dims.values():
                least = dim.marked_low if marked and dim.marked_low is not None else dim.low
                for owner, axis, unit in dim.at:
                    if owner == number:
                        low[axis], high[axis] = max(1, least) * unit, int(dim.high or 0) * unit
            inputs.append(spec.Input(entry.name, dtype_name(entry.dtype)))
            shapes.append((entry.name, ShapeRange(tuple(low), given, tuple(high))))
        named = []
        for number, dim in enumerate(dims.values()):
            units: dict[int, list[tuple[str, int]]] = {}
            for owner, axis, unit in dim.at:
                units.setdefault(unit, []).append((captured.tensors[owner].name, axis))
            named += [NamedDim(f"s{number}_{unit}", tuple(at), unit) for unit, at in units.items()]
        return Described(tuple(inputs), (Profile("0", tuple(shapes)),), tuple(named))


def _device(graph: Any, example_inputs: Sequence[Any]) -> str | None:
    """Where the graph's tensors are."""
    for value in example_inputs:
        device = getattr(value, "device", None)
        if device is not None:
            return str(device)
    return None


def _is_autocast(options: Options) -> bool:
    import torch

    kind = str(options.device if options.device is not None else "cuda").partition(":")[0]
    return bool(torch.is_autocast_enabled(kind))


def _warn(text: str) -> None:
    warn(f"trtbuild: {text}")
