"""The job of one calibration. This module does not import torch, because plans create jobs without loading torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtbuild.core.model.quantization import Calibration, Quantization
from trtbuild.core.model.spec import Source
from trtbuild.stages.trace.job import TraceJob

#: The manifest's field of a source → the field of ``quantize:`` with the same meaning.
_FIELDS = {"source": "calibration", "source.python": "calibration.python", "source.kwargs": "calibration.kwargs"}


@dataclass(frozen=True)
class CalibrateJob:
    """A calibration of one model. `model` is the job of the model's trace, without quantizers."""

    model: TraceJob
    quantization: Quantization

    def data_job(self, calibration: Calibration, path: str) -> TraceJob:
        """A trace job whose source is the callable at `path` (``module:name``), which gives the calibration's samples.
        Errors about this source name the lines of the calibration in the manifest."""
        model = self.model
        source = Source("python", path, calibration.kwargs, roots=model.source.roots)
        origins = {**model.origins}
        for name, field in _FIELDS.items():
            place = model.origins.get(f"quantize.{field}") or model.origins.get("quantize")
            if place is not None:
                origins[name] = place
        return replace(model, source=source, origins=origins)
