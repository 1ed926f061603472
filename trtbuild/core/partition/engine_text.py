"""The description of one engine in a ``.pt2`` file: the text argument of the operator call that runs the engine.

The text is JSON. Equal descriptions have equal texts, so a process uses the text as the engine's name, and opens the engine
only once per device. A field with a default may be missing in a text that an earlier version of trtbuild wrote. The default
is the behaviour of that version.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.partition.partitions import TensorType
from trtbuild.core.values.expressions import freeze

SCHEMA = "trtbuild.engine/1"


@dataclass(frozen=True)
class EngineText:
    """One engine: its model and partition, its tensors, its target, and the digests of its plan and reference program.

    Sizes in `inputs` and `outputs` are expressions of the graph's symbols (dynamic dimensions). A symbol with `multiple_of`
    counts multiples, not elements. Each of `profiles` has a shape range for each input of the engine, in order. `sms` are
    the GPU architectures for which the plan has code. `compatibility` is the target's hardware compatibility level.

    On a CPU, the reference program runs in place of the engine. `reference` is None if the package has no such program."""

    model: str
    partition: str
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    profiles: tuple[tuple[ShapeRange, ...], ...]
    profile_names: tuple[str, ...]
    target: str
    sm: int
    sms: tuple[int, ...]
    toolchain: str
    version: str
    version_compatible: bool
    compatibility: str
    platform: str
    plan: str
    reference: str | None = None

    def to_text(self) -> str:
        """The JSON text."""
        data = {
            **vars(self),
            "inputs": [vars(tensor_type) for tensor_type in self.inputs],
            "outputs": [vars(tensor_type) for tensor_type in self.outputs],
            "profiles": [[vars(shape) for shape in profile] for profile in self.profiles],
        }
        return json.dumps({"schema": SCHEMA, **data}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> EngineText:
        """The inverse of `to_text`. Raises ValueError, KeyError, TypeError or AttributeError for an invalid text."""
        try:
            return cls._from_data(json.loads(text))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    @classmethod
    def _from_data(cls, data: Any) -> EngineText:
        schema = data.pop("schema")
        if schema != SCHEMA:
            raise ValueError(f"it has the format {schema!r}, but this version of trtbuild reads {SCHEMA}")
        fields = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        fields["inputs"] = tuple(_tensor_type(entry) for entry in data["inputs"])
        fields["outputs"] = tuple(_tensor_type(entry) for entry in data["outputs"])
        fields["profiles"] = tuple(
            tuple(ShapeRange(*(tuple(shape[which]) for which in ("min", "opt", "max"))) for shape in profile)
            for profile in data["profiles"]
        )
        fields["profile_names"], fields["sms"] = tuple(data["profile_names"]), tuple(data["sms"])
        return cls(**fields)


def _tensor_type(entry: Any) -> TensorType:
    return TensorType(str(entry["dtype"]), tuple(freeze(size) for size in entry["shape"]))
