"""``trtbuild plan --matrix``: the engines that have to be built, as the matrix of a CI job.

Rules
1. The matrix has GitHub's form, ``{"include": […]}``. It has no other member, because GitHub would use the member as an
   axis of the matrix.
2. Other machines build the engines. So the toolchains of this machine are not checked.
3. A runner is a machine that runs jobs of CI. TensorRT-RTX builds engines without a GPU, so `HOSTED_RUNNER` builds them for
   targets with `HOSTED_PLATFORM`. All other jobs run on a runner with the labels that the configuration has for the
   target's SM.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.spec import Target
from trtbuild.core.planning.graph import Step, step_id
from trtbuild.core.planning.matrix import MatrixJob, engine_jobs
from trtbuild.core.planning.priorities import estimated_duration_s
from trtbuild.driver.configuration.runners import VARIABLE
from trtbuild.driver.project.history import History
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import ConfigurationError, ConfigurationErrors, UsageError
from trtbuild.toolchain.libraries.table import FLAVOURS

#: The label and the platform of a machine that GitHub hosts.
HOSTED_RUNNER, HOSTED_PLATFORM = "ubuntu-latest", "linux-x86_64"

#: The default of `--job-duration`. A job should not be much shorter, because starting a runner takes minutes.
DEFAULT_JOB_DURATION_S = 600.0


@dataclass(frozen=True)
class Matrix:
    """The jobs of the matrix, and warnings about caches."""

    include: Sequence[Mapping[str, Any]]
    warnings: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """The matrix in GitHub's form (rule 1)."""
        return {"include": list(self.include)}


def matrix(request: Request, job_duration_s: float = DEFAULT_JOB_DURATION_S) -> Matrix:
    """The matrix of the engines that have to be built. It is empty if all engines are in a cache.

    Each job gets engines that take about `job_duration_s` together. Raises UsageError for ``--force`` and ``--until``, and
    ConfigurationError if no runner is configured for a target.
    """
    for flag, is_set in (("--force", request.force), ("--until", request.until is not None)):
        if is_set:
            raise UsageError(
                f"--matrix and {flag} exclude each other",
                hint=f"leave out {flag}: the jobs build the engines that are in no cache",
            )
    workspace = Workspace(request)
    workspace.store.begin_read_only()
    plans = workspace.plans()
    jobs = engine_jobs(plans.values(), _estimates(workspace.history), job_duration_s)
    runners = _runners({job.target: None for job in jobs}, workspace.configuration.runners)
    return Matrix([_entry(job, runners[job.target], request) for job in jobs], workspace.store.warnings())


def _estimates(history: History) -> Callable[[Step], float]:
    """A function that estimates the seconds of an engine step from its last run, or from the size of its weights.

    As long as the partitions are not known, one step stands for all engines of a model and a target. Its estimate is the
    sum of their last durations.
    """
    last_s: dict[str, float] = {}
    total_s: dict[tuple[str, str], float] = {}
    for name in history.steps():
        last = history.last_run(name) if "/engine/" in name else None
        if last is not None and 0 < last.duration_s < math.inf:
            last_s[name] = last.duration_s
            model, _, rest = name.partition("/engine/")
            key = model, rest.rpartition("@")[2]
            total_s[key] = total_s.get(key, 0.0) + last.duration_s

    def estimate_s(step: Step) -> float:
        target = step.target or ""
        if step.id == step_id(step.model, "engine", target=target) and (step.model, target) in total_s:
            return total_s[step.model, target]
        return estimated_duration_s(step, last_s.get)

    return estimate_s


def _runners(targets: Mapping[Target, None], configured: Mapping[int, tuple[str, ...]]) -> dict[Target, Any]:
    """Target → the label of its runner, or the list of labels (rule 3). Raises ConfigurationError."""
    runners: dict[Target, Any] = {}
    problems = []
    for target in targets:
        if not FLAVOURS[target.toolchain].needs_gpu and target.platform == HOSTED_PLATFORM:
            runners[target] = HOSTED_RUNNER
        elif target.sm in configured:
            labels = configured[target.sm]
            runners[target] = labels[0] if len(labels) == 1 else list(labels)
        else:
            problems.append(
                ConfigurationError(
                    f"engines for target {target.name!r} (SM {target.sm}, {target.toolchain}, {target.platform}) have to "
                    "be built, but no runner is configured for them",
                    hint=f'set the labels of its runner: {VARIABLE}="sm_{target.sm}=self-hosted,gpu", or '
                    f'[matrix] sm_{target.sm} = ["self-hosted", "gpu"] in the configuration file',
                )
            )
    if len(problems) > 1:
        raise ConfigurationErrors(problems)
    if problems:
        raise problems[0]
    return runners


def _entry(job: MatrixJob, runner: str | list[str], request: Request) -> dict[str, Any]:
    number = f" {job.number}/{job.count}" if job.count > 1 else ""
    return {
        "name": f"{job.target.name} sm_{job.target.sm}{number}",
        "target": job.target.name,
        "sm": job.target.sm,
        "models": list(job.models),
        "command": _command(job, request),
        "runs-on": runner,
    }


def _command(job: MatrixJob, request: Request) -> str:
    """The command that builds the engines of a job: one line for ``sh``, in the directory of the project."""
    files = [word for file in request.files for word in ("-f", file)]
    upgrade = ["--upgrade"] if request.upgrade else []
    words = ["build", "--until", "engine", "--target", job.target.name, *files, *upgrade, "--", *job.models]
    return shlex.join(["trtbuild", *words])
