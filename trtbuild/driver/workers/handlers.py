"""The functions that do the tasks of a worker, and `prepare`, which loads their libraries.

A task reads blobs. Its results are new blobs, or parts of the reply (`Result`). A worker never writes records: the driver
publishes them, even those of the conversions that a partition step makes (`trtbuild.driver.workers.validator`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trtbuild.core.engines.binding import weights_to_json
from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.precisions import Precisions
from trtbuild.core.planning.comparison import Comparison
from trtbuild.core.planning.jobs import ConvertJob, LowerJob, PartitionJob
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.record import Output
from trtbuild.driver.project.shortage import refuse_small_cache_disk
from trtbuild.driver.workers import graph_steps
from trtbuild.driver.workers.results import Context, PT2Job, Result
from trtbuild.driver.workers.validator import Validator, conversion_outputs
from trtbuild.store.local.local import LocalStore

if TYPE_CHECKING:
    import torch

    from trtbuild.driver.gpu_comparisons.job import ComparisonJob
    from trtbuild.stages.program.custom_calls import OpenedProgram
    from trtbuild.stages.trace.calibration.job import CalibrateJob
    from trtbuild.stages.trace.job import TraceJob
    from trtbuild.stages.trace.run import TraceResult
    from trtbuild.stages.verify.job import VerifyJob


def prepare(kind: str) -> None:
    """Load the modules that a worker of `kind` otherwise loads during its first job."""
    if kind == "trace":
        prepare_trace()
    elif kind == "torch":
        prepare_torch()
    elif kind == "engine":
        from trtbuild.toolchain.compiling import compiler  # noqa: F401 (TensorRT itself is loaded by the first job)


def prepare_trace() -> None:
    """Load torch and the trace stage, but no user code."""
    from trtbuild.stages.trace.run import prepare

    prepare()


def prepare_torch() -> None:
    """Load torch, the stages lower, partition and convert, the ONNX translations, and the code for program files."""
    import torch.export.pt2_archive  # noqa: F401 (otherwise loaded at its first use)

    from trtbuild.stages.convert import conversion  # noqa: F401
    from trtbuild.stages.lower import run  # noqa: F401
    from trtbuild.stages.partition import run as partition  # noqa: F401
    from trtbuild.stages.program.translations import decomposition_table

    decomposition_table()


def fill_tables() -> None:
    """Fill the tables of torch that a torch worker otherwise fills during its first job."""
    from trtbuild.driver.workers.forking.warming import fill_tables

    fill_tables()


def calibrate(job: CalibrateJob, context: Context) -> Result:
    """Run user code, and find the scales of the model's quantizers. A process may call this only once."""
    from trtbuild.stages.trace import run
    from trtbuild.stages.trace.calibration.run import calibrate

    result = calibrate(job, context.project, run.prepare())
    observations = tuple((seen.dependency.part, seen.state) for seen in result.observations)
    outputs = {"quantizers": context.store.put_bytes(result.quantizers)}
    statistics = {"uncalibrated": list(result.uncalibrated)}
    return Result(outputs, observations, result.uncacheable, statistics=statistics)


def trace(job: TraceJob, context: Context) -> Result:
    """Run user code, and trace the model. A process may call this only once."""
    import torch

    from trtbuild.stages.trace import run

    store = context.store
    announced: dict[str, Output] = {}

    def store_weights(weights: Sequence[torch.Tensor]) -> list[Any]:
        """Store weights. Return the dtype, shape and blob of each."""
        stored = []
        for tensor in weights:
            dtype, shape, data = tensor_bytes(tensor)
            stored.append([dtype, list(shape), store.put_bytes(data).to_json()])
        return stored

    def refuse_small_disk(weights: Sequence[torch.Tensor]) -> None:
        views = [tensor_bytes(tensor)[2] for tensor in weights]
        subject, size = "the weights of the model", sum(view.nbytes for view in views)
        refuse_small_cache_disk(store.root, subject, size, lambda: store.missing_bytes(views))

    def store_outputs(traced: TraceResult) -> dict[str, Output]:
        outputs = {
            "program": store.put_bytes(traced.program),
            "graph": store.put_bytes(traced.graph.encode()),
            "modules": store.put_bytes(json.dumps(traced.modules).encode()),
            "interface": store.put_bytes(json.dumps(traced.interface).encode()),
        }
        weights_by_slot: dict[str, Weight] = {}
        stored_weights = traced.stored
        if stored_weights is None:
            values = [value for _, value in traced.weights]
            refuse_small_disk(values)
            stored_weights = store_weights(values)
        for (slot, _), (dtype, shape, stored) in zip(traced.weights, stored_weights, strict=True):
            output = Output(stored["sha256"], stored["size"])
            outputs[f"weight:{slot}"] = output
            weights_by_slot[str(slot)] = Weight(dtype, tuple(shape), output.sha256)
        outputs["weights"] = store.put_bytes(json.dumps(weights_to_json(weights_by_slot)).encode())
        return outputs

    def announce(traced: TraceResult) -> None:
        """Store and announce the results, before the trace checks them."""
        announced.update(store_outputs(traced))
        context.announce(announced)
        torch.set_num_threads(_check_threads())

    quantizers = None if job.quantizers is None else store.get_bytes(job.quantizers)
    traced = run.trace(
        job, context.project, store_weights, graph_steps.graph_functions(), quantizers, refuse_small_disk, announce
    )
    observations = tuple((seen.dependency.part, seen.state) for seen in traced.observations)
    return Result(announced or store_outputs(traced), observations, traced.uncacheable)


