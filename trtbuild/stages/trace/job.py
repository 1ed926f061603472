"""The job of one trace, and its conversion to JSON and back. This module does not import torch, because plans create jobs
without loading torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trtbuild.core.model.shapes import Axis, ShapePlan, Symbol, SymbolAxis, Ties, kept_symbols
from trtbuild.core.model.spec import Input, Source
from trtbuild.core.values.encoding import from_json, to_json_in_order

#: The name, dtype (without ``torch.``) and shape of each tensor of a weights file.
WeightTypes = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class TraceJob:
    """A model to trace.

    `points` are sizes of the symbols (in the order of ``shapes.symbols``) at which the program and the model must
    compute the same results (`proof_points`). `apart` are pairs of symbols that have the same range, but different min, opt
    or max in some profile. The symbols of such a pair are not `alike`. `weights` describes the tensors of the
    ``weights:`` file; None without a file. `origins` is for messages: it maps a dotted path in the manifest's model
    (``inputs.image``, ``dims.height``, ``source``) to ``file:line``.
    """

    source: Source
    inputs: tuple[Input, ...]
    shapes: ShapePlan
    points: tuple[tuple[int, ...], ...] = ()
    weights: WeightTypes | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)
    apart: tuple[tuple[int, int], ...] = ()
    #: The digest of the quantizers that a calibration has found; None without a calibration.
    quantizers: str | None = None
    #: Patterns that match the names of the buffers that a call reads and writes.
    state: tuple[str, ...] = ()

    def alike(self, one: int, other: int) -> bool:
        """Whether two symbols have the same min, opt and max in every profile, and the same ``multiple_of``."""
        first, second = (replace(self.shapes.symbols[number], name="") for number in (one, other))
        return first == second and tuple(sorted((one, other))) not in self.apart

    def tied(self, ties: Ties) -> TraceJob:
        """The job in which the two symbols of each pair in `ties` are one symbol. Its `apart` is empty, because the numbers
        in `apart` are those of the declared symbols."""
        kept_numbers = dict.fromkeys(kept_symbols(len(self.shapes.symbols), ties))
        points = tuple(dict.fromkeys(tuple(point[number] for number in kept_numbers) for point in self.points))
        return replace(self, shapes=self.shapes.merge_ties(ties), points=points, apart=())

    def to_json(self) -> dict[str, Any]:
        """The JSON form of the job. `from_json` makes an equal job from it. In kwargs, floats keep their bits, and inner
        mappings keep their order."""
        source = self.source
        return {
            "source": {
                "kind": source.kind,
                "target": source.target,
                "kwargs": to_json_in_order(dict(sorted(source.kwargs.items()))),
                "deps": list(source.deps),
                "env": list(source.env),
                "cacheable": source.cacheable,
                "roots": list(source.roots),
            },
            "inputs": [[entry.name, entry.dtype, entry.keyword, entry.range] for entry in self.inputs],
            "symbols": [
                [symbol.name, symbol.min, symbol.max, symbol.example, symbol.multiple_of]
                for symbol in self.shapes.symbols
            ],
            "shapes": [[_axis_to_json(axis) for axis in shape] for shape in self.shapes.shapes],
            "points": [list(point) for point in self.points],
            "weights": None
            if self.weights is None
            else [[name, dtype, list(shape)] for name, dtype, shape in self.weights],
            "origins": dict(self.origins),
            "apart": [list(pair) for pair in self.apart],
            "quantizers": self.quantizers,
            "state": list(self.state),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TraceJob:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for data of another form."""
        source = data["source"]
        kwargs = from_json(source["kwargs"])
        if not isinstance(kwargs, Mapping):
            raise ValueError("a source's kwargs must be a mapping")
        weights = data["weights"]
        return cls(
            source=Source(
                kind=source["kind"],
                target=source["target"],
                kwargs=kwargs,
                deps=tuple(source["deps"]),
                env=tuple(source["env"]),
                cacheable=source["cacheable"],
                roots=tuple(source["roots"]),
            ),
            inputs=tuple(
                Input(name, dtype, keyword, None if values is None else (values[0], values[1]))
                for name, dtype, keyword, values in data["inputs"]
            ),
            shapes=ShapePlan(
                symbols=tuple(Symbol(*fields) for fields in data["symbols"]),
                shapes=tuple(tuple(_axis_from_json(axis) for axis in shape) for shape in data["shapes"]),
            ),
            points=tuple(tuple(point) for point in data["points"]),
            weights=None if weights is None else tuple((name, dtype, tuple(shape)) for name, dtype, shape in weights),
            origins=dict(data["origins"]),
            apart=tuple((one, other) for one, other in data["apart"]),
            quantizers=data["quantizers"],
            state=tuple(data["state"]),
        )

    def place(self, *paths: str) -> dict[str, Any]:
        """The arguments ``file`` and ``line`` of an error: the origin of the first of `paths` that has one, or that of the
        source. Empty if neither is known."""
        for path in (*paths, "source"):
            file, _, line = self.origins.get(path, "").rpartition(":")
            if file and line.isdigit():
                return {"file": file, "line": int(line)}
        return {}


def _axis_to_json(axis: Axis) -> Any:
    return axis if isinstance(axis, int) else {"symbol": axis.symbol}


def _axis_from_json(data: Any) -> Axis:
    return data if isinstance(data, int) else SymbolAxis(data["symbol"])
