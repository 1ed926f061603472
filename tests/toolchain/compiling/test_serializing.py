"""The builder of the real TensorRT-RTX passes a plan on in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import tensorrt_rtx

from trtbuild.errors import StoreUnavailable
from trtbuild.toolchain.compiling import serializing
from trtbuild.toolchain.compiling.compiler import compile_engine, compile_to
from trtbuild.toolchain.compiling.serializing import serialize_network


def test_the_pieces_are_the_bytes_of_a_plan_that_is_built_in_memory(
    mlp_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[bytes] = []
    with monkeypatch.context() as patch:
        patch.setattr(serializing, "PIECE_BYTES", 1)
        patch.delattr(tensorrt_rtx.Builder, "build_serialized_network")  # so the plan comes as a stream
        compiled = compile_to(lambda piece: pieces.append(bytes(piece)), mlp_job.job, mlp_job.read)
    assert compiled.statistics["plan_bytes"] == sum(map(len, pieces))
    with monkeypatch.context() as patch:
        patch.delattr(tensorrt_rtx.Builder, "build_serialized_network_to_stream")  # a small network needs no stream
        assert bytes(compile_engine(mlp_job.job, mlp_job.read).plan) == b"".join(pieces)
    monkeypatch.setattr(serializing, "PIECE_BYTES", 1)
    monkeypatch.delattr(tensorrt_rtx, "IStreamWriter")  # as in a library without streams
    assert bytes(compile_engine(mlp_job.job, mlp_job.read).plan) == b"".join(pieces)


@pytest.mark.parametrize("piece_bytes", [1, serializing.PIECE_BYTES], ids=["stream", "memory"])
def test_raises_the_error_of_the_writer_and_writes_no_more(
    mlp_job: Any, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(serializing, "PIECE_BYTES", piece_bytes)
    written_sizes: list[int] = []

    def fail(piece: bytes | memoryview) -> None:
        written_sizes.append(len(piece))
        raise StoreUnavailable("the cache cannot be used: No space left on device")

    with pytest.raises(StoreUnavailable, match="No space left"):
        compile_to(fail, mlp_job.job, mlp_job.read)
    assert len(written_sizes) == 1


class _RefusingBuilder:
    """An IBuilder without streams that refuses every network."""

    def build_serialized_network(self, *_: Any) -> None:
        return None


def test_returns_none_for_a_refused_network() -> None:
    pieces: list[Any] = []
    assert serialize_network(tensorrt_rtx, _RefusingBuilder(), None, None, pieces.append, weights_bytes=1) is None
    assert pieces == []
