"""The workers of a scheduler at one moment: the jobs that each worker can do, and the slots that a build can use.

An `Overview` is computed from two answers of the scheduler: its workers with their labels, and the tasks of each worker.
A worker has one slot for each job that it does at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.driver.farm import labels

#: A message lists at most this many of the workers that a build does not use.
_MOST_LISTED = 6


@dataclass(frozen=True)
class FarmWorker:
    """A worker process: its name, its Dask address, its labels with the number of slots, and the keys of its tasks."""

    name: str
    address: str
    resources: Mapping[str, float]
    tasks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Overview:
    """The workers of a scheduler, and the labels of this build: its release, and the stores that it can use."""

    workers: tuple[FarmWorker, ...]
    release: str
    stores: tuple[str, ...]

    @classmethod
    def of(
        cls, identity: Mapping[str, Any], processing: Mapping[str, Iterable[Any]], release: str, stores: Sequence[str]
    ) -> Overview:
        """The overview from two answers of a scheduler: `identity` (workers) and `processing` (tasks by worker)."""
        workers = tuple(
            FarmWorker(
                str(entry["name"]),
                address,
                dict(entry.get("resources") or {}),
                frozenset(map(str, processing.get(address, ()))),
            )
            for address, entry in identity["workers"].items()
        )
        return cls(workers, release, tuple(stores))

    def workers_for(self, label: str, unfit: Collection[str] = ()) -> list[FarmWorker]:
        """The workers that can do this build's jobs with an engine or GPU label, without those named in `unfit`.

        All of them reach the store that `store_for` chooses.
        """
        return self.workers_with(label, self.store_for(label, unfit), unfit)

    def workers_with(self, label: str, store: str | None, unfit: Collection[str] = ()) -> list[FarmWorker]:
        """The workers that can do this build's jobs with an engine or GPU label through the store with the label `store`,
        without those named in `unfit`."""
        return [worker for worker in self._fitting(label, unfit) if store in worker.resources]

    def store_for(self, label: str, unfit: Collection[str] = ()) -> str | None:
        """The label of the store for jobs with the label `label`; None if no worker can do such a job.

        The workers that reach the chosen store have the most slots for such jobs. Among stores with equally many slots,
        the first in `stores` is chosen.
        """
        slots = dict.fromkeys(self.stores, 0.0)
        for worker in self._fitting(label, unfit):
            for store in slots.keys() & worker.resources.keys():
                slots[store] += worker.resources[label]
        most = max(slots.values(), default=0.0)
        return next((store for store in self.stores if slots[store] == most > 0), None)

    def _fitting(self, label: str, unfit: Collection[str]) -> list[FarmWorker]:
        """The workers that have `label` and the release of this build, without those named in `unfit`."""
        return [
            worker
            for worker in self.workers
            if label in worker.resources and self.release in worker.resources and worker.name not in unfit
        ]

    def gpu_labels(self, unfit: Collection[str] = ()) -> list[str]:
        """The labels of the GPUs on which workers can compare engines for this build, sorted."""
        found = {
            label
            for worker in self.workers
            for label in worker.resources
            if labels.gpu_kind_of(label) is not None and self.workers_for(label, unfit)
        }
        return sorted(found)

    def usable_slots(self, label: str, own_tasks: Collection[str], unfit: Collection[str] = ()) -> int:
        """The number of slots for an engine or GPU label, without those that tasks of other builds use.

        `own_tasks` are the keys of the tasks of this build.
        """
        workers = self.workers_for(label, unfit)
        # `max`, because the scheduler may give a worker more tasks than the worker has slots
        return sum(max(0, int(worker.resources[label]) - len(worker.tasks.difference(own_tasks))) for worker in workers)

    def _shared_store(self, worker: FarmWorker) -> str | None:
        return next((store for store in self.stores if store in worker.resources), None)

    @property
    def shares_a_store(self) -> bool:
        """Whether at least one worker reaches a store of this build."""
        return any(self._shared_store(worker) is not None for worker in self.workers)

    def left_out(self) -> dict[str, str]:
        """Name → reason, for the workers that this build does not use."""
        reasons = {}
        for worker in self.workers:
            release = labels.release_of(worker.resources)
            if release is None:
                reasons[worker.name] = "it was not started by trtbuild worker"
            elif self.release not in worker.resources:
                reasons[worker.name] = (
                    f"it has trtbuild {release}; this build has {labels.release_of({self.release: 1})}"
                )
            elif self._shared_store(worker) is None:
                reasons[worker.name] = "it shares no store with this build"
        return reasons

    def describe(self, unfit: Mapping[str, str], *, lists_gpus: bool = False) -> str:
        """A text for messages: the engines that the workers compile, and the workers that this build does not use.

        `unfit` maps the names of further unused workers to reasons. With `lists_gpus`, the text lists the workers' GPUs for
        comparisons instead of the engines."""
        abilities_of, verb = (labels.gpus_of, "have") if lists_gpus else (labels.engines_of, "compile for")
        left_out = {**unfit, **self.left_out()}
        usable_workers = [worker for worker in self.workers if worker.name not in left_out]
        counts = Counter(ability for worker in usable_workers for ability in abilities_of(worker.resources))
        parts = [f"{ability} ({count} {'worker' if count == 1 else 'workers'})" for ability, count in counts.items()]
        text_without_parts = "no worker has a GPU with PyTorch for CUDA" if lists_gpus else "no worker can be used"
        text = f"the workers {verb} {', '.join(parts)}" if parts else text_without_parts
        if left_out:
            shown = [f"{name}: {reason}" for name, reason in list(left_out.items())[:_MOST_LISTED]]
            more = len(left_out) - len(shown)
            text += f"; left out: {'; '.join(shown)}" + (f"; and {more} more" if more else "")
        return text
