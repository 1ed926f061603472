"""Partitions that PyTorch computes: Torch partitions between engines, and on the CPU the reference program.

Rules
1. A program's graph is run as it is (`graph_module`), never through ``ExportedProgram.module()``: that one checks, copies
   and flattens what has been checked here already.
2. A program holds no weights: its first inputs are weights, and they are bound here once. Equal structures share one graph.
3. Nothing is recorded for a backward pass.
4. What an engine takes is contiguous: an output that is not is copied, where an engine takes it.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trtbuild.core.package_index import PackedWeight
from trtbuild.errors import PackageDamaged, ToolchainMissing

if TYPE_CHECKING:
    import torch

    from trtbuild.runtime.stitching import Call


def require_torch(why: str) -> Any:
    """The torch module. Raises ToolchainMissing that says `why` it is needed."""
    try:
        import torch
    except (ImportError, OSError) as error:
        raise ToolchainMissing(f"{why}, and torch cannot be imported: {error}", hint="pip install torch") from error
    return torch


class Graph:
    """A partition's graph on one device. Its call takes `pattern`: weights and inputs (None), and lifted constants."""

    def __init__(self, program: memoryview, device: torch.device, what: str) -> None:
        torch = require_torch(f"{what} is a part that PyTorch computes")
        extra = {"trtbuild.weights": ""}
        try:
            with warnings.catch_warnings():
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
        self.module = exported.graph_module
        self.pattern = [constants.get(name) for name in names]


class TorchPart:
    """A partition that PyTorch computes; `weights` are its own, in order. Engines take the outputs `contiguous`."""

    def __init__(self, graph: Graph, weights: Sequence[torch.Tensor], contiguous: Sequence[int] = ()) -> None:
        import torch

        self._no_grad = torch.no_grad
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

    def __call__(self, values: Sequence[Any], call: Call) -> Sequence[Any]:
        """The outputs, on the current stream of PyTorch, which is the call's."""
        arguments = list(self._fixed)
        for place, value in zip(self._open, values, strict=True):
            arguments[place] = value
        del values
        with self._no_grad():
            results = list(self._run(*arguments))
        for number in self._contiguous:
            results[number] = results[number].contiguous()
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
