"""`restorer` restores the structure of a PyTorch module's outputs."""

from __future__ import annotations

import dataclasses
import subprocess  # noqa: F401 - loads `Popen` for a test
import sys
import types
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


class Outer:
    @dataclasses.dataclass
    class Inner:
        logits: object


@dataclasses.dataclass
class Strict:
    logits: object
    needed: object


TENSORS = [{"kind": "tensor", "index": number} for number in range(3)]


def test_restores_plain_structures() -> None:
    tree = {
        "kind": "dict",
        "keys": ["a", 1],
        "items": [
            {"kind": "list", "items": [TENSORS[2], TENSORS[0], TENSORS[2]]},
            {"kind": "tuple", "items": [{"kind": "none"}, {"kind": "constant", "value": to_json(0.1)}, TENSORS[1]]},
        ],
    }
    assert restorer(tree)(["x", "y", "z"]) == {"a": ["z", "x", "z"], 1: (None, 0.1, "y")}
    assert restorer(TENSORS[1])(["x", "y"]) == "y"
    assert restorer({"kind": "tuple", "items": []})([]) == ()


def test_a_number_is_read_from_a_tensor_or_an_array() -> None:
    class Array:
        """An array of a library that is not PyTorch."""

        def numpy(self) -> np.ndarray:
            return np.array(3)

    number = {"kind": "number", "type": "int", "index": 0}
    for scalar in (torch.tensor(3), Array()):
        found = restorer({"kind": "tuple", "items": [number, TENSORS[1], number]})([scalar, "y"])
        assert found == (3, "y", 3) and type(found[0]) is int
    assert restorer({**number, "type": "bool"})([torch.tensor(True)]) is True


@pytest.mark.parametrize(("kind", "owner"), [("namedtuple", Pair), ("dataclass", Result), ("dataclass", Outer.Inner)])
def test_restores_a_class_whose_module_is_loaded(kind: str, owner: type) -> None:
    fields = list(owner.__annotations__)
    tree = {"kind": kind, "type": f"{__name__}:{owner.__qualname__}", "keys": fields, "items": TENSORS[: len(fields)]}
    assert restorer(tree)(["x", "y"]) == owner(*["x", "y"][: len(fields)])


@dataclasses.dataclass
class Doubled:
    """A class that computes a field when it is created."""

    logits: int

    def __post_init__(self) -> None:
        self.logits = self.logits * 2


def test_a_dataclass_does_not_compute_its_fields_again() -> None:
    tree = {"kind": "dataclass", "type": f"{__name__}:Doubled", "keys": ["logits"], "items": TENSORS[:1]}
    result = restorer(tree)([Doubled(3).logits])
    assert isinstance(result, Doubled) and result.logits == 6


@pytest.mark.parametrize(
    "name", ["no.such.module:Result", f"{__name__}:Gone", f"{__name__}:Strict", "builtins:len", "builtins:dict", "sys"]
)
def test_replaces_a_missing_or_changed_class_by_fields(name: str) -> None:
    tree = {"kind": "dataclass", "type": name, "keys": ["logits", "hidden"], "items": [TENSORS[1], TENSORS[0]]}
    fields = restorer(tree)(["x", "y"])
    assert isinstance(fields, Fields)
    assert (fields.logits, fields["hidden"], fields[0], fields[-1]) == ("y", "x", "y", "x")  # type: ignore[attr-defined]
    assert list(fields) == ["y", "x"] and fields[:1] == ("y",) and len(fields) == 2
    assert dict(zip(fields.keys(), fields, strict=True)) == {"logits": "y", "hidden": "x"}
    assert repr(fields).endswith("(logits='y', hidden='x')")
    with pytest.raises(KeyError):
        fields["loss"]
    with pytest.raises(AttributeError):
        fields.loss  # type: ignore[attr-defined]  # noqa: B018


def test_calls_only_named_tuples_and_dataclasses(tmp_path: Path) -> None:
    """A package can name any class. A call of the class in this test would run a command."""
    assert "subprocess" in sys.modules
    command = ["touch", str(tmp_path / "ran")]
    items = [{"kind": "list", "items": [{"kind": "constant", "value": to_json(word)} for word in command]}]
    fields = restorer({"kind": "dataclass", "type": "subprocess:Popen", "keys": ["args"], "items": items})([])
    assert isinstance(fields, Fields) and fields["args"] == command
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["lazy_module:Result", "lazy_module:Result.Inner"])
def test_imports_nothing_to_find_a_class(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Many Python packages import a module in ``__getattr__``, when an attribute is read for the first time."""
    module, asked = types.ModuleType("lazy_module"), []

    def import_attribute(attribute: str) -> object:
        asked.append(attribute)
        raise ImportError(f"{attribute} needs a package that is not installed")

    vars(module)["__getattr__"] = import_attribute
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    with pytest.raises(ImportError):
        _ = module.Other
    tree = {"kind": "dataclass", "type": name, "keys": ["logits"], "items": TENSORS[:1]}
    assert isinstance(restorer(tree)(["x"]), Fields)
    assert asked == ["Other"]
    vars(module)["Result"] = Result  # a successful import would also set this attribute
    assert isinstance(restorer(tree)(["x"]), Fields if name.endswith("Inner") else Result)
