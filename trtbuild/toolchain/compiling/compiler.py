"""Compile an engine job to a plan.

Rules
1. The job's toolchain version, which is in the key, must be the version of the loaded library. `Flavour.library_versions`
   has the exceptions.
2. No key assumes that two builds of one job give equal bytes. With TensorRT-RTX, equal jobs normally give equal bytes
   (`Flavour.reproducible`), but on a busy machine the bytes differed once.
3. The network must have the inputs and outputs of the partition (`declared`), if the job has them. Otherwise nothing is
   compiled.
4. If an ONNX model has quantizers, the statistics show whether the engine stores or multiplies floats nevertheless
   (`float_fallbacks`).
5. If the parser or the builder refuses the network, the text of the ToolchainError is the reason, and its `log` has all
   lines of the library's log. After a successful build, the warnings are in the statistics.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.engines.float_fallbacks import QuantizedParts, float_fallbacks
from trtbuild.core.partition.network_document import is_document
from trtbuild.errors import InconsistentShapes, TargetUnsupported, ToolchainError
from trtbuild.toolchain.compiling import timing_cache
from trtbuild.toolchain.compiling.configuration import configure
from trtbuild.toolchain.compiling.declared import interface_differences
from trtbuild.toolchain.compiling.foreign_types import foreign_nodes
from trtbuild.toolchain.compiling.lean_library import open_lean_library
from trtbuild.toolchain.compiling.plan_reading import read_plan
from trtbuild.toolchain.compiling.plugin_types import check_plugin_results
from trtbuild.toolchain.compiling.preparing import prepare_model
from trtbuild.toolchain.compiling.quantized_types import check_quantized_types
from trtbuild.toolchain.compiling.serializing import WritePlan, serialize_network
from trtbuild.toolchain.libraries.devices import Device, use_gpu_with_sm
from trtbuild.toolchain.libraries.library import Log, capture_log, keep_kernels_loaded, load
from trtbuild.toolchain.libraries.plugins import require_plugins
from trtbuild.toolchain.libraries.releases import release
from trtbuild.toolchain.libraries.table import FLAVOURS
from trtbuild.toolchain.networks.network import NodeError, ParsedNetwork, create_network
from trtbuild.toolchain.networks.replaying import ReplayedNetwork, weight_names
from trtbuild.toolchain.onnx_files.onnx_outline import Bytes, read_outline
from trtbuild.toolchain.onnx_files.plugin_nodes import PluginNode, read_plugins
from trtbuild.toolchain.onnx_files.quantized_parts import quantized_parts
from trtbuild.toolchain.tensorrt8.precision import constrain_layers


@dataclass(frozen=True)
class EngineDescription:
    """An engine without its plan."""

    #: JSON with the network's layers before TensorRT fuses them, and its inputs and outputs: their names, types and shapes
    #: (-1 is a dynamic size).
    layers: bytes
    #: The seconds of each phase, sizes in bytes, warnings, the quantized parts and the GPU.
    statistics: dict[str, object]


@dataclass(frozen=True)
class CompiledEngine(EngineDescription):
    """An engine with its plan (the serialized engine)."""

    plan: memoryview


def compile_engine(job: EngineJob, read: Callable[[str], Bytes], timings: Path | None = None) -> CompiledEngine:
    """Compile `job` by `compile_to`, and keep the plan in memory."""
    plan = bytearray()
    compiled = compile_to(plan.extend, job, read, timings)
    return CompiledEngine(compiled.layers, compiled.statistics, memoryview(plan))


def compile_to(
    write: WritePlan, job: EngineJob, read: Callable[[str], Bytes], timings: Path | None = None
) -> EngineDescription:
    """Compile `job`, and call `write` with the pieces of the plan, in order.

    `read` returns a blob's bytes by its SHA-256. Weights that the model does not use are not read. `timings` is the
    directory for timing caches, if the toolchain has them. With None, no timings are stored.

    Raises EnvironmentFault if something is missing: the library in the right version, the lean runtime that the plan must
    contain, or the GPU that the library needs. Raises ToolchainError if the library refuses the model, its settings or its
    plugins. Raises InconsistentShapes if the network differs from the partition (rule 3). Some pieces may have been written
    before the error.
    """
    clock = _Clock()
    trt = load(job.target.toolchain, job.toolchain_version)
    open_lean_library(job)
    clock.end_phase("load_s")
    model = bytes(read(job.onnx))
    is_recorded = is_document(model)
    used_names = weight_names(model) if is_recorded else [weight.name for weight in read_outline(model).weights]
    weights, weights_bytes = _read_weights(job, used_names, read)
    clock.end_phase("read_s")
    device = _find_device(job)
    properties = release(job.target.toolchain, job.toolchain_version)
    if not is_recorded:
        model, weights = prepare_model(model, weights, properties)
    timing_path = _timing_path(job, device, timings)
    with capture_log(trt) as (logger, log):
        plugins = () if is_recorded else _load_plugins(trt, logger, model, job, read)
        if device is not None:
            keep_kernels_loaded(trt, logger, device.ordinal)
        builder = trt.Builder(logger)
        with _defined_network(trt, builder, logger, log, model, weights, job) as defined:
            _check_interface(defined.network, job)
            check_plugin_results(defined.network, plugins)
            clock.end_phase("parse_s")
            layers = _layer_document(defined.network)
            config = configure(trt, builder, defined.network, job)
            if not properties.strongly_typed and not is_recorded:
                constrain_layers(trt, defined.network, config, read_outline(model))
            cache = timing_cache.attach_cache(config, timing_path) if timing_path is not None else None
            parts = QuantizedParts(0, 0) if is_recorded else quantized_parts(read_outline(model))
            plan_copy = bytearray()
            if parts:  # `_quantization` reads the whole plan
                write = _writing_to_both(write, plan_copy)
            plan_bytes = serialize_network(trt, builder, defined.network, config, write, weights_bytes=weights_bytes)
            clock.end_phase("build_s")
            if timing_path is not None and plan_bytes is not None:
                timing_cache.save_cache(config, timing_path)
            del config
            del cache
        del builder
    if not plan_bytes:
        raise _build_error(job, log, is_empty=plan_bytes is not None)
    statistics: dict[str, object] = {
        **clock.seconds,
        "plan_bytes": plan_bytes,
        "weights_bytes": weights_bytes,
        "peak_rss_bytes": _peak_rss_bytes(),
        "warnings": log.warnings(),
    }
    if not is_recorded:
        statistics["quantized"] = _quantization(parts, memoryview(plan_copy))
    if device is not None:
        statistics["device"] = {"name": device.name, "memory_bytes": device.memory_bytes, "driver": device.driver}
    return EngineDescription(json.dumps(layers, separators=(",", ":")).encode(), statistics)


def _read_weights(job: EngineJob, names: Sequence[str], read: Callable[[str], Bytes]) -> tuple[dict[str, Bytes], int]:
    """Read the weights with these `names`, each blob once. Returns name → data, and the number of bytes that were read."""
    blobs: dict[str, Bytes] = {}
    weights: dict[str, Bytes] = {}
    for name in names:
        sha256 = job.weights[int(name[1:])].sha256
        if sha256 not in blobs:
            blobs[sha256] = read(sha256)
        weights[name] = blobs[sha256]
    return weights, sum(memoryview(blob).nbytes for blob in blobs.values())


def _load_plugins(
    trt: Any, logger: Any, model: bytes, job: EngineJob, read: Callable[[str], Bytes]
) -> tuple[PluginNode, ...]:
    """Make the plugins of `model` available in this process. Returns their nodes. Raises PluginError."""
    plugins = read_plugins(model)
    if plugins:
        library = None if job.plugin_library is None else bytes(read(job.plugin_library))
        require_plugins(trt, logger, (node.identity for node in plugins), library, "the library of plugins")
    return plugins


@contextlib.contextmanager
def _defined_network(
    trt: Any, builder: Any, logger: Any, log: Log, model: bytes, weights: Mapping[str, Bytes], job: EngineJob
) -> Iterator[ParsedNetwork | ReplayedNetwork]:
    """Yield the network of `model`, an ONNX model or the document of a recorded TensorRT network."""
    properties = release(job.target.toolchain, job.toolchain_version)
    if is_document(model):
        with ReplayedNetwork(create_network(trt, builder, properties), log) as replayed:
            replayed.define(trt, model, weights, strongly_typed=properties.strongly_typed)
            yield replayed
    else:
        with ParsedNetwork(trt, builder, logger, log, properties) as parsed:
            _parse(parsed, model, weights, job, log)
            yield parsed


def _writing_to_both(write: WritePlan, plan_copy: bytearray) -> WritePlan:
    def write_both(piece: bytes | memoryview) -> None:
        plan_copy.extend(piece)
        write(piece)

    return write_both


def _quantization(parts: QuantizedParts, plan: memoryview) -> dict[str, object] | None:
    """Return the statistics of rule 4, or None for a model without quantizers."""
    return {**vars(parts), "fallbacks": float_fallbacks(parts, read_plan(plan))} if parts else None


def _check_interface(network: Any, job: EngineJob) -> None:
    if job.inputs is None or job.outputs is None:
        return
    differences = interface_differences(network, job.inputs, job.outputs)
    if differences:
        shown = "; ".join(f"{name} {text}" for name, text in differences)
        raise InconsistentShapes(f"the network of {job.target.toolchain} differs from the partition: {shown}")


def _find_device(job: EngineJob) -> Device | None:
    """Return the GPU to build on, or None if the toolchain does not need a GPU."""
    if not FLAVOURS[job.target.toolchain].needs_gpu:
        return None
    device = use_gpu_with_sm(job.target.sm)
    if device is None:
        raise TargetUnsupported(
            f"{job.target.toolchain} builds on a GPU of the target's SM {job.target.sm}, and this machine has no such GPU"
        )
    return device


def _timing_path(job: EngineJob, device: Device | None, folder: Path | None) -> Path | None:
    if device is None or folder is None or not FLAVOURS[job.target.toolchain].has_timing_cache:
        return None
    if not release(job.target.toolchain, job.toolchain_version).keeps_timings:
        return None
    return timing_cache.cache_path(folder, job.target.toolchain, job.toolchain_version, device.name, device.driver)


def _parse(parsed: ParsedNetwork, model: bytes, weights: Mapping[str, Bytes], job: EngineJob, log: Log) -> None:
    model_outline = read_outline(model)
    check_quantized_types(model_outline, job.target, job.toolchain_version)
    properties = release(job.target.toolchain, job.toolchain_version)
    foreign = foreign_nodes(
        model_outline, properties.dtypes, narrows_int64=properties.narrows_int64, largest_sizes=largest_sizes(job)
    )
    try:
        errors = [NodeError(text, name) for name, text in foreign.items()]
        errors = errors or parsed.parse(model, weights) or parsed.changed_types(model_outline)
    except ValueError as error:
        raise ToolchainError(str(error)) from error
    if errors:
        refusals = ", ".join(f"{error.node or 'the model'} ({error.text})" for error in errors)
        refused = ToolchainError(f"the ONNX parser of {job.target.toolchain} refuses {refusals}", log=log.texts())
        refused.nodes = tuple(dict.fromkeys(error.node for error in errors if error.node))
        raise refused


def largest_sizes(job: EngineJob) -> dict[str, int]:
    """Map each input's name to the largest size of its axes in any profile."""
    return {
        f"i{number}": max((max(shape.max, default=0) for shape in shapes), default=0)
        for number, shapes in enumerate(zip(*job.profiles, strict=False))
    }


