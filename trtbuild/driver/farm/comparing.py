"""The worker's side of a comparison of engines with PyTorch, or with onnxruntime for an ONNX model.

Rules
1. The worker computes the job's recipe and key itself. It compares its GPU, GPU driver and libraries with those in the
   job. So the comparison runs on the kind of machine that the key contains.
2. The comparison runs in a separate process (`trtbuild.driver.workers`), which ends afterwards. The worker itself never
   loads torch or TensorRT. If the separate process crashes, the worker still sends an answer.
3. The worker signs the record of the report. The driver decides whether the record is stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace

from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.values.codec import encode
from trtbuild.driver.farm.exchange import Exchange, blob_files
from trtbuild.driver.farm.messages import PROTOCOL, Answer, FarmJob
from trtbuild.driver.gpu_comparisons.comparing import REPORT, WORST_INPUTS, require_kind, why_project_is_needed
from trtbuild.driver.gpu_comparisons.job import ComparisonJob
from trtbuild.driver.workers.provenance import provenance
from trtbuild.driver.workers.results import Reply
from trtbuild.errors import EnvironmentFault, InternalError, NotCompared
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import record_entry


def check(comparison: ComparisonJob) -> None:
    """Raise an error if this machine cannot do the job, or if the job contradicts its key (rule 1)."""
    if (reason := why_project_is_needed(None, comparison.job.operators)) is not None:
        raise NotCompared(reason)
    require_kind(comparison.gpu)


def compare_and_sign(
    message: FarmJob,
    job: ComparisonJob,
    local: LocalStore,
    exchange: Exchange,
    name: str,
    compare: Callable[[str, ComparisonJob], Reply],
) -> Answer:
    """Compare engines, send the blobs of the result to the driver, and return the answer with the signed record.

    `compare` does the job in another process; its first argument is the name of a task. `name` is the name of this worker.
    """
    exchange.receive(local, message.inputs)
    if missing := set(job.blobs()) - {blob.sha256 for blob in message.inputs}:
        raise EnvironmentFault(f"the job does not list its input {min(missing)}")
    reply = compare("compare-engines", job)
    if reply.report is None:
        raise InternalError("the comparison gave no report")
    report = replace(reply.report, worst_input=None)
    output = local.put_bytes(json.dumps(encode(report), sort_keys=True).encode())
    document = Record(job.recipe, {REPORT: output}, provenance(reply)).to_bytes()
    signed = Output(hashlib.sha256(document).hexdigest(), len(document))
    files = blob_files(local, [output.sha256])
    worst = None
    if (found := reply.outputs.get(WORST_INPUTS)) is not None:
        (worst,) = blob_files(local, [found.sha256])
    exchange.send(local, [*files, *([] if worst is None else [worst])])
    entry = record_entry(signed, {blob.sha256: blob.files for blob in files}, local.trust.sign(job.recipe.key, signed))
    return Answer(
        PROTOCOL,
        message.key,
        name,
        "done",
        document=document.decode(),
        entry=entry.to_bytes().decode(),
        log=reply.log,
        duration_s=reply.duration_s,
        peak_rss_bytes=reply.peak_rss_bytes,
        worst=worst,
    )