def tensor_bytes(tensor: Any) -> tuple[str, tuple[int, ...], memoryview]:
    """Return the dtype, the shape and the row-major bytes of a CPU tensor."""
    import torch

    value = tensor.detach().contiguous()
    raw = value.reshape(-1).view(torch.uint8) if value.numel() else torch.empty(0, dtype=torch.uint8)
    return str(value.dtype).removeprefix("torch."), tuple(value.shape), memoryview(raw.numpy())


def lower(job: LowerJob, context: Context) -> Result:
    """Lower a traced program. If the job has a comparison, announce the result, and compare the two programs."""
    import torch

    from trtbuild.stages.lower import run
    from trtbuild.stages.program import consistency
    from trtbuild.stages.program.custom_calls import open_calls
    from trtbuild.stages.program.text import module_paths, program_text
    from trtbuild.stages.program.translations import decomposition_table

    store = context.store
    traced = consistency.read_program(store.get_bytes(job.program))
    opened = open_calls(traced)  # the code of operators from outside PyTorch is loaded only in the trace worker
    lowered = run.lower(
        opened.program, job.precisions, decomposition_table(), job.points, truncates_double=job.truncates_double
    )
    program = lowered
    if opened.calls:
        program = opened.close(lowered)
        consistency.refuse_changes(program, consistency.signature(traced), "lower", job.points)
    outputs = {
        "program": store.put_bytes(program.to_bytes()),
        "graph": store.put_bytes(program_text(program).encode()),
        "modules": store.put_bytes(json.dumps(module_paths(program)).encode()),
    }
    if job.comparison is not None:
        context.announce(outputs)
        threads = torch.get_num_threads()
        torch.set_num_threads(_check_threads())
        try:
            compare_lowered(job.comparison, job.precisions, opened, lowered, store)
        finally:
            torch.set_num_threads(threads)
    return Result(outputs)


