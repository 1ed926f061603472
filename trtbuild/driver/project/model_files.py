"""The files of the project that are parts of models: weights files, and libraries of plugins.

Each command computes the digest of a file once. The bytes are read again when a step or an output needs them in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.spec import Model, Target
from trtbuild.core.planning.priorities import size_bytes
from trtbuild.core.recipes.record import Output
from trtbuild.driver.project.plugin_library import read_plugin_library
from trtbuild.driver.project.shortage import refuse_small_cache_disk
from trtbuild.driver.project.weights_file import WeightsFile
from trtbuild.errors import ManifestErrors, Problem, SourceError
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.layers.layered import LayeredStore


class ModelFiles:
    """The weights files and the libraries of plugins of all models of a project."""

    def __init__(self, store: LayeredStore, project: Path, digests: FileDigests) -> None:
        self._store = store
        self._project = project
        self._digests = digests
        #: Weights file → its tensors by name.
        self._weights_tables: dict[str, Mapping[str, Weight]] = {}
        #: Name of a model → the library of its plugins.
        self._plugin_libraries: dict[str, Output | None] = {}
        #: Weights file → the digest of its content.
        self.weights_digests: dict[str, str] = {}

    def weights_table(self, model: Model) -> Mapping[str, Weight] | None:
        """Name → weight in the model's weights file; None if the model has no weights file.

        Raises ManifestErrors if the file is missing, cannot be read, or is not a safetensors file.
        """
        if model.weights is None:
            return None
        if model.weights not in self._weights_tables:
            file = WeightsFile(model.weights, self._project / model.weights)
            digest = self.weights_digests[model.weights] = self._weights_digest(model, file)
            try:
                self._weights_tables[model.weights] = file.table(digest, self._store)
            except SourceError as error:
                raise _weights_problem(model, error.text, error.hint) from error
        return self._weights_tables[model.weights]

    def plugin_library(self, model: Model, versions: Mapping[Target, str]) -> Output | None:
        """The library of the model's plugins; None if the model has no such library.

        `versions` are those of the toolchains. Raises ManifestErrors if one of the targets cannot use the file.
        """
        if model.name not in self._plugin_libraries:
            library = read_plugin_library(self._project, model, versions, self._digests)
            self._plugin_libraries[model.name] = library
        return self._plugin_libraries[model.name]

    def put_blobs(self, model: Model, digests: Sequence[str]) -> None:
        """Put the blobs with these digests into the local store: tensors of the weights file, or the library of plugins.

        Raises SourceError if one of the two files has changed, and InsufficientResources if the disk has no room for
        the tensors.
        """
        library = self._plugin_libraries.get(model.name)
        if library is not None and library.sha256 in digests:
            self._put_plugin_library(model, library)
            digests = [sha256 for sha256 in digests if sha256 != library.sha256]
        table = self.weights_table(model) if digests else None
        # Only the local store counts, because reading the file is faster than fetching from a remote.
        missing = [sha256 for sha256 in digests if not self._store.local.has(sha256)]
        if model.weights is not None and table is not None and missing:
            sizes = {weight.sha256: size_bytes(weight) for weight in table.values()}
            subject = f"weights of {model.weights}"
            refuse_small_cache_disk(self._store.local.root, subject, sum(sizes[sha256] for sha256 in missing))
            WeightsFile(model.weights, self._project / model.weights).put_tensors(table, missing, self._store)

    def _put_plugin_library(self, model: Model, library: Output) -> None:
        if self._store.local.has(library.sha256) or model.plugins is None or model.plugins.library is None:
            return
        stored = self._store.put_file(str(self._project / model.plugins.library))
        if stored != library:
            raise SourceError(
                f"the library {model.plugins.library} of plugins changed while model {model.name!r} was built",
                code="changed-plugins",
                hint="run the build again",
            )

    def _weights_digest(self, model: Model, file: WeightsFile) -> str:
        try:
            digest = file.sha256(self._digests)
        except OSError as error:
            text = f"it cannot be read: {error.strerror or error}"
            raise _weights_problem(model, text, "check its permissions, or correct `weights:`") from error
        if digest is None:
            raise _weights_problem(
                model, "it is missing", "create it, or correct `weights:`, a path relative to the manifest"
            )
        return digest


def _weights_problem(model: Model, problem: str, hint: str | None) -> ManifestErrors:
    place = model.places.get("weights", model.origin)
    text = f"the weights file {model.weights!r} of model {model.name!r}: {problem}"
    return ManifestErrors([Problem(place.file, place.line, place.column, text, hint)])
