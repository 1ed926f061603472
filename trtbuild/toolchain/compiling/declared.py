"""Compare a network's inputs and outputs with those that its partition declares: names, element types, ranks and sizes.

Rules
1. A size that is known in both the network and the partition must be equal in both. A size that is dynamic in the
   partition must also be dynamic in the network. Otherwise a conversion has fixed the size by mistake. If the network
   does not know the rank of a tensor before the build, its rank and sizes are not compared.
2. The network is compared, not the engine, because an engine can be opened only on its GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trtbuild.core.engines.engine_job import DeclaredType
from trtbuild.core.values.element_types import ELEMENT_TYPES, ENGINE_TYPES

#: torch's name of a dtype → tensorrt.DataType's name.
_TENSORRT_TYPES = {name: ELEMENT_TYPES[name].tensorrt for name in ENGINE_TYPES}


def interface_differences(
    network: Any, inputs: Sequence[DeclaredType], outputs: Sequence[DeclaredType]
) -> list[tuple[str, str]]:
    """List the differences between `network` and the declared `inputs` and `outputs`: pairs (a name such as ``i0`` or
    ``o0``, text)."""
    differences = []
    for kind, declared, count, get_tensor in (
        ("i", inputs, network.num_inputs, network.get_input),
        ("o", outputs, network.num_outputs, network.get_output),
    ):
        tensors = {each.name: each for each in map(get_tensor, range(count))}
        types = {f"{kind}{number}": each for number, each in enumerate(declared)}
        differences += [(name, "is in the network and not in the partition") for name in tensors.keys() - types.keys()]
        differences += [(name, "is in the partition and not in the network") for name in types.keys() - tensors.keys()]
        for name in types.keys() & tensors.keys():
            differences += [(name, text) for text in _tensor_differences(tensors[name], types[name])]
    return sorted(differences)


def _tensor_differences(tensor: Any, declared: DeclaredType) -> Iterator[str]:
    dtype, sizes = declared
    network_dtype = str(tensor.dtype).rpartition(".")[2]
    if network_dtype != _TENSORRT_TYPES.get(dtype, dtype):
        yield f"is {dtype} in the partition and {network_dtype} in the network"
    try:
        shape: list[int] = list(tensor.shape)
    except ValueError:  # the rank is not known before the build
        return
    if len(shape) != len(sizes) or any(
        size >= 0 and declared_size != size for declared_size, size in zip(sizes, shape, strict=True)
    ):
        yield f"is {_sizes_text(sizes)} in the partition and {_sizes_text(shape)} in the network"


def _sizes_text(sizes: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if size is None or size < 0 else str(size) for size in sizes)}]"
