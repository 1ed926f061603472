"""The structure that the original module returns comes back."""

from __future__ import annotations

import dataclasses
import subprocess  # noqa: F401 - the class that must not be called is loaded
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from trtbuild.core.values.encoding import to_json
from trtbuild.runtime.calls.output_tree import Fields, restorer


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Result:
    logits: object
    hidden: object = None


@dataclasses.dataclass
class Strict:
    logits: object
    needed: object


LEAF = [{"kind": "tensor", "index": number} for number in range(3)]


def test_plain_structures() -> None:
    tree = {
        "kind": "dict",
        "keys": ["a", 1],
        "items": [
            {"kind": "list", "items": [LEAF[2], LEAF[0], LEAF[2]]},
            {"kind": "tuple", "items": [{"kind": "none"}, {"kind": "constant", "value": to_json(0.1)}, LEAF[1]]},
        ],
    }
    assert restorer(tree)(["x", "y", "z"]) == {"a": ["z", "x", "z"], 1: (None, 0.1, "y")}
    assert restorer(LEAF[1])(["x", "y"]) == "y"
    assert restorer({"kind": "tuple", "items": []})([]) == ()


def test_a_number_is_read_from_a_tensor_or_an_array() -> None:
    class Array:
        """An array of a library that is not PyTorch."""

        def numpy(self) -> np.ndarray:
            return np.array(3)

    number = {"kind": "number", "type": "int", "index": 0}
    for scalar in (torch.tensor(3), Array()):
        found = restorer({"kind": "tuple", "items": [number, LEAF[1], number]})([scalar, "y"])
        assert found == (3, "y", 3) and type(found[0]) is int
    assert restorer({**number, "type": "bool"})([torch.tensor(True)]) is True


@pytest.mark.parametrize(("kind", "owner"), [("namedtuple", Pair), ("dataclass", Result)])
def test_a_class_whose_module_is_loaded(kind: str, owner: type) -> None:
    fields = list(owner.__annotations__)
    tree = {"kind": kind, "type": f"{__name__}:{owner.__qualname__}", "keys": fields, "items": LEAF[:2]}
    assert restorer(tree)(["x", "y"]) == owner("x", "y")


@pytest.mark.parametrize(
    "name", ["no.such.module:Result", f"{__name__}:Gone", f"{__name__}:Strict", "builtins:len", "builtins:dict", "sys"]
)
def test_a_missing_or_changed_class_has_a_stand_in(name: str) -> None:
    tree = {"kind": "dataclass", "type": name, "keys": ["logits", "hidden"], "items": [LEAF[1], LEAF[0]]}
    found = restorer(tree)(["x", "y"])
    assert isinstance(found, Fields)
    assert (found.logits, found["hidden"], found[0], found[-1]) == ("y", "x", "y", "x")  # type: ignore[attr-defined]
    assert list(found) == ["y", "x"] and found[:1] == ("y",) and len(found) == 2
    assert dict(zip(found.keys(), found, strict=True)) == {"logits": "y", "hidden": "x"}
    assert repr(found).endswith("(logits='y', hidden='x')")
    with pytest.raises(KeyError):
        found["loss"]
    with pytest.raises(AttributeError):
        found.loss  # type: ignore[attr-defined]  # noqa: B018


def test_no_other_class_is_called(tmp_path: Path) -> None:
    """Where a package comes from is not where its class comes from: this one would run a command."""
    assert "subprocess" in sys.modules
    command = ["touch", str(tmp_path / "ran")]
    items = [{"kind": "list", "items": [{"kind": "constant", "value": to_json(word)} for word in command]}]
    found = restorer({"kind": "dataclass", "type": "subprocess:Popen", "keys": ["args"], "items": items})([])
    assert isinstance(found, Fields) and found["args"] == command
    assert not (tmp_path / "ran").exists()
