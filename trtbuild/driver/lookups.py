"""`core.planning.Lookups` over a store, the files of the project and its history.

One instance lives as long as one command, and shows one moment: what was read once (a record, an observation of a
file) is not read again, so all plans of a build agree with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trtbuild.core import chain, keys
from trtbuild.core.chain import link_bytes, parse_link
from trtbuild.core.dependency import Dependency, Observation
from trtbuild.core.engine_job import Weight
from trtbuild.core.graph import Reason, Step
from trtbuild.core.planning import ModelPlan
from trtbuild.core.ports import Store
from trtbuild.core.recipe import Recipe
from trtbuild.core.record import Record
from trtbuild.core.spec import Model
from trtbuild.driver.history import History
from trtbuild.driver.weights_file import keep_weights, weights_table
from trtbuild.errors import BlobMissing, EntryCorrupt, SourceError


class StoreLookups:
    """See `core.planning.Lookups`. `observe` looks at one dependency now; `sha256` digests one file."""

    def __init__(
        self,
        store: Store,
        project: Path,
        history: History,
        observe: Callable[[Dependency], str],
        sha256: Callable[[Path], str | None],
        *,
        force: bool = False,
    ) -> None:
        self._store = store
        self._project = project
        self._history = history
        self._observe = observe
        self._sha256 = sha256
        self._force = force
        self._records: dict[str, Record | None] = {}
        self._small: dict[str, bytes] = {}
        self._seen: dict[Dependency, str] = {}
        self._tables: dict[str, Mapping[str, Weight]] = {}
        self._ran: set[str] = set()
        #: Keys whose entry was wrong and is in quarantine now.
        self.corrupt: set[str] = set()

    # -- what planning asks

    def record(self, key: str) -> Record | None:
        if key not in self._records:
            try:
                self._records[key] = self._store.get_record(key)
            except EntryCorrupt:
                self.corrupt.add(key)
                self._records[key] = None
        return self._records[key]

    def source_of(self, key: str) -> str:
        return "local"

    def blob(self, sha256: str) -> bytes:
        if sha256 not in self._small:
            self._small[sha256] = self._store.get_bytes(sha256)
        return self._small[sha256]

    def has(self, sha256: str) -> bool:
        return self._store.has(sha256)

    def observe(self, dependency: Dependency) -> str:
        if dependency not in self._seen:
            self._seen[dependency] = self._observe(dependency)
        return self._seen[dependency]

    def read_link(self, recipe: Recipe) -> Sequence[Dependency] | None:
        record = self.record(recipe.key)
        if record is None:
            return None
        try:
            return parse_link(self.blob(record.outputs["next"].sha256))
        except (BlobMissing, EntryCorrupt, KeyError, ValueError):
            return None

    def last_recipe(self, step: str) -> Recipe | None:
        return self._history.recipe(step)

    def weights_table(self, model: Model) -> Mapping[str, Weight] | None:
        if model.weights is None:
            return None
        if model.weights not in self._tables:
            path = self._project / model.weights
            self._tables[model.weights] = weights_table(path, self._weights_digest(model, path), self._store)
        return self._tables[model.weights]

    def overruled(self, step: str, key: str) -> Reason | None:
        if step in self._ran or key in self._ran:
            return None
        if self._force:
            return Reason("forced", "--force was given")
        if key in self.corrupt:
            return Reason("corrupt", "its record was damaged, and is in quarantine now")
        why = self._history.uncacheable(step)
        return Reason("uncacheable", why) if why else None

    # -- what a build tells

    def write_link(self, recipe: Recipe, named: Sequence[Dependency]) -> None:
        """Keep a link of a chain; a link that another build has put there meanwhile stays, unless it cannot be read."""
        output = self._store.put_bytes(link_bytes(named))
        self._records.pop(recipe.key, None)
        unusable = self.record(recipe.key) is not None and self.read_link(recipe) is None
        self._records[recipe.key] = self._store.put_record(Record(recipe, {"next": output}), replace=unusable)
        if self.read_link(recipe) is None:
            self._store.put_bytes(link_bytes(named))  # a damaged blob lay there under its name, and is put aside now

    def learned(self, observations: Sequence[Observation]) -> None:
        """What a trace saw is what this build goes by from now on."""
        self._seen.update({seen.dependency: seen.seen for seen in observations})

    def look_again(self, observations: Sequence[Observation]) -> list[Dependency]:
        """The dependencies that are not now what was observed."""
        return [seen.dependency for seen in observations if self._observe(seen.dependency) != seen.seen]

    def ran(self, step: str, record: Record) -> None:
        """A step was run in this build, and left `record` (which need not be in the store)."""
        self._ran.update((step, record.recipe.key))
        self._records[record.recipe.key] = record

    def made_meanwhile(self, plan: ModelPlan, step: Step) -> Record | None:
        """The record of a step that was missing when it was planned, if another build has left it since."""
        if step.recipe is None or step.reason.code not in ("new", "changed"):
            return None
        recipe = step.recipe
        if step.stage == "trace":
            missing = [key for key, record in self._records.items() if record is None]
            for key in missing:
                del self._records[key]
            recipe = keys.trace(plan.declared, chain.follow(plan.declared, self.read_link, self.observe))
        self._records.pop(recipe.key, None)
        record = self.record(recipe.key)
        return record if record is not None and record.recipe.same_as(recipe) else None

    def keep_file_weights(self, model: Model, wanted: Sequence[str]) -> None:
        """Make sure that blobs which the weights file provides are in the store."""
        if model.weights is None or all(self._store.has(sha256) for sha256 in wanted):
            return
        path = self._project / model.weights
        digest = self._weights_digest(model, path)
        keep_weights(path, digest, self._store)

    def _weights_digest(self, model: Model, path: Path) -> str:
        digest = self._sha256(path)
        if digest is None:
            place = model.places.get("weights", model.origin)
            raise SourceError(
                f"the weights file {model.weights} of model {model.name!r} is missing",
                code="weights-file",
                file=place.file,
                line=place.line,
            )
        return digest
