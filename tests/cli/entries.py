"""Documents for tests of screens. A test passes the fields that it needs. The other fields have default values."""

from __future__ import annotations

from typing import Any

from tests.core.verified_values import a_model_entry
from trtbuild.core.model.verified import CutEntry
from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.recipe import Change
from trtbuild.driver.answers.documents import Build, BuiltOutput, ErrorEntry, Plan, StepEntry, Verification
from trtbuild.store.layers.remote_statistics import RemoteStatistics

NEW = Reason("new", "it was not built in this project before")
RECORDED = Reason("recorded", "nothing that it depends on has changed")


def changed(*parts: str) -> Reason:
    """Return a reason with the code ``changed``. The old and the new values of `parts` are digests."""
    changes = tuple(Change(part, "0" * 64, "f" * 64) for part in parts)
    return Reason("changed", f"changed: {', '.join(parts)}", changes)


def a_step(
    model: str, name: str, verdict: Any, reason: Reason = NEW, target: str | None = None, **more: Any
) -> StepEntry:
    """Return the entry of the step ``model/name@target``."""
    entry = {
        "id": f"{model}/{name}" + (f"@{target}" if target else ""),
        "model": model,
        "stage": name.partition("/")[0],
        "target": target,
        "key": None,
        "verdict": verdict,
        "source": None,
        "reason": reason,
        "duration_s": 0.0,
        "saved_s": 0.0,
        "outputs": {},
    }
    return StepEntry(**{**entry, **more})


def an_error(text: str, **more: Any) -> ErrorEntry:
    return ErrorEntry(**{"type": "SourceError", "text": text, "file": None, "line": None, "hint": None, **more})


def an_output(model: str, *, written: bool = True) -> BuiltOutput:
    return BuiltOutput(model=model, kind="package", path=f"dist/{model}", written=written)


def a_plan(*steps: StepEntry, **more: Any) -> Plan:
    defaults = {"ok": True, "duration_s": 0.1, "totals": {}, "outputs": [], "errors": [], "warnings": [], "remotes": []}
    return Plan(steps=steps, **{**defaults, **more})


def a_build(*steps: StepEntry, **more: Any) -> Build:
    """Return the document of a build. The field `duration_s` has no default value."""
    defaults = {"ok": True, "totals": {}, "outputs": [], "not_begun": 0, "errors": [], "warnings": [], "remotes": []}
    return Build(steps=steps, **{**defaults, **more})


def a_verification(*cuts: CutEntry, errors: Any = (), **more: Any) -> Verification:
    """Return the verification of one model. `more` are fields of the model's entry.

    A cut is one way to divide the model into partitions."""
    model = a_model_entry(*cuts, **more)
    ok = model.ok and not errors
    return Verification(ok=ok, duration_s=1.0, seed=3, random_points=2, models=[model], errors=errors, warnings=[])


def remote_statistics(name: str, **more: Any) -> RemoteStatistics:
    """Return the statistics of a remote. Without `more`, the remote was not used."""
    counts = ("hits", "misses", "blobs_gone", "lost_races", "untrusted", "records_sent", "records_not_sent")
    numbers = ("requests", "bytes_down", "bytes_up", "retries", "failures", "skipped")
    defaults = {"place": f"https://{name}.example", "given_up": None, "troubles": (), "warnings": ()}
    return RemoteStatistics(name=name, **{**dict.fromkeys((*counts, *numbers), 0), **defaults, **more})
