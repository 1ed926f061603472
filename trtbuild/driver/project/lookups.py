"""Implement `core.planning.lookups.Lookups` with a store, the files of the project and its history.

Each command has one instance. All plans of a build are consistent, because the instance remembers each record and each file
that it has read. Only the methods for a build read records and files again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.spec import Model, Target
from trtbuild.core.planning.graph import USER_CODE_STAGES, Reason, Step
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.chain import link_bytes, parse_link
from trtbuild.core.recipes.dependency import Dependency, Observation
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.project.history import History
from trtbuild.driver.project.model_files import ModelFiles
from trtbuild.driver.project.trail import Trail
from trtbuild.errors import BlobMissing, EntryCorrupt, RecordUntrusted
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.layers.layered import LayeredStore

#: The largest number of blobs that are kept in memory.
_MAX_KEPT_BLOBS = 128


class StoreLookups:
    """Looks up records, links and files for planning. `Lookups` describes the methods for planning.

    A link is a record that names the files and other dependencies of a trace to observe next (`core.recipes.chain`). The
    argument `observe` is the function that returns the current state of a dependency. The class is thread-safe, because
    threads that run steps use it while the caller's thread plans.
    """

    def __init__(
        self,
        store: LayeredStore,
        project: Path,
        history: History,
        observe: Callable[[Dependency], str],
        digests: FileDigests,
        *,
        force: bool = False,
        trail: Trail | None = None,
    ) -> None:
        self._store = store
        self._history = history
        self._observe = observe
        #: The weights files and the libraries of plugins.
        self.files = ModelFiles(store, project, digests)
        self._force = force
        self._trail = trail
        #: Held for each change of `_records` and `_blobs`.
        self._lock = threading.Lock()
        #: Key of a link → the dependencies that the link names.
        self._links: dict[str, Sequence[Dependency]] = {}
        self._records: dict[str, Record | None] = {}
        self._blobs: dict[str, bytes] = {}
        self._observed: dict[Dependency, str] = {}
        #: The ids and the keys of the steps that have run in this command, or have announced their results.
        self._run_steps_and_keys: set[str] = set()
        #: Step id → recipe, for each running step that has announced its results.
        self._announced_recipes: dict[str, Recipe] = {}
        #: Keys with a damaged record, which is in quarantine now, or with damaged results.
        self.corrupt_keys: set[str] = set()
        #: The keys with damaged results (`mark_damaged`). Their records are not looked up again.
        self._damaged_keys: set[str] = set()
        #: Key → the reason why its record is not trusted.
        self.untrusted_reasons: dict[str, str] = {}

    # -- for planning

    def record(self, key: str) -> Record | None:
        return self._record(key, None)

    def record_of(self, recipe: Recipe) -> Record | None:
        return self._record(recipe.key, recipe)

    def _record(self, key: str, recipe: Recipe | None) -> Record | None:
        with contextlib.suppress(KeyError):
            return self._records[key]
        record: Record | None = None
        try:
            record = self._store.get_record(key, recipe)
        except EntryCorrupt:
            self.corrupt_keys.add(key)
        except RecordUntrusted as error:
            self.untrusted_reasons[key] = error.text
        with self._lock:
            known = self._records.get(key)  # another thread may have noted the result of a run meanwhile
            if known is None:
                self._records[key] = known = record
            return known

    def source_of(self, key: str) -> str:
        return self._store.source_of(key)

    def prefetch(self, recipes: Callable[[], Iterable[Recipe]]) -> None:
        if self._store.readers:
            self._store.prefetch_records(recipe.key for recipe in recipes())

    def blob(self, sha256: str) -> bytes:
        blob = self._blobs.get(sha256)
        if blob is None:
            blob = self._store.get_bytes(sha256)
            with self._lock:
                if len(self._blobs) >= _MAX_KEPT_BLOBS:
                    del self._blobs[next(iter(self._blobs))]
                self._blobs[sha256] = blob
        return blob

    def has_blob(self, sha256: str) -> bool:
        return self._store.has(sha256)

    def observe(self, dependency: Dependency) -> str:
        if dependency not in self._observed:
            self._observed[dependency] = self._observe(dependency)
        return self._observed[dependency]

    def read_link(self, recipe: Recipe) -> Sequence[Dependency] | None:
        key = recipe.key
        dependencies, was_read = self._links.get(key), False
        if dependencies is None and self._trail is not None and key not in self._records:
            self._links.update(self._trail.links(key, self._store.has_records))
            dependencies = self._links.get(key)
        if dependencies is None:
            dependencies = self._read_link(recipe)
            was_read = True
        if dependencies is not None:
            self._links[key] = dependencies
            if self._trail is not None:
                self._trail.follow(key, dependencies, read=was_read)
        return dependencies

    def _read_link(self, recipe: Recipe) -> Sequence[Dependency] | None:
        record = self.record(recipe.key)
        if record is None:
            return None
        try:
            return parse_link(self.blob(record.outputs["next"].sha256))
        except (BlobMissing, EntryCorrupt, KeyError, ValueError):
            return None

    def found_record_keys(self) -> frozenset[str]:
        """The keys of all records that this command has found or made so far, including links."""
        found_keys = {key for key, record in list(self._records.items()) if record is not None}
        return frozenset(found_keys.union(list(self._links)))

    def later_dependencies(self, link: Recipe) -> Sequence[Dependency]:
        record = self._records.get(link.key)
        parts = None if record is None else record.provenance.get("ahead")
        if not isinstance(parts, list) or self.source_of(link.key) == "local":
            return ()
        with contextlib.suppress(ValueError):  # an invalid hint is ignored
            return [Dependency.from_part(str(part)) for part in parts]
        return ()

    def last_recipe(self, step: str) -> Recipe | None:
        return self._history.recipe(step)

    def weights_table(self, model: Model) -> Mapping[str, Weight] | None:
        return self.files.weights_table(model)

    def plugin_library(self, model: Model, versions: Mapping[Target, str]) -> Output | None:
        return self.files.plugin_library(model, versions)

    def why_forced_to_run(self, step: str, key: str) -> Reason | None:
        if step in self._run_steps_and_keys or key in self._run_steps_and_keys:
            return None
        if self._force:
            return Reason("forced", "--force was given")
        why = self._history.uncacheable(step)
        return Reason("uncacheable", why) if why else None

    def announced_recipe(self, step: str) -> Recipe | None:
        return self._announced_recipes.get(step)

    def was_run(self, step: str) -> bool:
        return step in self._run_steps_and_keys

    def why_unusable(self, key: str) -> Reason | None:
        if key in self._damaged_keys:
            return Reason("corrupt", "its results are damaged")
        if key in self.corrupt_keys:
            return Reason("corrupt", "its record was damaged, and is in quarantine now")
        if key in self.untrusted_reasons:
            return Reason("untrusted", self.untrusted_reasons[key])
        return None

    # -- for a build

    def mark_damaged(self, key: str) -> None:
        """Stop using a record with damaged results. The next plan runs the step again."""
        self.corrupt_keys.add(key)
        self._damaged_keys.add(key)
        with self._lock:
            self._records[key] = None

    def write_link(self, recipe: Recipe, dependencies: Sequence[Dependency], ahead: Sequence[Dependency] = ()) -> None:
        """Store a link. If another build has stored a readable link meanwhile, the store keeps that link.

        `ahead` are the dependencies that later links will name (`core.recipes.chain`, rule 6).
        """
        hint = {"ahead": [dependency.part for dependency in ahead]} if ahead else {}
        output = self._store.put_bytes(link_bytes(dependencies))
        self.forget(recipe.key)
        self._links.pop(recipe.key, None)
        if self._trail is not None:
            self._trail.forget(recipe.key)
        unusable = self.record(recipe.key) is not None and self.read_link(recipe) is None
        self.use_record(self._store.put_record(Record(recipe, {"next": output}, hint), replace=unusable))
        if self.read_link(recipe) is None:
            self._store.put_bytes(link_bytes(dependencies))  # the blob was damaged, and is in quarantine now

    def save_trail(self) -> None:
        """Save the links that this command has followed, for the next command."""
        if self._trail is not None:
            self._trail.save()

    def use_observations(self, observations: Sequence[Observation]) -> None:
        self._observed.update({observation.dependency: observation.state for observation in observations})

    def observe_now(self, dependency: Dependency) -> str:
        """The current state of a dependency, even if this command has observed it before."""
        return self._observe(dependency)

    def find_changed_dependencies(self, observations: Sequence[Observation]) -> list[Dependency]:
        return [
            observation.dependency
            for observation in observations
            if self._observe(observation.dependency) != observation.state
        ]

    def forget(self, key: str) -> None:
        """Let the next lookup of a key read the store again, because another build may have stored a record."""
        with self._lock:
            self._records.pop(key, None)

    def note_run(self, step: str, record: Record) -> None:
        """Note that a step ran in this build, with the result `record`, which the store may lack."""
        self._run_steps_and_keys.update((step, record.recipe.key))
        self.use_record(record)
        self._announced_recipes.pop(step, None)

    def note_announced(self, step: str, record: Record) -> None:
        """Use the results of a running step whose checks have not ended. The store does not have its record yet."""
        self.note_run(step, record)
        self._announced_recipes[step] = record.recipe

    def use_record(self, record: Record) -> None:
        """Let later lookups return `record`, even if the store lacks it."""
        with self._lock:
            self._records[record.recipe.key] = record

    def withdraw(self, step: str, key: str) -> None:
        """Undo `note_announced` or `note_run`, because the step or an earlier step has failed."""
        self._announced_recipes.pop(step, None)
        self._run_steps_and_keys.difference_update((step, key))
        self.forget(key)

    def find_new_record(self, plan: ModelPlan, step: Step) -> Record | None:
        """The record of a step if another build has stored it since the step was planned; otherwise None.

        For a step that runs user code, the links are read from the store again, because the trail (`Trail`) may have other
        links.
        """
        was_missing = step.record is None and step.reason.code not in ("forced", "uncacheable")
        if step.recipe is None or not was_missing or step.recipe.key in self._damaged_keys:
            return None
        recipe = step.recipe
        if step.stage in USER_CODE_STAGES:
            with self._lock:
                missing_keys = [key for key, record in self._records.items() if record is None]
                for key in missing_keys:
                    if key not in self._damaged_keys:
                        del self._records[key]
            declared = plan.user_code[step.stage].declared
            observations = chain.follow(declared, self._read_link, self.observe, self.later_dependencies, self.prefetch)
            recipe = keys.user_code(declared, observations)
        self.forget(recipe.key)
        record = self.record(recipe.key)
        if record is None or not record.recipe.same_as(recipe) or record == step.refused_record:
            return None
        if recipe.key != step.recipe.key and self._trail is not None:
            self._links.clear()
            self._trail.clear()
        return record
