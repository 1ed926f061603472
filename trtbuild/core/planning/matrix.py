"""Divides the missing engines into jobs for several machines.

Rules
1. A job builds engines for one target. The jobs of a target contain each model that has an engine to build. They also
   contain each model whose engines are unknown, because the model is not partitioned or converted yet.
2. An engine whose key is known is built in one job only. Models that need the same missing engine are in the same job. If
   two targets have an engine with the same key (equal targets with two names), the first target builds it.
3. Unknown engines have no keys. So if a job has a model with unknown engines, another job may build the same engines. A
   plan that is made after the convert steps has no unknown engines.
4. Models that must be in one job (rule 2) are a group. The number of a target's jobs is its estimated time divided by
   `job_duration_s`, rounded up, but at most the number of groups. To balance the jobs, the longest group is assigned first,
   and each group is assigned to the job with the shortest estimated time so far.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trtbuild.core.model.spec import Target
from trtbuild.core.planning.graph import ModelPlan, Step

#: GitHub Actions runs at most this many jobs of one matrix.
MAX_JOBS = 256


@dataclass(frozen=True)
class MatrixJob:
    """One job for `target`: its models and its estimated duration.

    `number` counts the jobs of the target from 1, and `count` is the number of these jobs."""

    target: Target
    models: tuple[str, ...]
    duration_s: float
    number: int
    count: int


@dataclass
class _Group:
    """Models that must be in one job.

    `known_s` maps keys of engines to durations. `unknown_s` is the duration of all unknown engines."""

    models: list[str]
    known_s: dict[str, float] = field(default_factory=dict)
    unknown_s: float = 0.0

    @property
    def duration_s(self) -> float:
        return sum(self.known_s.values()) + self.unknown_s

    def absorb(self, other: _Group) -> None:
        self.models += other.models
        self.known_s.update(other.known_s)
        self.unknown_s += other.unknown_s


def engine_jobs(
    plans: Iterable[ModelPlan], estimate_s: Callable[[Step], float], job_duration_s: float
) -> list[MatrixJob]:
    """Return the jobs that build all engines of `plans` that are not hits, ordered by target.

    `estimate_s` returns the estimated duration of an engine step in seconds. A step with the verdict ``unknown`` stands for
    all unknown engines of its model and target. If there would be more than `MAX_JOBS` jobs, the jobs take longer than
    `job_duration_s`. A target has at least one job.
    """
    plans = list(plans)
    order = {plan.model.name: position for position, plan in enumerate(plans)}
    groups = _groups_by_target(plans, estimate_s)
    limit = max(MAX_JOBS, len(groups))
    while sum(_job_count(target_groups, job_duration_s) for target_groups in groups.values()) > limit:
        job_duration_s *= 2
    matrix: list[MatrixJob] = []
    for target, target_groups in groups.items():
        jobs = _balanced(target_groups, _job_count(target_groups, job_duration_s))
        for number, job in enumerate(jobs, start=1):
            models = tuple(sorted(job.models, key=order.__getitem__))
            matrix.append(MatrixJob(target, models, job.duration_s, number, len(jobs)))
    return matrix


def _groups_by_target(
    plans: Iterable[ModelPlan], estimate_s: Callable[[Step], float]
) -> Mapping[Target, Sequence[_Group]]:
    """Return the groups of each target that has engines to build (rules 1 and 2). Targets are in the order of the plans."""
    target_of_key: dict[str, Target] = {}
    groups: dict[Target, list[_Group]] = {}
    for plan in plans:
        targets = {target.name: target for target in plan.model.targets}
        group_of_target: dict[Target, _Group] = {}
        for step in plan.steps.values():
            if step.stage != "engine" or step.verdict == "hit":
                continue
            target = targets[step.target or ""]
            if step.key is not None and target_of_key.setdefault(step.key, target) != target:
                continue
            group = group_of_target.setdefault(target, _Group([plan.model.name]))
            if step.key is None:
                group.unknown_s += estimate_s(step)
            else:
                group.known_s[step.key] = estimate_s(step)
        for target, group in group_of_target.items():
            groups[target] = _joined(groups.get(target, []), group)
    return groups


def _joined(groups: Sequence[_Group], new_group: _Group) -> list[_Group]:
    """Return `groups` and `new_group`. Groups that have a key of `new_group` are joined with it."""
    separate, joined = [], _Group([])
    for group in groups:
        if group.known_s.keys() & new_group.known_s.keys():
            joined.absorb(group)
        else:
            separate.append(group)
    joined.absorb(new_group)
    return [*separate, joined]


def _job_count(groups: Sequence[_Group], job_duration_s: float) -> int:
    """Return the number of jobs of one target (rule 4)."""
    return max(1, min(len(groups), math.ceil(sum(group.duration_s for group in groups) / job_duration_s)))


def _balanced(groups: Sequence[_Group], count: int) -> list[_Group]:
    """Merge `groups` into `count` jobs of similar duration (rule 4). With at least `count` groups, no job is empty."""
    jobs = [_Group([]) for _ in range(count)]
    queue = [(0.0, 0, number) for number in range(count)]
    for group in sorted(groups, key=lambda group: -group.duration_s):
        _, _, number = heapq.heappop(queue)
        jobs[number].absorb(group)
        heapq.heappush(queue, (jobs[number].duration_s, len(jobs[number].models), number))
    return jobs
