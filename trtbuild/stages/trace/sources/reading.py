"""Read the source of a model. A table names a class for each kind of source (`trtbuild.core.model.source_kinds`). The class
returns a module to trace, or a graph."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trtbuild.core.model.source_kinds import SOURCE_KINDS
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.sources.source_graph import Makers, SourceGraph
from trtbuild.stages.trace.user_code.frames import Frames


class SourceReader(ABC):
    """Reads the model that `job.source` names. There is a subclass for each kind of source."""

    def __init__(self, job: TraceJob, project: Path, frames: Frames, makers: Makers | None = None) -> None:
        self.job = job
        self.project = project
        self.frames = frames
        self._makers = makers

    @abstractmethod
    def read(self) -> torch.nn.Module | SourceGraph:
        """Return a module that is ready to be called, or a graph. The row of the kind in the table declares which of the
        two. Raises SourceError."""

    @property
    def path(self) -> Path:
        """The file that the source names."""
        return self.project / self.job.source.target

    @property
    def makers(self) -> Makers:
        if self._makers is None:
            raise AssertionError("a source of this kind needs `makers`")
        return self._makers

    def make_graph(
        self, blob_arguments: Sequence[Any], interface: dict[str, Any], weights: list[tuple[int, torch.Tensor]]
    ) -> SourceGraph:
        """Make the result of `read` for a graph. The handler of the graph's kind makes the blob from `blob_arguments`."""
        handler = self.makers.handler(self.job.source.graph.name)
        blob = handler.blob(*blob_arguments)
        return SourceGraph(blob, handler.text(blob), handler.names(blob), interface, weights)


def read(job: TraceJob, project: Path, frames: Frames, makers: Makers | None = None) -> torch.nn.Module | SourceGraph:
    """The model that `job.source` names. Raises SourceError."""
    module, _, name = SOURCE_KINDS[job.source.kind].reader.partition(":")
    reader = getattr(importlib.import_module(f"trtbuild.stages.trace.sources.{module}"), name)
    model: torch.nn.Module | SourceGraph = reader(job, project, frames, makers).read()
    return model
