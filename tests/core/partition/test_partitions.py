"""The document with the partitions of a model."""

from __future__ import annotations

import json

import pytest

from trtbuild.core.partition.partitions import SCHEMA, Partition, Partitions, TensorType
from trtbuild.core.values.expressions import evaluate

ROWS = TensorType("float16", (["mul", 2, ["sym", 0]], 3))
DOCUMENT = Partitions(
    (
        Partition(
            "encoder.0", "tensorrt", "a" * 64, (1, 0), (("input:0", ROWS), ("weight:2", ROWS)), (ROWS,), (0, 1, -1)
        ),
        Partition(
            "p1", "torch", "b" * 64, (), (("encoder.0:0", ROWS),), (ROWS, ROWS), (2,), {"aten.nms": "no translation"}
        ),
    ),
    ("p1:1", "weight:0"),
)


def test_a_document_is_read_back_from_its_bytes() -> None:
    document = Partitions.from_bytes(DOCUMENT.to_bytes())
    assert document.to_bytes() == DOCUMENT.to_bytes()
    assert (document.outputs, [part.name for part in document.partitions]) == (DOCUMENT.outputs, ["encoder.0", "p1"])
    assert document.partitions[0].inputs[0][0] == "input:0"
    assert document.partitions[1].reasons == {"aten.nms": "no translation"}


def test_sizes_are_read_as_expressions() -> None:
    shape = Partitions.from_bytes(DOCUMENT.to_bytes()).partitions[0].outputs[0].shape
    assert [evaluate(size, [5]) for size in shape] == [10, 3]


def test_the_bytes_are_canonical() -> None:
    data = DOCUMENT.to_bytes()
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
    assert json.loads(data)["schema"] == SCHEMA


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b'{"schema":"trtbuild.partitions/2"}', b"\xff"])
def test_rejects_invalid_documents(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError)):
        Partitions.from_bytes(data)


def test_rejects_outputs_that_are_not_names() -> None:
    for wrong in ([[1]], [None], [0]):
        with pytest.raises(ValueError, match="outputs are names"):
            Partitions.from_bytes(json.dumps({**json.loads(DOCUMENT.to_bytes()), "outputs": wrong}).encode())


def test_rejects_a_partition_that_lacks_a_field() -> None:
    for name in json.loads(DOCUMENT.to_bytes())["partitions"][0]:
        document = json.loads(DOCUMENT.to_bytes())
        del document["partitions"][0][name]
        with pytest.raises((ValueError, KeyError)):
            Partitions.from_bytes(json.dumps(document).encode())
