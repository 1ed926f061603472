"""The messages about the results of a verification (`trtbuild.core.model.verified`)."""

from __future__ import annotations

from trtbuild.core.model.comparisons import Operator
from trtbuild.core.model.verification import relative_to_tolerance
from trtbuild.core.model.verified import CutEntry, NamedPoint, PartitionEntry, WholeEntry

Entry = WholeEntry | PartitionEntry


def worst_error(entry: CutEntry) -> tuple[float, float]:
    """The error that is largest relative to its tolerance, and this tolerance.

    The candidates are the errors of the partitions and of the whole model. Without a candidate, the error is 0.0."""
    compared = (*entry.partitions, entry.whole)
    errors = [(result.error, result.tolerance) for result in compared if result.error is not None]
    return max(errors, key=lambda pair: (relative_to_tolerance(*pair), pair[0]), default=(0.0, entry.tolerance))


def error_text(entry: Entry) -> str:
    """The message about a wrong entry: ``is wrong: 3.1e-01 away (1e-05 is allowed) at profile rows, min (batch = 1)``."""
    difference = _difference_text(entry.text, entry.error)
    return f"is wrong: {difference} ({entry.tolerance:.0e} is allowed){_point_text(entry.worst)}"


def _difference_text(text: str, error: float | None) -> str:
    return text or f"{error:.1e} away"


def _point_text(worst: NamedPoint | None) -> str:
    if worst is None:
        return ""
    dims = ", ".join(f"{name} = {size}" for name, size in worst.dims.items())
    return f" at profile {worst.profile}, {worst.which}{f' ({dims})' if dims else ''}"


#: TF32 may explain an engine's error up to this multiple of the tolerance. The tolerance includes the rounding to TF32, but
#: sums make the error larger in some models.
TF32_ERROR_FACTOR = 5

_TF32 = (
    "TF32, which rounds the factors of each product to 11 bits on a GPU: `builder: {tf32: false}` builds without TF32, "
    "`--tolerance X` allows larger errors"
)


def tf32_hint(entry: Entry, tf32: bool | None) -> str | None:
    """The hint for a wrong float32 result of an engine, if TF32 alone may explain its error; otherwise None.

    The caller has checked that the conversion to ONNX is right. `tf32`: whether the engine was built with TF32, or None if
    that is not known."""
    if entry.status != "wrong" or entry.precision != "float32" or tf32 is False:
        return None
    if entry.error is None or entry.error >= TF32_ERROR_FACTOR * entry.tolerance:
        return None
    return f"{'' if tf32 else 'unless the engine was built without TF32, '}such a small error may come from {_TF32}"


def advice_lines(entry: Entry) -> list[str]:
    """The lines below `error_text`: the place of the fault, if it is known, and the hint of the entry."""
    return [*_fault_lines(entry), *([entry.hint] if entry.hint else [])]


def _fault_lines(entry: Entry) -> list[str]:
    place = entry.place if isinstance(entry, PartitionEntry) else None
    if place is None:
        return []
    nodes = place.first.nodes
    node_names = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    difference = _difference_text(place.text, place.error)
    lines = [f"first wrong: {_operator_text(place.first)}, {difference} (ONNX nodes {node_names or 'none'})"]
    if place.since != place.first:
        lines.append(
            f"the fault may begin at {_operator_text(place.since)}: the values from there to the operator above cannot be "
            "compared"
        )
    return lines


def _operator_text(call: Operator) -> str:
    return f"{call.operator} in {call.module or 'the model itself'}"
