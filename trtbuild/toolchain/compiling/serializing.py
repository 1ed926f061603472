"""Build the plan of a network, and pass it on in pieces, so that a large plan need not be in memory as a whole.

TensorRT-RTX 1.7 gives pieces of at most 64 MiB (IBuilder::buildSerializedNetworkToStream). Python copies each piece. The
plan of a network with less than `PIECE_BYTES` of weights would be one piece. So it is built in memory, without the copy. A
library without IStreamWriter builds every plan in memory. The bytes of the plan are the same in both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Receives the pieces of a plan, in order. The memory of a piece may be freed after the call.
WritePlan = Callable[[bytes | memoryview], None]

#: The largest piece, in bytes, that TensorRT-RTX 1.7 passes to a stream. With fewer bytes of weights, the plan is built in
#: memory.
PIECE_BYTES = 64 << 20


def serialize_network(
    trt: Any, builder: Any, network: Any, config: Any, write: WritePlan, *, weights_bytes: int
) -> int | None:
    """Build the plan, and call `write` with its pieces. `weights_bytes` is the size of the network's weights.

    Returns the size of the plan in bytes, or None if the library refuses the network. Raises the errors of `write`."""
    has_streams = hasattr(builder, "build_serialized_network_to_stream") and hasattr(trt, "IStreamWriter")
    if weights_bytes < PIECE_BYTES or not has_streams:
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            return None
        view = memoryview(plan)
        write(view)
        return view.nbytes
    writer = _stream_writer(trt, write)
    is_built = builder.build_serialized_network_to_stream(network, config, writer)
    if writer.error is not None:
        raise writer.error
    size: int = writer.size
    return size if is_built else None


def _stream_writer(trt: Any, write: WritePlan) -> Any:
    class Writer(trt.IStreamWriter):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)
            self.size = 0
            self.error: BaseException | None = None

        def write(self, data: bytes) -> int:
            """Return the number of written bytes. The library stops if the piece has more."""
            if self.error is not None:
                return 0
            try:
                write(data)
            except BaseException as error:  # it must not pass through the library, so `serialize_network` raises it
                self.error = error
                return 0
            self.size += len(data)
            return len(data)

    return Writer()
