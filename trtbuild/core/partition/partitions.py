"""The partitions of a model: the result of the partition step, a JSON document.

A value that a partition reads has one of these names: ``input:k`` (input k of the model), ``weight:k`` (weight k of the
program) or ``<partition>:k`` (output k of a partition). The partitions are in an order in which they can run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trtbuild.core.values.expressions import Expression

SCHEMA = "trtbuild.partitions/1"


@dataclass(frozen=True)
class TensorType:
    """A dtype (torch's name without ``torch.``) and a shape of size expressions."""

    dtype: str
    shape: tuple[Expression, ...]


@dataclass(frozen=True)
class Partition:
    """One partition. `graph` is the SHA-256 of its program as text without names, so it is equal for equal programs.

    `weights` are the numbers of the weights that it uses. `inputs` are names of values, with their types."""

    name: str
    kind: Literal["tensorrt", "torch"]
    graph: str
    weights: tuple[int, ...]
    inputs: tuple[tuple[str, TensorType], ...]
    outputs: tuple[TensorType, ...]
    #: For each operator call of the partition's program, the number of the same call in the lowered program of the model;
    #: -1 for a call that the partition step added to compute a size.
    calls: tuple[int, ...]
    #: Operator → the reason why it stays in PyTorch; for Torch partitions only.
    reasons: Mapping[str, str] = field(default_factory=dict)
    #: The operators that are TensorRT plugins in its engine (``mylib::roi``), sorted. The JSON leaves out an empty tuple.
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Partitions:
    """All partitions of a model. `outputs` has the name of the value that is returned for each output of the model."""

    partitions: tuple[Partition, ...]
    outputs: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        partitions = [
            {
                **{name: value for name, value in vars(partition).items() if name != "plugins" or value},
                "inputs": [[source, vars(tensor_type)] for source, tensor_type in partition.inputs],
                "outputs": [vars(tensor_type) for tensor_type in partition.outputs],
                "reasons": dict(partition.reasons),
            }
            for partition in self.partitions
        ]
        return {"schema": SCHEMA, "partitions": partitions, "outputs": self.outputs}

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Partitions:
        """Read a document. Raises ValueError, KeyError or TypeError if the document has another structure.

        The kind of a partition and the types of its fields are not checked."""
        return cls.from_json(json.loads(data))

    @classmethod
    def from_json(cls, document: Any) -> Partitions:
        """The inverse of `to_json`. The tuples may be lists, as in parsed JSON. Raises the errors of `from_bytes`."""
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"not a {SCHEMA} document")
        if not all(isinstance(source, str) for source in document["outputs"]):
            raise ValueError("outputs are names")
        return cls(
            tuple(
                Partition(
                    name=entry["name"],
                    kind=entry["kind"],
                    graph=entry["graph"],
                    weights=tuple(entry["weights"]),
                    inputs=tuple((source, _tensor_type(tensor_type)) for source, tensor_type in entry["inputs"]),
                    outputs=tuple(_tensor_type(tensor_type) for tensor_type in entry["outputs"]),
                    calls=tuple(entry["calls"]),
                    reasons=dict(entry["reasons"]),
                    plugins=tuple(entry.get("plugins", ())),
                )
                for entry in document["partitions"]
            ),
            tuple(document["outputs"]),
        )


def _tensor_type(entry: Mapping[str, object]) -> TensorType:
    # Expressions stay lists, as in JSON. All functions of `trtbuild.core.values.expressions` accept lists, too.
    return TensorType(str(entry["dtype"]), tuple(entry["shape"]))  # type: ignore[arg-type]
