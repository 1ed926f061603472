"""An engine is captured as a CUDA graph for each shape. Replays of the graph give correct results."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime import fake_tensorrt
from tests.runtime.fake_tensorrt.samples import WIDTH
from tests.runtime.rigs import Rig
from trtbuild.runtime.engines import graphs


def test_replays_the_graph_of_a_known_shape(rig: Rig) -> None:
    part, stream = rig.part("wide", graphs=True), rig.stream()
    for rows in (2, 3, 2, 3, 2):
        value, data = rig.values(rows, WIDTH, stream=stream, start=rows)
        (output,) = part([value], rig.call(rows, stream=stream))
        np.testing.assert_array_equal(output.numpy(), data * 0.125)
    # Each shape needs one normal run and one captured run. Later calls only replay the graph.
    assert rig.trt.calls["execute_async_v3"] == 4
    assert rig.trt.contexts_made == 2


def test_outputs_of_a_replay_are_new_tensors(rig: Rig) -> None:
    part, stream = rig.part("affine", graphs=True), rig.stream()
    results = []
    for turn in range(4):
        value, data = rig.values(2, 4, stream=stream, start=turn * 10)
        results.append((part([value], rig.call(2, stream=stream))[0], data))
    assert len({output.data_ptr() for output, _ in results}) == 4
    for output, data in results:
        np.testing.assert_array_equal(output.numpy(), data * 2 + 1)


def test_captured_graphs_keep_their_workspace_when_it_grows(rig: Rig) -> None:
    part, stream = rig.part("wide", graphs=True), rig.stream()
    value, data = rig.values(2, WIDTH, stream=stream)
    part([value], rig.call(2, stream=stream))
    with rig.memory.on_device():
        workspace = rig.workspaces.workspace_for(stream)
        workspace.reserve(workspace.size_bytes * 2)
    (output,) = part([value], rig.call(2, stream=stream))
    np.testing.assert_array_equal(output.numpy(), data * 0.125)


def test_drops_the_oldest_graph_first(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    part, stream = rig.part("affine", graphs=True), rig.stream()
    for rows in (1, 2, 3, 1):
        value, data = rig.values(rows, 4, stream=stream)
        (output,) = part([value], rig.call(rows, stream=stream))
        np.testing.assert_array_equal(output.numpy(), data * 2 + 1)
    assert rig.trt.contexts_made == 4  # each graph has a context, and the graph of 1 row is captured twice


def test_an_engine_that_cannot_be_captured_runs_with_a_warning(rig: Rig) -> None:
    part, stream = rig.part("nonzero", graphs=True), rig.stream()
    with pytest.warns(RuntimeWarning, match="nonzero runs without CUDA graphs: it has outputs whose size"):
        part([rig.array(np.float32([0, 1]), stream)], rig.call(2, stream=stream))
    (output,) = part([rig.array(np.float32([2, 1, 0]), stream)], rig.call(3, stream=stream))
    np.testing.assert_array_equal(output.numpy(), [[0, 1]])


def test_runs_without_a_graph_if_the_capture_fails(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    part, stream = rig.part("affine", graphs=True), rig.stream()
    execute, rejected = fake_tensorrt._Context._execute, []

    def refuse_capture(self: fake_tensorrt._Context, stream: int) -> bool:
        if stream in rig.gpu.captures:
            rejected.append(stream)
            rig.trt.log_messages([("ERROR", "not while capturing")])
            return False
        return execute(self, stream)

    monkeypatch.setattr(fake_tensorrt._Context, "_execute", refuse_capture)
    value, data = rig.values(2, 4, stream=stream)
    with pytest.warns(RuntimeWarning, match="not while capturing"):
        (output,) = part([value], rig.call(2, stream=stream))
    assert rejected
    np.testing.assert_array_equal(output.numpy(), data * 2 + 1)
    np.testing.assert_array_equal(part([value], rig.call(2, stream=stream))[0].numpy(), data * 2 + 1)


def test_a_stream_is_not_used_again_while_it_is_captured(rig: Rig) -> None:
    """If another thread used the stream, that thread's work would be added to the graph."""
    captured: list[bool] = []
    with rig.memory.on_device():
        rig.memory.capture(lambda handle: captured.append(handle in rig.memory.idle_streams))
    assert captured == [False]
