"""Partitions that PyTorch computes: Torch partitions, which run between engines, and the reference program on a CPU.

Rules
1. A program's graph runs directly (`graph_module`). ``ExportedProgram.module()`` would check, copy and flatten the
   arguments again.
2. A program does not contain its weights: they are its first inputs, and are bound when a part is created. Partitions of
   equal structure share one graph.
3. No backward pass is recorded. The package determines the dtypes, so the caller's autocast has no effect on CPUs and
   CUDA devices. The same is true of the caller's default dtype, in which PyTorch would divide integers, for example.
4. An engine needs contiguous inputs whose memory contains their values. PyTorch negates some tensors only when it reads
   them (`trtbuild.runtime.memory.tensor_kinds`). So an output that engines read is copied if it is such a tensor, or is
   not contiguous.
5. A weight or constant that the model returns is copied, because the caller may write to it. The addresses are compared:
   some operators may return their input itself, and their schemas do not say so (``type_as``, ``einsum``).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trtbuild import declared_sizes, quantized_operators
from trtbuild.core.packages.package_index import PackedWeight
from trtbuild.default_dtype import default_float32
from trtbuild.errors import PackageDamaged, ToolchainMissing
from trtbuild.stored_sizes import solve_sizes

if TYPE_CHECKING:
    import torch

    from trtbuild.runtime.calls.call import Call

#: ``torch.export.load`` keeps its state in a global variable, so it fails if two threads call it at the same time.
_export_load_lock = threading.RLock()


def require_torch(why: str) -> Any:
    """Import torch. Raises ToolchainMissing with `why`, the reason why torch is needed."""
    try:
        import torch
    except (ImportError, OSError) as error:
        raise ToolchainMissing(f"{why}, but torch cannot be imported: {error}", hint="pip install torch") from error
    return torch


@contextlib.contextmanager
def export_load_allowed() -> Iterator[None]:
    """Allow ``torch.export.load`` in the block: no other such block runs at that time, new tensors are on the CPU, and
    sizes that torch alone cannot read are computed (`trtbuild.stored_sizes`)."""
    with _export_load_lock, new_tensors_on_cpu(), solve_sizes:
        yield


def new_tensors_on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Let torch create tensors on the CPU inside the block, even after ``torch.set_default_device``. Models are traced on
    the CPU, and ``torch.export.load`` fails if another device is the default."""
    import torch

    cpu = torch.device("cpu")
    return contextlib.nullcontext() if torch.get_default_device() == cpu else cpu


def define_quantizers() -> None:
    """Define the quantizers that Torch partitions may call. ``import torch`` does not define those of PyTorch."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    quantized_operators.define_operators()


class ProgramGraph:
    """A partition's graph on one device. `description` names the partition in error messages."""

    def __init__(self, program: memoryview, device: torch.device, description: str) -> None:
        torch = require_torch(f"{description} is a part that PyTorch computes")
        extra = {"trtbuild.weights": ""}
        try:
            data = bytes(program)
            if b"quantized_decomposed" in data or quantized_operators.OPERATOR_MARK in data:
                define_quantizers()
            declared_sizes.define_operator_if_called(data)
            with export_load_allowed(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns about later versions of the format
                exported = torch.export.load(io.BytesIO(program), extra_files=extra)
            if device.type != "cpu":
                from torch.export.passes import move_to_device_pass

                exported = move_to_device_pass(exported, device)
                # The pass changes graphs, but does not regenerate their code.
                for module in exported.graph_module.modules():
                    if isinstance(module, torch.fx.GraphModule):
                        module.recompile()
            weight_count = int(extra["trtbuild.weights"])
        except Exception as error:  # torch may raise any error for a program of an unknown version
            raise PackageDamaged(
                f"torch {torch.__version__} cannot read the program of {description}: {type(error).__name__}: {error}",
                hint="use the version of torch that the package was built with, or build the package with this one",
            ) from error
        signature = exported.graph_signature
        constants = {
            spec.arg.name: exported.constants[spec.target]
            for spec in signature.input_specs
            if spec.kind.name == "CONSTANT_TENSOR"
        }
        names = [node.name for node in exported.graph.nodes if node.op == "placeholder"]
        self.weight_count = weight_count
        #: The number of values that the graph returns.
        self.output_count = len(signature.output_specs)
        self.device_type = device.type
        self.module = exported.graph_module
        #: Whether a value may have torch's default dtype. Such a graph must run under the default of its trace, float32.
        self.uses_default_dtype = any(
            _may_have_default_dtype(node)
            for module in exported.graph_module.modules()
            if isinstance(module, torch.fx.GraphModule)
            for node in module.graph.nodes
        )
        #: For each argument of the graph: a constant, or None for a weight or an input.
        self.constants_by_position = [constants.get(name) for name in names]
        self._description = description

    def check_counts(self, weights: int, inputs: int, outputs: int) -> None:
        """Raise PackageDamaged if a partition has other numbers of weights, inputs or outputs than the program."""
        own_inputs = sum(constant is None for constant in self.constants_by_position) - self.weight_count
        if (weights, inputs, outputs) != (self.weight_count, own_inputs, self.output_count):
            raise PackageDamaged(
                f"{self._description} has {weights} weights, {inputs} inputs and {outputs} outputs in the index, but "
                f"{self.weight_count}, {own_inputs} and {self.output_count} in its program",
                hint="build the package again, or copy it again from an undamaged source",
            )


def _may_have_default_dtype(node: Any) -> bool:
    """Whether the dtype of a node's value may be torch's default: the value is a float (or complex), no argument is a float
    tensor, and the call does not name a dtype."""
    import torch

    if node.op != "call_function" or node.kwargs.get("dtype") is not None:
        return False

    def is_float(value: Any) -> bool:
        values = value if isinstance(value, list | tuple) else [value]
        return any(isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex()) for v in values)

    return is_float(node.meta.get("val")) and not any(is_float(entry.meta.get("val")) for entry in node.all_input_nodes)


