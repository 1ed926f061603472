"""Register ``trtbuild::engine``, the operator with which ``.pt2`` files run engines.

The runtime defines the operator, but does not import TensorRT. So the function that opens an engine with TensorRT is here.
``trtbuild/__init__.py`` imports this module together with torch, so the top of this module imports only small modules.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trtbuild import declared_sizes
from trtbuild.core.packages.package_index import PackageIndex, PackedTarget
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.runtime.calls import operators
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.calls.stitching import Part
from trtbuild.runtime.calls.torch_part import define_quantizers

if TYPE_CHECKING:
    import torch

    from trtbuild.core.packages.engine_libraries import EngineLibrary
    from trtbuild.core.partition.engine_text import EngineText
    from trtbuild.runtime.engines.engine_set import EngineSet

#: (library of TensorRT, number of the GPU) → the open engines, which share activation memory.
_engine_sets: dict[tuple[EngineLibrary, int], EngineSet] = {}

#: Held while an engine is opened, because engines of several ``.pt2`` files may belong to the same set.
_opening_lock = threading.Lock()


def register() -> None:
    """Register ``trtbuild::engine`` with torch, which must be imported already.

    Also register the quantizers and the operator of `declared_sizes`, because Torch partitions may call them.
    """
    operators.register(open_engine)
    define_quantizers()
    declared_sizes.define_operator()


def open_engine(text: EngineText, plan: memoryview, device: torch.device) -> Part:
    """Return a callable that runs an engine on the GPU `device`. `plan` has the engine's bytes; `text` describes it.

    Raises NoFittingTarget, ToolchainMissing, EnvironmentFault, EngineError.
    """
    import torch

    from trtbuild.driver.packages.machine import this_machine
    from trtbuild.runtime.packages.choice import choose_target
    from trtbuild.toolchain.libraries import devices

    ordinal = torch.cuda.current_device() if device.index is None else device.index
    sms = devices.device_sms()
    target = choose_target(
        _index_of_target(text), this_machine(sms[ordinal] if ordinal < len(sms) else None, ordinal), text.target
    )
    inputs = tuple((f"input:{number}", tensor_type) for number, tensor_type in enumerate(text.inputs))
    # The name contains a digest, because partitions of several files may have the same model and partition name.
    name = f"{text.model}/{text.partition}@{text.plan[:12]}"
    partition = Partition(name, "tensorrt", "", (), inputs, text.outputs, ())
    with _opening_lock:
        engine_set = _engine_set(target, ordinal)
        memory = engine_set.memory
        engine_set.load(partition, plan)
        run_engine = engine_set.part(partition)

    def run(values: Sequence[Any], call: Call) -> Sequence[Any]:
        if memory.is_device_current():
            return run_engine(values, call)
        with memory.on_device():
            return run_engine(values, call)

    return run


def _engine_set(target: PackedTarget, ordinal: int) -> EngineSet:
    from trtbuild.driver.packages.machine import library_for
    from trtbuild.runtime.engines.engine_set import EngineSet
    from trtbuild.runtime.memory.choosing import choose_memory
    from trtbuild.toolchain.running.execution import load_library

    library = library_for(target)
    if (library, ordinal) not in _engine_sets:
        _engine_sets[library, ordinal] = EngineSet(load_library(library), choose_memory(ordinal))
    return _engine_sets[library, ordinal]


def _index_of_target(text: EngineText) -> PackageIndex:
    """Return the index of an empty package with the engine's target, because `choose_target` needs an index."""
    target = PackedTarget(
        name=text.target,
        sm=text.sm,
        sms=text.sms,
        toolchain=text.toolchain,
        version=text.version,
        version_compatible=text.version_compatible,
        compatibility=text.compatibility,
        platform=text.platform,
        partitions=Partitions((), ()),
        programs={},
        engines={},
        layers={},
    )
    return PackageIndex(
        model=text.model,
        inputs=(),
        outputs=(),
        output_tree={"kind": "none"},
        dims=(),
        profiles=(),
        precision="",
        targets={text.target: target},
        reference=text.reference is not None,
        weights={},
        files={},
    )
