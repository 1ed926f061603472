"""Read the source of a model.

The table of `trtbuild.core.model.source_kinds` names a class for each kind of source in a manifest. The class has a
method `read`, which returns a module to trace, or a graph.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trtbuild.core.model.source_kinds import SOURCE_KINDS
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.sources.source_graph import GraphFunctions, SourceGraph
from trtbuild.stages.trace.user_code.frames import Frames


class SourceReader(ABC):
    """Reads the model that `job.source` names. There is a subclass for each kind of source."""

    def __init__(
        self, job: TraceJob, project: Path, frames: Frames, graph_functions: GraphFunctions | None = None
    ) -> None:
        self.job = job
        self.project = project
        self.frames = frames
        self._graph_functions = graph_functions

    @abstractmethod
    def read(self) -> torch.nn.Module | SourceGraph:
        """Return a module that can be called, or a graph, as the table says for this kind of source. Raises
        SourceError."""

    @property
    def path(self) -> Path:
        """The file that the source names. (The source of some kinds names a callable instead.)"""
        return self.project / self.job.source.target

    @property
    def graph_functions(self) -> GraphFunctions:
        """The functions for sources that are a graph already. Raises AssertionError if the caller has not passed them."""
        if self._graph_functions is None:
            raise AssertionError("the trace of a source of this kind needs `graph_functions`")
        return self._graph_functions

    def make_graph(
        self, blob_arguments: Sequence[Any], interface: dict[str, Any], weights: list[tuple[int, torch.Tensor]]
    ) -> SourceGraph:
        """Make the graph that `read` returns. `blob_arguments` are the arguments of the handler's function `make_blob` for
        this kind of graph. The other arguments are fields of `SourceGraph`."""
        handler = self.graph_functions.handler(self.job.source.graph.name)
        blob = handler.make_blob(*blob_arguments)
        return SourceGraph(blob, handler.graph_text(blob), handler.node_names(blob), interface, weights)


def read(
    job: TraceJob, project: Path, frames: Frames, graph_functions: GraphFunctions | None = None
) -> torch.nn.Module | SourceGraph:
    """Return the model that `job.source` names: a module, or a graph. Raises SourceError."""
    module, _, name = SOURCE_KINDS[job.source.kind].reader.partition(":")
    reader = getattr(importlib.import_module(f"trtbuild.stages.trace.sources.{module}"), name)
    model: torch.nn.Module | SourceGraph = reader(job, project, frames, graph_functions).read()
    return model
