"""Fork copies of this process, which store a model's weights while this process exports the model and checks the program.

Rules
1. If the contiguous CPU weights have more than `LARGE_WEIGHTS_BYTES` and at most `_MOST_EARLY_BYTES`, and there is room for
   them, a copy begins to store them before the export. The program might not use some of them. `trtbuild cache gc` removes
   these, because no record names them. All other weights are stored after the export.
2. User code may change a weight during the export. So the early copy also computes the XXH3 digest of each weight. Its
   results are used only if the weights have the same digests after the export.
3. Nothing is stored before the export for a model with a ``weights:`` file, or with modules that quantize (`Quantizer`, or
   those of ``prepare_qat``). Its program has other weights than the module: those of the file, or weights in the element
   type of their quantizer, such as int8.
4. If a copy fails, or if a digest differs (rule 2), the caller stores all weights itself. This is not an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
import xxhash

from trtbuild.errors import InsufficientResources
from trtbuild.stages.trace.discovery import hooks
from trtbuild.stages.trace.export.weights import ModuleWeights
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.proof.background import ForkedCall
from trtbuild.stages.trace.proof.proving import LARGE_WEIGHTS_BYTES
from trtbuild.stages.trace.quantization.ao_quantizers import has_fake_quantizers
from trtbuild.stages.trace.quantization.quantizer import Quantizer

#: A function that stores tensors and returns a JSON value for each. It runs in a forked copy of this process.
StoreWeights = Callable[[Sequence[torch.Tensor]], "list[Any]"]

#: A function that raises InsufficientResources if there is no room for tensors.
RefuseWeights = Callable[[Sequence[torch.Tensor]], None]

#: If the weights of a module have more bytes than this in total, they are not stored before the export (rule 1).
_MOST_EARLY_BYTES = 4 << 30

#: If a copy has not stored its weights after this many seconds, the caller stores all weights.
_PATIENCE_S = 3600.0


def _has_quantizers(module: torch.nn.Module) -> bool:
    """Whether a module has quantizers (rule 3). Model Optimizer's quantizers contain a `Quantizer` since
    the model was read."""
    return has_fake_quantizers(module) or any(isinstance(each, Quantizer) for each in module.modules())


class WeightStorage:
    """Stores weights: ``with WeightStorage(…) as storage: storage.begin_early(…); storage.begin(…); storage.results()``.

    The end of the block kills copies that still run."""

    def __init__(self, store: StoreWeights | None, refuse: RefuseWeights) -> None:
        self._store = store
        self._refuse = refuse
        self._copies = contextlib.ExitStack()
        self._early: ForkedCall | None = None
        #: `_memory` of a weight → its number among the weights that the early copy stores.
        self._early_numbers: dict[Any, int] = {}
        self._weights: list[torch.Tensor] = []
        self._late: ForkedCall | None = None
        #: Numbers in `_weights` of the weights that the late copy stores.
        self._late_numbers: list[int] = []

    def begin_early(self, module: torch.nn.Module, weights: ModuleWeights, job: TraceJob) -> None:
        """Begin to store the weights of `module` if this is worthwhile (rules 1 and 3)."""
        if self._store is None or job.weights is not None or _has_quantizers(module):
            return
        tensors = [weight.value for weight in weights.all()]
        tensors = [tensor for tensor in tensors if _has_stored_form(tensor)]
        if not LARGE_WEIGHTS_BYTES < sum(tensor.nbytes for tensor in tensors) <= _MOST_EARLY_BYTES:
            return
        try:
            self._refuse(tensors)
        except InsufficientResources:  # not an error yet: the program might not need all of these weights
            return
        self._early_numbers = {_memory(tensor): number for number, tensor in enumerate(tensors)}
        self._early = self._in_copy(lambda store: [store(tensors), [_digest(tensor) for tensor in tensors]])

    def begin(self, weights: Sequence[torch.Tensor]) -> None:
        """Begin to store the weights of the program, except those that the early copy stores. All `weights` are contiguous
        CPU tensors. Raises InsufficientResources if there is no room for them."""
        self._refuse(weights)
        self._weights = list(weights)
        self._late_numbers = [
            number for number, weight in enumerate(weights) if _memory(weight) not in self._early_numbers
        ]
        late = [weights[number] for number in self._late_numbers]
        if late:
            self._late = self._in_copy(lambda store: store(late))

    def results(self) -> list[Any] | None:
        """Wait for the copies. Returns the JSON values of `StoreWeights` for the weights of `begin`, in their order; None
        if the caller has to store the weights."""
        late = self._late.answer() if self._late is not None else []
        if late is None or len(late) != len(self._late_numbers):
            return None
        results = dict(zip(self._late_numbers, late, strict=True))
        if len(results) == len(self._weights):
            return [results[number] for number in range(len(self._weights))]
        answer = self._early.answer() if self._early is not None else None
        if answer is None:
            return None
        stored, digests = answer
        for number, weight in enumerate(self._weights):
            if number not in results:
                early = self._early_numbers[_memory(weight)]
                if digests[early] != _digest(weight):
                    return None
                results[number] = stored[early]
        return [results[number] for number in range(len(self._weights))]

    def _in_copy(self, call: Callable[[StoreWeights], Any]) -> ForkedCall | None:
        store = self._store
        if store is None:
            return None

        def run() -> Any:
            hooks.set_recorder(None)  # the store's files are not dependencies
            return call(store)

        return self._copies.enter_context(ForkedCall(run, _PATIENCE_S))

    def __enter__(self) -> WeightStorage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._copies.__exit__(kind, error, tb)


def _has_stored_form(tensor: torch.Tensor) -> bool:
    """Whether the stored form of a tensor is the tensor itself, and not a copy."""
    is_dense = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return is_dense and tensor.is_contiguous() and not tensor.is_neg()


def _memory(tensor: torch.Tensor) -> Any:
    """A key that identifies a contiguous tensor: the address of its memory, its dtype and its shape."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape)


def _digest(tensor: torch.Tensor) -> str:
    if not tensor.numel():
        return xxhash.xxh3_128_hexdigest(b"")
    return xxhash.xxh3_128_hexdigest(memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy()))
