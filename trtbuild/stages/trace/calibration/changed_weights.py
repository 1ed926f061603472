"""Find the weights that a quantization method has changed, and check that the model still computes the same.

SmoothQuant and AWQ divide the input of a layer by factors, and multiply the weight by the same factors. This changes no
result if only the layer uses its weight. A model that reads the weight itself (``F.linear(x, self.head.weight)``) would
compute something else, so the outputs of one sample are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from trtbuild.errors import SourceError
from trtbuild.stages.program.text import tensor_digest
from trtbuild.stages.trace.calibration.job import CalibrateJob

#: The largest allowed difference of an output, relative to the largest value of this output. It allows the rounding of
#: float32 and float16.
_TOLERANCE = 1e-2


class ChangedWeights:
    """Finds the weights that a quantization method changes. Create an object before the quantization, and call `find`
    afterwards. `call` calls the module with one sample."""

    def __init__(self, module: torch.nn.Module, call: Callable[[], Any]) -> None:
        self._module, self._call = module, call
        self._digests = {name: tensor_digest(value) for name, value in self._weights().items()}
        self._outputs = self._float_outputs()

    def find(self, job: CalibrateJob) -> dict[str, torch.Tensor]:
        """Name → new value of each changed weight. The module's quantizers must be disabled. Raises SourceError
        if the outputs differ from those before the quantization."""
        for before, now in zip(self._outputs, self._float_outputs(), strict=True):
            if _is_different(now, before):
                raise SourceError(
                    f"the method {job.quantization.method} changes the results of the model: it reads the weight of a "
                    "layer without calling the layer",
                    code="quantization",
                    hint="name that layer in `exclude`, or use the method max",
                    **job.model.place("quantize.method", "quantize"),
                )
        return {name: value for name, value in self._weights().items() if tensor_digest(value) != self._digests[name]}

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach() for name, value in self._module.named_parameters(remove_duplicate=False)}

    def _float_outputs(self) -> list[torch.Tensor]:
        leaves = [leaf for leaf in pytree.tree_leaves(self._call()) if isinstance(leaf, torch.Tensor)]
        return [leaf.double() for leaf in leaves if leaf.is_floating_point() and leaf.numel()]


def _is_different(now: torch.Tensor, before: torch.Tensor) -> bool:
    is_finite = before.isfinite()
    if not torch.equal(now.isfinite(), is_finite) or not torch.allclose(
        now[~is_finite], before[~is_finite], equal_nan=True
    ):
        return True
    difference, largest = (now - before)[is_finite].abs(), before[is_finite].abs()
    return bool(difference.numel()) and float(difference.max()) > _TOLERANCE * float(largest.max())