class TorchPart:
    """A partition that PyTorch computes. `contiguous_outputs` has the numbers of the outputs that engines read.
    `returned_outputs` has the numbers of the outputs that the model returns. `protected` are the weights of the package:
    an input of this partition may be such a weight (rule 5)."""

    def __init__(
        self,
        graph: ProgramGraph,
        weights: Sequence[torch.Tensor],
        contiguous_outputs: Sequence[int] = (),
        returned_outputs: Sequence[int] = (),
        protected: Iterable[torch.Tensor] = (),
    ) -> None:
        import torch

        device_type = graph.device_type
        self._no_grad = torch.no_grad
        # On other devices, `bool` replaces the test: bool() is False, so autocast is left as it is.
        has_autocast = device_type in ("cpu", "cuda")
        self._under_autocast = partial(torch.is_autocast_enabled, device_type) if has_autocast else bool
        self._no_autocast = partial(torch.autocast, device_type, enabled=False)
        self._uses_default_dtype = graph.uses_default_dtype
        # forward is called directly, because fx's __call__ takes time and changes tracebacks.
        self._run = graph.module.forward
        self._contiguous_outputs = tuple(contiguous_outputs)
        remaining_weights = iter(weights)
        bound_arguments: list[Any] = []
        self._input_positions: list[int] = []
        count = 0
        for position, constant in enumerate(graph.constants_by_position):
            if constant is not None:
                bound_arguments.append(constant)
            elif count < graph.weight_count:
                bound_arguments.append(next(remaining_weights))
                count += 1
            else:
                bound_arguments.append(None)
                self._input_positions.append(position)
        #: The arguments of the graph: weights and constants, and None for each input.
        self._bound_arguments = bound_arguments
        self._returned_outputs = tuple(returned_outputs)
        #: The addresses of memory that a returned output must not share (rule 5).
        self._protected_addresses = {
            tensor.untyped_storage().data_ptr()
            for tensor in (*bound_arguments, *protected)
            if tensor is not None and self._returned_outputs
        }

    def __call__(self, values: Sequence[Any], call: Call) -> Sequence[Any]:
        """Compute the outputs on PyTorch's current stream, which is the call's stream."""
        arguments = list(self._bound_arguments)
        for position, value in zip(self._input_positions, values, strict=True):
            arguments[position] = value
        del values
        with self._no_grad():
            if self._uses_default_dtype or self._under_autocast():
                with contextlib.ExitStack() as contexts:
                    if self._under_autocast():
                        contexts.enter_context(self._no_autocast())
                    if self._uses_default_dtype:
                        contexts.enter_context(default_float32)
                    results = list(self._run(*arguments))
            else:
                results = list(self._run(*arguments))
        for number in self._contiguous_outputs:
            results[number] = results[number].resolve_neg().contiguous()
        for number in self._returned_outputs:
            if results[number].untyped_storage().data_ptr() in self._protected_addresses:
                results[number] = results[number].clone()
        return results


def weight_tensors(
    weights: Mapping[int, PackedWeight], files: Mapping[str, memoryview], device: torch.device
) -> dict[int, torch.Tensor]:
    """Return slot (a weight's number) → its tensor. On the CPU, the tensor uses the bytes of the file. On other devices, it
    is a copy."""
    import torch

    tensors, by_file = {}, {}
    for slot, weight in weights.items():
        dtype = getattr(torch, weight.dtype)
        key = (weight.path, weight.dtype, weight.shape)
        if key not in by_file:  # equal weights share a file, so they also share a tensor
            data = files[weight.path]
            value = torch.frombuffer(data, dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)
            by_file[key] = value.reshape(weight.shape).to(device)
        tensors[slot] = by_file[key]
    return tensors
