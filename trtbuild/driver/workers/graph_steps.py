"""The steps of models that come as a graph of another kind than PyTorch's (`trtbuild.stages.graphs`), as workers do
them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, get_args

from trtbuild.core.model.spec import SourceForm
from trtbuild.core.planning.jobs import ConvertJob, LowerJob, PartitionJob
from trtbuild.driver.workers.results import Context, Result
from trtbuild.stages.trace.sources.graph_forms import Makers

#: The forms of models that are such graphs (`trtbuild.stages.graphs.forms`).
FORMS = tuple(form for form in get_args(SourceForm) if form != "program")


def makers() -> Makers:
    """What a trace is handed for such models. Nothing is loaded before it is used."""

    def onnx(*arguments: Any) -> bytes:
        from trtbuild.stages.graphs.onnx_model import blob

        return blob(*arguments)

    def network(define: Callable[[Any, Any], object], declared: Sequence[tuple[Any, ...]], check: Any) -> Any:
        from trtbuild.toolchain.networks.recording import NetworkInput, record

        return record(define, [NetworkInput(*entry) for entry in declared], check)

    def network_blob(*arguments: Any) -> bytes:
        from trtbuild.stages.graphs.network import blob

        return blob(*arguments)

    def text(form: str, blob: bytes) -> str:
        from trtbuild.stages.graphs.forms import FORMS

        return FORMS[form].text(blob)

    def names(form: str, blob: bytes) -> list[tuple[str, str, str]]:
        from trtbuild.stages.graphs.forms import FORMS

        return FORMS[form].names(blob)

    return Makers(onnx, network, network_blob, text, names)


def lower(job: LowerJob, context: Context) -> Result:
    """Hand on what the trace left: such a model needs no lowering."""
    from trtbuild.stages.graphs.forms import FORMS

    store = context.store
    form, blob = FORMS[job.form], store.get_bytes(job.program)
    return Result(
        {
            "program": store.put_bytes(blob),
            "graph": store.put_bytes(form.text(blob).encode()),
            "modules": store.put_bytes(json.dumps(form.names(blob)).encode()),
        }
    )


def partition(job: PartitionJob, context: Context) -> Result:
    """Make one partition of the model, which the toolchain's parser has to take whole."""
    from trtbuild.stages.graphs.forms import FORMS, Refused

    def ask(model: bytes) -> Refused | None:
        from trtbuild.toolchain.compiling.parsing import Parser

        return Parser(job.toolchain, job.toolchain_version, job.stand_in).refused(model)

    store = context.store
    cut = FORMS[job.form].cut(store.get_bytes(job.program), job.opset, ask)
    return Result(
        {
            "partitions": store.put_bytes(cut.document.to_bytes()),
            f"program:{cut.graph}": store.put_bytes(cut.model),
        }
    )


def convert(job: ConvertJob, context: Context) -> Result:
    """Hand on the partition's model, with the number that each of its nodes has among the calls."""
    from trtbuild.stages.graphs.forms import FORMS

    store = context.store
    model = store.get_bytes(job.program)
    origins = [[name, number] for name, number in FORMS[job.form].origins(model)]
    return Result({"onnx": store.put_bytes(model), "origins": store.put_bytes(json.dumps(origins).encode())})
