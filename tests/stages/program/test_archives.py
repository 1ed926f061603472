"""In a block of `quick_archives`, torch writes the same bytes and reads the same programs, but more quickly."""

from __future__ import annotations

import inspect
import io
import threading
import typing
from typing import Any

import pytest
import torch
from torch._export.serde import serialize
from torch.export import Dim, ExportedProgram, export

from trtbuild.stages.program import archives
from trtbuild.stages.program.archives import quick_archives


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.first(image).flatten(2).transpose(1, 2)
        values, places = torch.topk(self.norm(features), 2)
        return values * image.shape[0], places


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    dims = {"image": {0: Dim("batch", min=2, max=8)}}
    return export(_Net().eval(), (torch.zeros(4, 3, 8, 8),), dynamic_shapes=dims)


def _written(program: ExportedProgram) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _text(program: ExportedProgram) -> str:
    values = [(node.name, node.meta.get("val")) for node in program.graph.nodes]
    return f"{program.graph}{values}{program.graph_signature}{program.range_constraints}"


def test_a_quick_archive_has_the_bytes_and_the_program_of_torch(program: ExportedProgram) -> None:
    slow = _written(program)
    read_slowly = torch.export.load(io.BytesIO(slow))
    with quick_archives():
        quick = _written(program)
        read_quickly = torch.export.load(io.BytesIO(quick))
    assert quick == slow
    assert _text(read_quickly) == _text(read_slowly)
    assert _written(read_quickly) == slow


def test_in_a_block_torch_computes_no_canonical_form_and_evaluates_fewer_annotations(
    program: ExportedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts outside a block show that torch calls the functions that `archives` replaces."""
    calls = {"canonicalize": 0, "get_type_hints": 0}

    def count_calls(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)

    count_calls(serialize, "canonicalize")
    count_calls(typing, "get_type_hints")
    archives._type_hints.cache_clear()
    torch.export.load(io.BytesIO(_written(program)))
    calls_outside = dict(calls)
    calls.update(canonicalize=0, get_type_hints=0)
    with quick_archives():
        torch.export.load(io.BytesIO(_written(program)))
    assert (calls_outside["canonicalize"], calls["canonicalize"]) == (1, 0)
    assert 0 < calls["get_type_hints"] < calls_outside["get_type_hints"] / 4


def test_torch_does_not_use_the_canonical_form_that_it_computes() -> None:
    """The only line that calls `canonicalize` ignores the result."""
    lines = [line.strip() for line in inspect.getsource(serialize).splitlines() if "canonicalize(" in line]
    assert lines == ["canonicalize(serialized_ep, set(constants.keys()))", "def canonicalize("]


def test_a_block_changes_nothing_with_another_release_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    before = serialize.typing, serialize.canonicalize
    with quick_archives():
        assert (serialize.typing, serialize.canonicalize) == before


def test_the_functions_of_torch_are_restored_when_the_last_block_ends() -> None:
    before = serialize.typing, serialize.canonicalize
    entered, may_leave = threading.Event(), threading.Event()

    def hold() -> None:
        with quick_archives():
            entered.set()
            may_leave.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert entered.wait(60)
    with pytest.raises(KeyError), quick_archives():
        raise KeyError
    assert serialize.typing is not before[0]  # the block of the other thread is still open
    may_leave.set()
    other.join()
    assert (serialize.typing, serialize.canonicalize) == before
