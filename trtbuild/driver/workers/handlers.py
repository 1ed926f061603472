"""What each kind of worker does with a job: read blobs, run the stage, keep what it leaves.

Each function returns ``{"outputs": {name: {"sha256", "size"}}, …}``. A worker only puts blobs.
The driver publishes the records, those of conversions that the partition step makes on the way too
(driver/workers/validator.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trtbuild.core.engines.binding import weights_to_json
from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.spec import PartitionSettings
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.record import Output
from trtbuild.driver.project.wiring import TIMINGS
from trtbuild.driver.workers import graph_steps
from trtbuild.driver.workers.validator import Judge, conversion_outputs
from trtbuild.errors import ConversionRefused
from trtbuild.store.local.local import LocalStore

Job = Mapping[str, Any]


def handler(kind: str, store_root: Path, project: Path) -> Callable[[Job], dict[str, Any]]:
    """What a worker of `kind` does with a job."""
    store = LocalStore(store_root)
    if kind == "trace":
        return trace_handler(store, project)
    if kind == "torch":
        return torch_handler(store)
    if kind == "engine":
        return engine_handler(store, project / TIMINGS)
    if kind == "original":
        from trtbuild.driver.workers import original

        return original.handler(project)
    raise ValueError(f"no worker is called {kind!r}")


def prepare(kind: str) -> None:
    """Load what a worker of `kind` will need for its first job."""
    if kind == "trace":
        prepare_trace()
    elif kind == "torch":
        prepare_torch()


def prepare_trace() -> None:
    """Load torch and the trace stage, and nothing of the user's."""
    from trtbuild.stages.trace.run import prepare

    prepare()


def prepare_torch() -> None:
    """Load torch, the stages, the exporter's translations, and what reads and writes programs."""
    import torch.export.pt2_archive  # noqa: F401 (torch loads it when it is first used)

    from trtbuild.stages.convert import conversion  # noqa: F401
    from trtbuild.stages.lower import run  # noqa: F401
    from trtbuild.stages.partition import run as partition  # noqa: F401
    from trtbuild.stages.program.translations import decomposition_table

    decomposition_table()


def trace_handler(store: Store, project: Path) -> Callable[[Job], dict[str, Any]]:
    """Runs user code; used for one job only, in one process."""

    def keep(weights: list[tuple[int, Any]]) -> list[Any]:
        """Put weights into the store: slot number, dtype, shape and output of each."""
        kept = []
        for slot, tensor in weights:
            dtype, shape, data = tensor_bytes(tensor)
            kept.append([slot, dtype, list(shape), store.put_bytes(data).to_json()])
        return kept

    def handle(job: Job) -> dict[str, Any]:
        from trtbuild.stages.trace.job import TraceJob
        from trtbuild.stages.trace.run import trace

        traced = trace(TraceJob.from_json(job["trace"]), project, keep, graph_steps.makers())
        outputs = {
            "program": store.put_bytes(traced.program),
            "graph": store.put_bytes(traced.graph.encode()),
            "modules": store.put_bytes(json.dumps(traced.modules).encode()),
            "interface": store.put_bytes(json.dumps(traced.interface).encode()),
        }
        table: dict[str, Weight] = {}
        for slot, dtype, shape, kept in keep(traced.weights) if traced.kept is None else traced.kept:
            output = Output(kept["sha256"], kept["size"])
            outputs[f"weight:{slot}"] = output
            table[str(slot)] = Weight(dtype, tuple(shape), output.sha256)
        outputs["weights"] = store.put_bytes(json.dumps(weights_to_json(table)).encode())
        return {
            "outputs": _json(outputs),
            "observations": [[seen.dependency.part, seen.seen] for seen in traced.observations],
            "uncacheable": traced.uncacheable,
        }

    return handle


def tensor_bytes(tensor: Any) -> tuple[str, tuple[int, ...], memoryview]:
    """dtype, shape and logical row-major bytes of a CPU tensor."""
    import torch

    value = tensor.detach().contiguous()
    raw = value.reshape(-1).view(torch.uint8) if value.numel() else torch.empty(0, dtype=torch.uint8)
    return str(value.dtype).removeprefix("torch."), tuple(value.shape), memoryview(raw.numpy())


def torch_handler(store: LocalStore) -> Callable[[Job], dict[str, Any]]:
    """Lower, partition and convert: trtbuild's own code on programs, no user code."""

    def handle(job: Job) -> dict[str, Any]:
        if job.get("form", "program") != "program":
            return {"outputs": _json(graph_steps.STEPS[job["kind"]](job, store))}
        if job["kind"] == "lower":
            return _lower(job, store)
        if job["kind"] == "partition":
            return _partition(job, store)
        if job["kind"] == "verify":
            return _verify(job, store)
        if job["kind"] == "pt2":
            return _exported(job, store)
        return _convert(job, store)

    return handle


