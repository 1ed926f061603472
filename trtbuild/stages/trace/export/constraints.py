"""Turn torch.export's report about dims into advice for the manifest.

torch.export reports a dim if the model does not allow all its declared sizes. The report uses the names that `torch_name`
makes. This module knows the texts of torch 2.9 to 2.13 (``ShapeEnv.produce_guards`` and ``_suggest_fixes``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trtbuild.core.model.shapes import ShapePlan, axes_of_symbol
from trtbuild.core.model.spec import Input


@dataclass(frozen=True)
class Violation:
    """A dim that the model restricts more than the manifest does. `text` says what is wrong, and `hint` says what to write.

    `path` is the dotted path of the dim in the manifest (`TraceJob.origins`). `symbol` is the number of the dim's symbol.
    `equal_symbol` is the number of a symbol that must always have the same size. `largest_size` is the only size that
    the model allows, or the largest one, if it is less than the declared one. Both fields are None for other restrictions.
    """

    text: str
    hint: str
    path: str
    symbol: int
    equal_symbol: int | None = None
    largest_size: int | None = None


def torch_name(symbol: int) -> str:
    """The name of the torch Dim for symbol number `symbol`. With ``multiple_of: k``, sizes are k times this Dim."""
    return f"trtdim{symbol}"


def describe_symbol(plan: ShapePlan, inputs: Sequence[Input], symbol: int) -> str:
    """A symbol as text for a message: ``dim 'height' (image.2)``, or ``axis image.2`` without a declared dim."""
    name = plan.symbols[symbol].name
    places = axes_of_symbol(plan, inputs, symbol)
    return f"axis {places[0]}" if _has_generated_name(name, places) else f"dim {name!r} ({', '.join(places)})"


def parse_violations(message: str, plan: ShapePlan, inputs: Sequence[Input]) -> list[Violation]:
    """All violations in torch's message; an empty list if the form of the message is not known."""
    result: list[Violation] = []
    _, _, suggestions = message.partition("Suggested fixes:")
    for line in suggestions.splitlines():
        match = re.fullmatch(r"\s*trtdim(\d+) = (.+?)\s*", line)
        if match and int(match[1]) < len(plan.symbols):
            result.append(_violation_of_suggestion(int(match[1]), match[2], plan, inputs))
    if result:
        return result
    for line in message.splitlines():
        match = re.match(r"\s*- .*?\btrtdim(\d+)\b", line)
        if match and int(match[1]) < len(plan.symbols):
            symbol = int(match[1])
            constant = re.search(r"specialized it to be a constant \((\d+)\)", line)
            if constant:  # a dim with ``multiple_of``: the message has the size itself, and no suggestion
                result.append(_fixed_size_violation(symbol, int(constant[1]), plan, inputs))
                continue
            reason = _reason_of_violation(line, plan, inputs)
            remainder = re.search(r"% (\d+)", reason)
            result.append(
                Violation(
                    f"{describe_symbol(plan, inputs, symbol)} cannot be dynamic as declared: {reason}",
                    hint_to_make_static(plan, inputs, symbol, None)
                    + (f"; {_hint_to_pad_always(remainder[1])}" if remainder else ""),
                    _manifest_path(plan, inputs, symbol),
                    symbol,
                )
            )
    return result


def _violation_of_suggestion(symbol: int, suggestion: str, plan: ShapePlan, inputs: Sequence[Input]) -> Violation:
    dim = describe_symbol(plan, inputs, symbol)
    places = axes_of_symbol(plan, inputs, symbol)
    multiple = plan.symbols[symbol].multiple_of
    name = plan.symbols[symbol].name
    path = _manifest_path(plan, inputs, symbol)
    if re.fullmatch(r"\d+", suggestion):
        return _fixed_size_violation(symbol, int(suggestion) * multiple, plan, inputs)
    match = re.fullmatch(r"(\d+)\*_trtdim\d+", suggestion)
    if match:
        step = int(match[1]) * multiple
        return Violation(
            f"{dim} may have any size that is a multiple of {multiple}, but the model needs a multiple of {step}"
            if multiple > 1
            else f"{dim} may have any size, but the model needs a multiple of {step}",
            f"write dims: {{{name}: {{at: [{', '.join(places)}], multiple_of: {step}}}}}; {_hint_to_pad_always(step)}",
            path,
            symbol,
        )
    match = re.fullmatch(r"trtdim(\d+)", suggestion)
    if match and int(match[1]) < len(plan.symbols):
        other_symbol = int(match[1])
        all_places = [*axes_of_symbol(plan, inputs, other_symbol), *places]
        shared = plan.symbols[other_symbol].name
        return Violation(
            f"{dim} must always be as long as {describe_symbol(plan, inputs, other_symbol)}, but they are declared as two "
            "dims",
            f"name one dim for all places: dims: {{{shared}: {{at: [{', '.join(all_places)}]}}}}",
            path,
            symbol,
            equal_symbol=other_symbol,
        )
    match = re.fullmatch(r"Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)", suggestion)
    if match:
        low = int(match[1]) * multiple if match[1] else None
        high = int(match[2]) * multiple if match[2] else None
        bounds = " and ".join([f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None))
        declared = plan.symbols[symbol]
        return Violation(
            f"{dim} is declared {declared.min}..{declared.max}, but the model needs {bounds}",
            f"change the profiles so that {places[0]} is {bounds}; a branch on this size in the model can be two models, "
            "each with its own profiles",
            path,
            symbol,
            largest_size=high if high is not None and high < declared.max else None,
        )
    relation = _with_manifest_names(suggestion, plan, inputs)
    return Violation(
        f"{dim} must always be {relation}, but it is declared as a separate dim",
        f"a manifest cannot express this relation: derive {places[0]}'s size inside the model, or make it static "
        f"(the same min, opt and max in all profiles)",
        path,
        symbol,
    )


