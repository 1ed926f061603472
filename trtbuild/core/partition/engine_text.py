"""What a ``.pt2`` file says of one engine: the text that its call of the operator carries, as values.

JSON (``trtbuild.engine/1``) with one spelling for one meaning, so that a process opens each engine once, by its text.
Fields that came later are optional, with the meaning that their absence had.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.partition.partitions import TensorType
from trtbuild.core.values.expressions import Expression

SCHEMA = "trtbuild.engine/1"


@dataclass(frozen=True)
class EngineText:
    """One engine: its place in the model, what its tensors are, what it was built for, and the digests of its plan and of
    its reference program (None: there is none). The graph counts symbols in units; `profiles` are of the engine's own
    inputs, in order."""

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
        """The text."""
        data = {
            **vars(self),
            "inputs": [vars(kind) for kind in self.inputs],
            "outputs": [vars(kind) for kind in self.outputs],
            "profiles": [[vars(shape) for shape in profile] for profile in self.profiles],
        }
        return json.dumps({"schema": SCHEMA, **data}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> EngineText:
        """The inverse of `to_text`. Raises ValueError, KeyError or TypeError for anything else."""
        data = json.loads(text)
        schema = data.pop("schema")
        if schema != SCHEMA:
            raise ValueError(f"it is of the format {schema!r}, and this trtbuild reads {SCHEMA}")
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        known["inputs"] = tuple(_kind(entry) for entry in data["inputs"])
        known["outputs"] = tuple(_kind(entry) for entry in data["outputs"])
        known["profiles"] = tuple(
            tuple(ShapeRange(*(tuple(shape[which]) for which in ("min", "opt", "max"))) for shape in profile)
            for profile in data["profiles"]
        )
        known["profile_names"], known["sms"] = tuple(data["profile_names"]), tuple(data["sms"])
        return cls(**known)


def _kind(entry: Any) -> TensorType:
    return TensorType(str(entry["dtype"]), tuple(_frozen(size) for size in entry["shape"]))


def _frozen(size: Any) -> Expression:
    return tuple(map(_frozen, size)) if isinstance(size, list) else size