def _lower(job: Job, store: Store) -> dict[str, Any]:
    from trtbuild.stages.lower.run import lower
    from trtbuild.stages.program import guard
    from trtbuild.stages.program.text import module_paths, program_text
    from trtbuild.stages.program.translations import decomposition_table

    if job["operators"]:
        # only the trace's process has loaded the user's code that registers them
        raise ConversionRefused(
            f"the model calls operators from outside PyTorch: {', '.join(job['operators'])}",
            hint="this version cannot build them: write them with PyTorch's own operators",
        )
    traced = guard.read(store.get_bytes(job["program"]))
    program = lower(traced, job["precision"], decomposition_table(), job["points"])
    if job["compare"] is not None:
        compare_lowered(job["compare"], job["precision"], traced, program, store)
    outputs = {
        "program": store.put_bytes(program.to_bytes()),
        "graph": store.put_bytes(program_text(program).encode()),
        "modules": store.put_bytes(json.dumps(module_paths(program)).encode()),
    }
    return {"outputs": _json(outputs)}


def compare_lowered(told: Mapping[str, Any], precision: Any, traced: Any, lowered: Any, store: Store) -> None:
    """Hold a lowered program to the traced one, by numbers. `told` is what `trtbuild.core.planning.comparison` says."""
    from trtbuild.core.model.verification import Point
    from trtbuild.stages.program.sizes import points_of
    from trtbuild.stages.verify.inputs import random_inputs
    from trtbuild.stages.verify.lowered import Compared, refuse_another_model
    from trtbuild.stages.verify.running import Weights

    held = Weights([Weight(e["dtype"], tuple(e["shape"]), e["sha256"]) for e in told["weights"]], store.get_bytes)
    weights = [held[slot] for slot in range(len(held))]
    for place in told["points"]:
        numbers = tuple(place["numbers"])
        # the trace has shown that the model takes such values
        inputs = random_inputs(
            told["inputs"],
            place["shapes"],
            Point(0, place["name"], numbers, 0),
            [2] * len(told["inputs"]),
            told["ranges"],
        )
        compared = Compared(place["name"], points_of(traced, [numbers])[0], inputs)
        refuse_another_model(traced, lowered, weights, compared, precision)


def _partition(job: Job, store: LocalStore) -> dict[str, Any]:
    from trtbuild.stages.partition.run import partition
    from trtbuild.stages.program import guard
    from trtbuild.store.trust.keyring import judge as trust_of

    program = guard.read(store.get_bytes(job["program"]))
    settings = PartitionSettings.from_json(job["settings"])
    judge = Judge(store if job["trust"] is None else LocalStore(store.root, trust_of(job["trust"])), job)
    found = partition(program, settings, judge, job["points"])
    outputs = {"partitions": store.put_bytes(found.document.to_bytes())}
    for graph, piece in found.programs.items():
        outputs[f"program:{graph}"] = store.put_bytes(piece.to_bytes())
    return {"outputs": _json(outputs), "conversions": judge.made}


def _convert(job: Job, store: Store) -> dict[str, Any]:
    from trtbuild.stages.convert.conversion import convert
    from trtbuild.stages.program import guard

    converted = convert(guard.read(store.get_bytes(job["program"])), job["opset"])
    return {"outputs": _json(conversion_outputs(converted, store))}


def _verify(job: Job, store: Store) -> dict[str, Any]:
    from trtbuild.stages.verify.job import VerifyJob
    from trtbuild.stages.verify.run import verify

    return {"outputs": {}, "report": verify(VerifyJob.from_json(job["verify"]), store.get_bytes)}


def _exported(job: Job, store: Store) -> dict[str, Any]:
    from trtbuild.core.packages.package_reading import read_index
    from trtbuild.driver.packages.engine_operator import register
    from trtbuild.stages.pt2.writing import about, write_pt2

    register()
    index = read_index(store.get_bytes(job["index"]))

    def read(name: str) -> bytes:
        return store.get_bytes(index.files[name].sha256)

    files = {name: write_pt2(index, name, read, about(index, name, job["index"])) for name in index.targets}
    return {"outputs": _json({f"pt2:{name}": store.put_bytes(data) for name, data in files.items()})}


def engine_handler(store: Store, timings: Path | None = None) -> Callable[[Job], dict[str, Any]]:
    """Compiles engines, with the timing caches in the directory `timings`. Imports core, toolchain and store only: no
    torch."""

    def handle(job: Job) -> dict[str, Any]:
        from trtbuild.toolchain.compiling import allocator
        from trtbuild.toolchain.compiling.compiler import compile_engine

        allocator.keep_no_large_buffers()
        compiled = compile_engine(EngineJob.from_json(job), store.get_bytes, timings)
        outputs = {"plan": store.put_bytes(compiled.plan), "layers": store.put_bytes(compiled.layers)}
        statistics = compiled.statistics
        del compiled
        allocator.give_back()  # an idle worker has nothing that another step could use
        return {"outputs": _json(outputs), "statistics": statistics}

    return handle


def _json(outputs: Mapping[str, Output]) -> dict[str, Any]:
    return {name: output.to_json() for name, output in outputs.items()}