def _build_error(job: EngineJob, log: Log, *, is_empty: bool) -> ToolchainError:
    errors = log.errors()
    text = errors[0] if errors else "the plan is empty" if is_empty else "no reason was given"
    hint = None
    if "for Turing (SM75)" in text:
        hint = "Turing (SM 75) computes matrix products in half precision only: set precision: float16"
    return ToolchainError(
        f"{job.toolchain_text} cannot build for SM {job.target.sm}: {text}",
        hint=hint,
        log=log.texts(),
    )


def _layer_document(network: Any) -> dict[str, object]:
    layers = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        inputs = [layer.get_input(k) for k in range(layer.num_inputs)]
        layers.append(
            {
                "name": layer.name,
                "type": _member_name(layer.type),
                "inputs": [tensor.name for tensor in inputs if tensor is not None],
                "outputs": [_tensor_entry(layer.get_output(k)) for k in range(layer.num_outputs)],
            }
        )
    return {
        "schema": "trtbuild.layers/1",
        "inputs": [_tensor_entry(network.get_input(k)) for k in range(network.num_inputs)],
        "outputs": [_tensor_entry(network.get_output(k)) for k in range(network.num_outputs)],
        "layers": layers,
    }


def _tensor_entry(tensor: Any) -> dict[str, object]:
    try:
        shape: list[int] | None = list(tensor.shape)
    except ValueError:  # the rank is not known before the build
        shape = None
    return {"name": tensor.name, "dtype": _member_name(tensor.dtype), "shape": shape}


def _member_name(member: Any) -> str:
    return str(member).rpartition(".")[2].lower()


class _Clock:
    """Measures the phases of a compilation."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end_phase(self, name: str) -> None:
        """Store the time since the end of the previous phase."""
        now = time.perf_counter()
        self.seconds[name] = round(now - self._last, 6)
        self._last = now


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
