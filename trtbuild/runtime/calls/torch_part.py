"""Partitions that PyTorch computes: Torch partitions between engines, and on the CPU the reference program.

Rules
1. A program's graph is run as it is (`graph_module`), never through ``ExportedProgram.module()``: that one checks, copies
   and flattens what has been checked here already.
2. A program holds no weights: its first inputs are weights, and they are bound here once. Equal structures share one graph.
3. Nothing is recorded for a backward pass, and a caller's autocast does not count: dtypes are the package's.
4. What an engine takes is contiguous, and negated in memory (`tensor_kinds`): an output that is not is copied, where an
   engine takes it.
5. What the model returns is never a weight or constant that is bound here: a caller may write into it.
"""

from __future__ import annotations

import contextlib
import io
import operator
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trtbuild.core.packages.package_index import PackedWeight
from trtbuild.errors import PackageDamaged, ToolchainMissing

if TYPE_CHECKING:
    import torch

    from trtbuild.runtime.calls.call import Call


def require_torch(why: str) -> Any:
    """The torch module. Raises ToolchainMissing that says `why` it is needed."""
    try:
        import torch
    except (ImportError, OSError) as error:
        raise ToolchainMissing(f"{why}, and torch cannot be imported: {error}", hint="pip install torch") from error
    return torch


def made_on_the_cpu() -> contextlib.AbstractContextManager[Any]:
    """A block in which torch makes new tensors on the CPU, also where ``torch.set_default_device`` said another: models are
    traced there, and ``torch.export.load`` fails elsewhere."""
    import torch

    cpu = torch.device("cpu")
    return contextlib.nullcontext() if torch.get_default_device() == cpu else cpu


class Graph:
    """A partition's graph on one device. Its call takes `pattern`: weights and inputs (None), and lifted constants."""

    def __init__(self, program: memoryview, device: torch.device, what: str) -> None:
        torch = require_torch(f"{what} is a part that PyTorch computes")
        extra = {"trtbuild.weights": ""}
        try:
            with warnings.catch_warnings(), made_on_the_cpu():
                warnings.simplefilter("ignore")  # of what the format will be in later versions
                exported = torch.export.load(io.BytesIO(program), extra_files=extra)
            if device.type != "cpu":
                from torch.export.passes import move_to_device_pass

                exported = move_to_device_pass(exported, device)
                for module in exported.graph_module.modules():  # the pass changes graphs, and not the code made of them
                    if isinstance(module, torch.fx.GraphModule):
                        module.recompile()
            weights = int(extra["trtbuild.weights"])
        except Exception as error:  # torch raises anything for a program of a version that it does not know
            raise PackageDamaged(
                f"torch {torch.__version__} cannot read the program of {what}: {type(error).__name__}: {error}",
                hint="use the version of torch that the package was built with, or build the package with this one",
            ) from error
        signature = exported.graph_signature
        constants = {
            spec.arg.name: exported.constants[spec.target]
            for spec in signature.input_specs
            if spec.kind.name == "CONSTANT_TENSOR"
        }
        names = [node.name for node in exported.graph.nodes if node.op == "placeholder"]
        self.weights = weights
        self.device_type = device.type
        self.module = exported.graph_module
        self.pattern = [constants.get(name) for name in names]
        #: Per output: the place of the argument that it may be a view of, None where it is memory of its own.
        self.viewed = [_viewed(node, names) for node in exported.graph.output_node().args[0]]


def _viewed(node: Any, names: Sequence[str]) -> int | None:
    """The place among the arguments `names` of what a node's value is a view of, by the operators' schemas."""
    while getattr(node, "op", None) == "call_function":
        schema = getattr(node.target, "_schema", None)
        is_view = node.target is operator.getitem or any(value.alias_info for value in getattr(schema, "returns", ()))
        node = node.args[0] if is_view and node.args else None
    return names.index(node.name) if getattr(node, "op", None) == "placeholder" else None


class TorchPart:
    """A partition that PyTorch computes; `weights` are its own, in order. Engines take the outputs `contiguous`, and the
    model returns the outputs `returned`."""

    def __init__(
        self,
        graph: Graph,
        weights: Sequence[torch.Tensor],
        contiguous: Sequence[int] = (),
        returned: Sequence[int] = (),
    ) -> None:
        import torch

        kind = graph.device_type
        self._no_grad = torch.no_grad
        self._under_autocast = partial(torch.is_autocast_enabled, kind) if kind in ("cpu", "cuda") else bool
        self._no_autocast = partial(torch.autocast, kind, enabled=False)
        # fx's own __call__ rewrites tracebacks, which costs more than small graphs: its forward is what it calls
        self._run = graph.module.forward
        self._contiguous = tuple(contiguous)
        rest = iter(weights)
        fixed: list[Any] = []
        self._open: list[int] = []
        count = 0
        for place, constant in enumerate(graph.pattern):
            if constant is not None:
                fixed.append(constant)
            elif count < graph.weights:
                fixed.append(next(rest))
                count += 1
            else:
                fixed.append(None)
                self._open.append(place)
        self._fixed = fixed
        views = [(number, graph.viewed[number]) for number in returned]
        self._copied = tuple(number for number, place in views if place is not None and fixed[place] is not None)

    def __call__(self, values: Sequence[Any], call: Call) -> Sequence[Any]:
        """The outputs, on the current stream of PyTorch, which is the call's."""
        arguments = list(self._fixed)
        for place, value in zip(self._open, values, strict=True):
            arguments[place] = value
        del values
        with self._no_grad():
            if self._under_autocast():
                with self._no_autocast():
                    results = list(self._run(*arguments))
            else:
                results = list(self._run(*arguments))
        for number in self._contiguous:
            results[number] = results[number].resolve_neg().contiguous()
        for number in self._copied:
            results[number] = results[number].clone()
        return results


def weight_tensors(
    weights: Mapping[int, PackedWeight], files: Mapping[str, memoryview], device: torch.device
) -> dict[int, torch.Tensor]:
    """Each weight as a tensor: on the CPU it is the file's bytes as they were read, elsewhere a copy of them."""
    import torch

    found, by_path = {}, {}
    for slot, weight in weights.items():
        dtype = getattr(torch, weight.dtype)
        kind = (weight.path, weight.dtype, weight.shape)
        if kind not in by_path:  # equal weights are one file, and one tensor
            data = files[weight.path]
            value = torch.frombuffer(data, dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)
            by_path[kind] = value.reshape(weight.shape).to(device)
        found[slot] = by_path[kind]
    return found
