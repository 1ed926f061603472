"""The declared parts of the recipe of a step that runs user code (calibrate, trace): they are known before the code runs.

The other parts are observations of what the code reads, such as files (`core.recipes.keys.user_code`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trtbuild.core.model.shapes import ShapePlan, pairs_of_separate_symbols, proof_points
from trtbuild.core.model.spec import Model
from trtbuild.core.recipes.key_fields import fields_of
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.values.encoding import Value, key_order

#: The stages that run user code. Their dependencies are known only after they have run.
UserCodeStage = Literal["calibrate", "trace"]


@dataclass(frozen=True)
class Declared:
    """The declared parts of the recipe of a step that runs user code."""

    stage: UserCodeStage
    parts: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, recipe: Recipe) -> Declared:
        """The declared parts of a recipe."""
        stage: UserCodeStage = "calibrate" if recipe.stage == "calibrate" else "trace"
        # only the names of dependencies have a colon: ``file:net.py``
        return cls(stage, tuple(part for part in recipe.parts if ":" not in part[0]))

    def without_versions(self) -> Declared:
        """The declared parts on a machine that cannot run the step, for example without torch."""
        return Declared(self.stage, tuple(part for part in self.parts if part[0] != "versions"))


def trace_declared(
    model: Model,
    shapes: ShapePlan,
    weights: Sequence[tuple[str, str, Sequence[int]]] | None,
    platform: str,
    versions: Mapping[str, str] | None,
    quantizers: str | None = None,
) -> Declared:
    """The declared parts of a trace.

    `weights` has the name, dtype and shape of each tensor in the weights file; None without a weights file. `versions` is
    None on a machine that cannot trace the model. `quantizers` is the digest of a calibration's result; None without a
    calibration.
    """
    inputs: list[Value] = []
    for entry, axes in zip(model.inputs, shapes.shapes, strict=True):
        # The name is a part, because keyword inputs are passed by name, and outputs must not have the names of inputs.
        input_fields = fields_of(entry)
        input_fields["shape"] = [axis if isinstance(axis, int) else {"symbol": axis.symbol} for axis in axes]
        inputs.append(input_fields)
    parts: list[tuple[str, Value]] = [
        ("source", fields_of(model.source)),
        ("inputs", inputs),
        ("dims", [fields_of(symbol) for symbol in shapes.symbols]),
        ("proven at", [list(point) for point in proof_points(shapes, model.profiles)]),
        ("weights", None if weights is None else [[name, dtype, list(shape)] for name, dtype, shape in weights]),
        ("platform", platform),
    ]
    # If the code of the model needs two dims to be equal, the trace replaces both symbols by one. It must not do this for
    # `separate_pairs`: the two symbols of such a pair have the same range, but some profile gives them different sizes.
    if separate_pairs := pairs_of_separate_symbols(shapes, model.profiles):
        parts.append(("opts differ", [list(pair) for pair in separate_pairs]))
    if quantizers is not None:
        parts.append(("quantizers", quantizers))
    parts += _argument_order(model.source.kwargs)
    if model.state:
        parts.append(("state", list(model.state)))
    if versions is not None:
        parts.append(("versions", dict(versions)))
    return Declared("trace", tuple(parts))


def calibrate_declared(model: Model, platform: str, versions: Mapping[str, str] | None) -> Declared:
    """The declared parts of a calibration. `versions` is None on a machine that cannot calibrate the model.

    The version of Model Optimizer is not declared, because the step discovers it as a dependency. The profiles are not a
    part, because calibration data may have any size."""
    parts: list[tuple[str, Value]] = [
        ("source", fields_of(model.source)),
        ("inputs", [fields_of(entry) for entry in model.inputs]),
        ("quantization", fields_of(model.quantization)),
        ("platform", platform),
    ]
    data = model.quantization.calibration if model.quantization is not None else None
    parts += _argument_order(model.source.kwargs, {} if data is None else data.kwargs)
    if versions is not None:
        parts.append(("versions", dict(versions)))
    return Declared("calibrate", tuple(parts))


def _argument_order(*kwargs: Mapping[str, Value]) -> list[tuple[str, Value]]:
    """The part with the order of the keys of each mapping in the arguments, because code may depend on this order.

    The order of the arguments themselves is left out, because they are passed by name. If all mappings are sorted, there is
    no part, so that the keys of earlier trtbuild releases stay valid: those releases sorted all mappings."""
    order = key_order([arguments[name] for arguments in kwargs for name in sorted(arguments)])
    return [("argument order", order)] if order else []