def _check_threads() -> int:
    """Return the number of threads for a check: half of torch's threads, because the next steps run at the same time."""
    import torch

    threads: int = torch.get_num_threads()
    return max(1, threads // 2)


def compare_lowered(
    comparison: Comparison, precisions: Precisions, opened: OpenedProgram, lowered: Any, store: Store
) -> None:
    """Run a traced and a lowered program on random inputs, and compare the outputs.

    `lowered` is the lowered form of ``opened.program``. In both programs, the results of operators from outside PyTorch
    are random inputs, and the arguments of these operators are outputs. Raises InconsistentShapes or SourceError
    (`refuse_another_model`).
    """
    from trtbuild.core.model.verification import Point
    from trtbuild.stages.program.sizes import points_of
    from trtbuild.stages.verify.inputs import random_inputs
    from trtbuild.stages.verify.lowered import ComparisonPoint, refuse_another_model
    from trtbuild.stages.verify.running import Weights

    traced = opened.program
    by_slot = Weights(comparison.weights, store.get_bytes)
    weights = [by_slot[slot] for slot in range(len(by_slot))]
    for point in comparison.points:
        sizes = opened.point_with_results(points_of(traced, [point.numbers])[0])
        results = opened.result_types(sizes)
        # Random integers are below these ends. Integer inputs without a range are 0 or 1, because the trace has shown that
        # the model accepts these values. Integer results of operators are 0, because they may be indices.
        integer_ends = [2] * len(comparison.inputs) + [1] * len(results)
        inputs = random_inputs(
            [*comparison.inputs, *((name, dtype) for name, dtype, _ in results)],
            [*point.shapes, *(shape for _, _, shape in results)],
            Point(0, point.name, point.numbers, 0),
            integer_ends,
            comparison.ranges,
        )
        compared = ComparisonPoint(point.name, sizes, inputs)
        refuse_another_model(traced, lowered, weights, compared, precisions)


def explain(job: LowerJob, context: Context) -> Result:
    """Find the type in which each operator of the traced program computes after lowering."""
    from trtbuild.stages.lower import explaining
    from trtbuild.stages.program import consistency
    from trtbuild.stages.program.custom_calls import open_calls
    from trtbuild.stages.program.translations import decomposition_table

    traced = consistency.read_program(context.store.get_bytes(job.program))
    program = open_calls(traced).program
    computed = explaining.explain(program, job.precisions, decomposition_table(), truncates_double=job.truncates_double)
    return Result(computed=tuple(computed))


def partition(job: PartitionJob, context: Context) -> Result:
    """Partition a lowered program. The result contains the conversions to ONNX that were made for the parser."""
    from trtbuild.stages.partition import run
    from trtbuild.stages.program import consistency
    from trtbuild.store.trust.keyring import trust_from_json as trust_policy

    store = context.store
    program = consistency.read_program(store.get_bytes(job.program))
    validator = Validator(store if job.trust is None else LocalStore(store.root, trust_policy(job.trust)), job)
    result = run.partition(program, job.settings, validator, job.points, job.plugins)
    outputs = {"partitions": store.put_bytes(result.document.to_bytes())}
    for graph, part_program in result.programs.items():
        outputs[f"program:{graph}"] = store.put_bytes(part_program.to_bytes())
    return Result(outputs, conversions=validator.new_conversions)


def convert(job: ConvertJob, context: Context) -> Result:
    """Convert a partition to ONNX."""
    from trtbuild.stages.convert import conversion
    from trtbuild.stages.program import consistency

    converted = conversion.convert(
        consistency.read_program(context.store.get_bytes(job.program)), job.opset, job.plugins
    )
    return Result(conversion_outputs(converted, context.store))


def verify(job: VerifyJob, context: Context) -> Result:
    """Run a model's conversions with onnxruntime, and compare their results with those of PyTorch."""
    from trtbuild.stages.verify import run

    return Result(report=run.verify(job, context.store.get_bytes))


def verify_with_operators(job: VerifyJob, context: Context) -> Result:
    """`verify` for a model that calls operators from outside PyTorch. Imports user code, as a trace does."""
    from trtbuild.stages.verify import run
    from trtbuild.stages.verify.custom_operators import registered

    with registered(job.operators, [context.project / root for root in job.roots]):
        return Result(report=run.verify(job, context.store.get_bytes))


def compare_engines(job: ComparisonJob, context: Context) -> Result:
    """Compare the engines of a package with PyTorch or onnxruntime, on the only GPU that this process sees."""
    from trtbuild.driver.gpu_comparisons import comparing

    compared = comparing.compare(job, context.store, context.project)
    outputs = {} if compared.worst is None else {comparing.WORST_INPUTS: compared.worst}
    return Result(outputs, report=compared.report)


def export_pt2(job: PT2Job, context: Context) -> Result:
    """Write the ``.pt2`` files of a package."""
    from trtbuild.core.packages.package_reading import read_index
    from trtbuild.driver.packages.engine_operator import register
    from trtbuild.stages.pt2.writing import about_text, write_pt2

    register()
    store = context.store
    index = read_index(store.get_bytes(job.index))

    def read(name: str) -> bytes:
        return store.get_bytes(index.files[name].sha256)

    files = {name: write_pt2(index, name, read, about_text(index, name, job.index)) for name in index.targets}
    return Result({f"pt2:{name}": store.put_bytes(data) for name, data in files.items()})


def export_pt2_with_operators(job: PT2Job, context: Context) -> Result:
    """`export_pt2` for a package that calls operators from outside PyTorch.

    torch.export traces the programs again, and needs the fake implementations of the operators. So this function imports
    user code, as a trace does."""
    from trtbuild.core.packages.package_reading import read_index
    from trtbuild.stages.verify.custom_operators import registered

    operators = read_index(context.store.get_bytes(job.index)).operators
    with registered(operators, [context.project / root for root in job.roots]):
        return export_pt2(job, context)


def engine(job: EngineJob, context: Context) -> Result:
    """Compile an engine, without importing torch."""
    from trtbuild.toolchain.compiling import allocator
    from trtbuild.toolchain.compiling.compiler import compile_to

    store = context.store
    allocator.return_large_buffers()
    with store.open_writer() as plan:  # written in pieces, because an engine is as large as its weights
        compiled = compile_to(plan.write, job, store.get_bytes, context.timings)
        outputs = {"plan": plan.finish(), "layers": store.put_bytes(compiled.layers)}
    allocator.release_free_memory()  # an idle worker must not keep memory that other steps need
    return Result(outputs, statistics=compiled.statistics)
