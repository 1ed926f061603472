"""Tries all operators of `op_db` that support a dtype, with their samples. The cases of `operators.py` are random instead.

Rules
1. A call is an operator with one sample. If samples differ only in their values and sizes, the first is used. At most
   `_MOST_CALLS` calls of an operator are tried. Samples with empty tensors are left out: a dynamic axis has no size 0.
2. The inputs of a call have dynamic axes. The axes that have the same size in the sample have the same size in each run.
3. If PyTorch cannot run a call at all its sizes, or if trtbuild refuses the call, a simpler `Form` of the call is tried.
4. Calls with the same form are tried together in one module, because this is faster. If the module has a finding, or is
   refused, each of its calls is tried alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from tests.fuzz.modules import module_from_text
from tests.fuzz.operators import OperatorCall, calls_of, operators
from tests.fuzz.pipeline import Axis, ModuleCase
from tests.fuzz.ranges import UnusableCase, check_usable
from tests.fuzz.trying import FINDINGS, Outcome, try_case
from trtbuild.core.model.spec import NamedDim

#: The largest number of calls that are tried for an operator, and the largest number of calls in one module.
_MOST_CALLS, _CALLS_PER_MODULE = 12, 4


@dataclass(frozen=True)
class Form:
    """Which tensors of a call are inputs, and which of their axes are dynamic.

    `margin` has the distances of min and of max from the size in the sample. It is None if no axis is dynamic.
    """

    margin: tuple[int, int] | None
    first_input_only: bool = False
    first_axis_only: bool = False


#: The forms in the order in which they are tried: from the most general form to the simplest one.
FORMS = (
    Form((9, 5)),
    Form((0, 5)),
    Form((1, 1), first_axis_only=True),
    Form((0, 5), first_input_only=True),
    Form((0, 2), first_input_only=True, first_axis_only=True),
    Form(None),
    Form(None, first_input_only=True),
)


def try_samples(number: int, dtype: str, try_one: Callable[[ModuleCase], Outcome] | None = None) -> Outcome:
    """Try the calls of the operator at position `number`, and return one outcome for all. `try_one` tries a case."""
    op = operators()[number]
    try:
        calls = _different_calls(calls_of(op, getattr(torch, dtype), seed=number))
    except UnusableCase as error:
        return Outcome(number, "skipped", str(error).partition(":")[0], (str(error),))
    if not calls:
        return Outcome(number, "skipped", "samples", (f"{op.name} has only samples with empty tensors",))
    outcomes = list(_outcomes(calls, try_one or _try_case))
    found = [outcome for outcome in outcomes if outcome.verdict in FINDINGS]
    if found:
        cases = "\n".join("\n".join((outcome.case, *outcome.details)) for outcome in found)
        return Outcome(number, found[0].verdict, f"{op.name}: {found[0].group}", (), cases)
    unchecked = tuple(dict.fromkeys(text for outcome in outcomes for text in outcome.unchecked))
    reasons = tuple(dict.fromkeys(detail for outcome in outcomes for detail in outcome.details))
    best = min(outcomes, key=lambda outcome: ("built", "refused", "skipped").index(outcome.verdict))
    return Outcome(number, best.verdict, best.group, reasons, op.name, unchecked)


def _different_calls(calls: Sequence[OperatorCall]) -> list[OperatorCall]:
    """Calls with different arguments (rule 1)."""
    different: dict[object, OperatorCall] = {}
    for call in calls:
        if all(value.numel() for value in call.tensors):
            different.setdefault((call.text, tuple(value.dim() for value in call.tensors)), call)
    chosen = list(different.values())
    step = max(1.0, len(chosen) / _MOST_CALLS)
    return [chosen[int(k * step)] for k in range(min(len(chosen), _MOST_CALLS))]


def _try_case(case: ModuleCase) -> Outcome:
    return try_case(case, engines=False)


def _outcomes(calls: Sequence[OperatorCall], try_one: Callable[[ModuleCase], Outcome]) -> Iterator[Outcome]:
    by_form: dict[Form, list[OperatorCall]] = {}
    for call in calls:
        try:
            by_form.setdefault(next(_usable_forms(call, FORMS)), []).append(call)
        except UnusableCase as error:
            yield Outcome(-1, "skipped", str(error).partition(":")[0], (str(error),))
    for form, calls_of_form in by_form.items():
        for first in range(0, len(calls_of_form), _CALLS_PER_MODULE):
            together = calls_of_form[first : first + _CALLS_PER_MODULE]
            outcome = try_one(_case(together, form))
            if outcome.verdict == "built":
                yield outcome
            else:
                yield from (_outcome_alone(call, form, try_one) for call in together)


def _usable_forms(call: OperatorCall, forms: Sequence[Form]) -> Iterator[Form]:
    """The forms that PyTorch can run. Raises UnusableCase, with the last reason, after the last form."""
    reason = UnusableCase("forms: the call has no usable form")
    for form in forms:
        try:
            check_usable(_case([call], form))
        except UnusableCase as error:
            reason = error
        else:
            yield form
    raise reason


def _outcome_alone(call: OperatorCall, form: Form, try_one: Callable[[ModuleCase], Outcome]) -> Outcome:
    """Try a call in `form` and simpler forms. Return the outcome of the first form that is not refused, or the last one."""
    outcome = Outcome(-1, "skipped", "forms")
    try:
        for usable in _usable_forms(call, FORMS[FORMS.index(form) :]):
            outcome = try_one(_case([call], usable))
            if outcome.verdict != "refused":
                break
    except UnusableCase:
        pass  # the last form was refused
    return outcome


def _case(calls: Sequence[OperatorCall], form: Form) -> ModuleCase:
    statements: list[str] = []
    inputs: list[tuple[str, list[Axis]]] = []
    parts: dict[str, torch.Tensor] = {}
    names: dict[str, object] = {}
    dims: list[NamedDim] = []
    for number, call in enumerate(calls):
        places: dict[int, list[tuple[str, int]]] = {}  # size in the sample → axes
        arguments = []
        for k, tensor in enumerate(call.tensors):
            if k and form.first_input_only:
                arguments.append(f"self.c{len(parts)}")
                parts[f"c{len(parts)}"] = tensor
                continue
            name = f"x{len(inputs)}"
            arguments.append(name)
            axes: list[Axis] = list(tensor.shape)
            for axis, size in enumerate(tensor.shape):
                if form.margin and size > 1 and (axis == 0 or not form.first_axis_only):
                    axes[axis] = max(1, size - form.margin[0]), size, size + form.margin[1]
                    places.setdefault(size, []).append((name, axis))
            inputs.append((str(tensor.dtype).removeprefix("torch."), axes))
        dims += [NamedDim(f"d{number}_{size}", tuple(at), 1) for size, at in places.items() if len(at) > 1]
        statements.append(f"y{number} = {call.text.format(*arguments)}")
        names |= call.names
    results = ", ".join(f"y{number}" for number in range(len(calls)))
    module = module_from_text(statements, results, len(inputs), parts, names)
    return ModuleCase(module, inputs, tuple(dims))