def _fixed_size_violation(symbol: int, size: int, plan: ShapePlan, inputs: Sequence[Input]) -> Violation:
    return Violation(
        f"{describe_symbol(plan, inputs, symbol)} is declared dynamic, but the model fixes it to {size}",
        hint_to_make_static(plan, inputs, symbol, size),
        _manifest_path(plan, inputs, symbol),
        symbol,
        largest_size=size,
    )


def hint_to_make_static(plan: ShapePlan, inputs: Sequence[Input], symbol: int, size: int | None) -> str:
    """Advice about a symbol that the model fixes to `size`; None if this size is not known."""
    place = axes_of_symbol(plan, inputs, symbol)[0]
    size_text = "one size" if size is None else str(size)
    return (
        f"make it static: write {size_text} as min, opt and max of {place} in every profile; or keep the model from "
        "turning this size into a Python number (int(), len(), range(), a list of shapes, a branch)"
    )


def _hint_to_pad_always(multiple: int | str) -> str:
    return f"if the model pads the size to a multiple inside a branch, pad by -n % {multiple} without the branch"


def _reason_of_violation(line: str, plan: ShapePlan, inputs: Sequence[Input]) -> str:
    text = line.strip().removeprefix("- ")
    match = re.search(r"satisfy the generated guard (.+?)\.?$", text)
    if match:
        return f"the model only works where {_with_manifest_names(match[1], plan, inputs)}"
    return _with_manifest_names(text, plan, inputs)


def _with_manifest_names(text: str, plan: ShapePlan, inputs: Sequence[Input]) -> str:
    """Replace torch's names in an expression with the manifest's names."""
    # "trtdim0 = L['x'].size()[0]" → "trtdim0"
    text = re.sub(r" = L(?:\['?\w+'?\])+\.size\(\)\[\d+\]", "", text)
    # "L['x'].size()[0]" and "L['args'][1].size()[0]" → "x.0"
    text = re.sub(
        r"L\['(\w+)'\](?:\['?(\w+)'?\])?\.size\(\)\[(\d+)\]",
        lambda m: f"{_input_name(m[1], m[2], inputs)}.{m[3]}",
        text,
    )

    def name(match: re.Match[str]) -> str:
        symbol = int(match[1])
        return plan.symbols[symbol].name if symbol < len(plan.symbols) else match[0]

    return re.sub(r"\b_?trtdim(\d+)\b", name, text)


def _input_name(argument: str, item: str | None, inputs: Sequence[Input]) -> str:
    """The name of the input at ``L[argument]``, or at ``L[argument][item]`` for parameters such as ``*args``."""
    if item is not None and item.isdigit() and argument not in {entry.name for entry in inputs}:
        positional = [entry.name for entry in inputs if not entry.keyword]
        return positional[int(item)] if int(item) < len(positional) else argument
    return item if item is not None and not item.isdigit() else argument


def _manifest_path(plan: ShapePlan, inputs: Sequence[Input], symbol: int) -> str:
    places = axes_of_symbol(plan, inputs, symbol)
    name = plan.symbols[symbol].name
    return f"inputs.{places[0].rpartition('.')[0]}" if _has_generated_name(name, places) else f"dims.{name}"


def _has_generated_name(name: str, places: Sequence[str]) -> bool:
    """Whether `declared_shapes` generated the name, from the first axis of the dim: ``image_0`` for ``image.0``."""
    return name.rstrip("_") == places[0].replace(".", "_")
