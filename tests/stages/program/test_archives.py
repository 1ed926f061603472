"""Archives that are written and read quickly are those that torch writes and reads."""

from __future__ import annotations

import inspect
import io
import threading
import typing

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
    """The graph, the types of all its values and the ranges of its symbols."""
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


def test_the_work_that_is_left_out_is_done_outside_the_block(
    program: ExportedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names that `archives` replaces are those that torch calls."""
    calls = []
    canonicalize, type_hints = serialize.canonicalize, typing.get_type_hints
    monkeypatch.setattr(serialize, "canonicalize", lambda *a: calls.append("canonicalize") or canonicalize(*a))
    monkeypatch.setattr(typing, "get_type_hints", lambda *a, **k: calls.append("hints") or type_hints(*a, **k))
    archives._type_hints.cache_clear()
    torch.export.load(io.BytesIO(_written(program)))
    slowly = {name: calls.count(name) for name in ("canonicalize", "hints")}
    calls.clear()
    with quick_archives():
        torch.export.load(io.BytesIO(_written(program)))
    quickly = {name: calls.count(name) for name in ("canonicalize", "hints")}
    assert slowly["canonicalize"] == 1
    assert quickly["canonicalize"] == 0
    assert 0 < quickly["hints"] < slowly["hints"] / 4
    archives._type_hints.cache_clear()


def test_torch_does_not_use_the_canonical_form_that_it_makes() -> None:
    lines = [line.strip() for line in inspect.getsource(serialize).splitlines() if "canonicalize(" in line]
    assert lines == ["canonicalize(serialized_ep, set(constants.keys()))", "def canonicalize("]


def test_a_block_changes_nothing_with_another_release_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    before = serialize.typing, serialize.canonicalize
    with quick_archives():
        assert (serialize.typing, serialize.canonicalize) == before


def test_the_names_are_restored_when_the_last_block_ends() -> None:
    before = serialize.typing, serialize.canonicalize
    inside, ready = threading.Event(), threading.Event()

    def hold() -> None:
        with quick_archives():
            ready.set()
            inside.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert ready.wait(60)
    with pytest.raises(KeyError), quick_archives():
        raise KeyError
    assert serialize.typing is not before[0]
    inside.set()
    other.join()
    assert (serialize.typing, serialize.canonicalize) == before
