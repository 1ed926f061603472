"""Verifies the answer of a worker: the record of an engine, which is published, or the report of a comparison.

Signatures are checked only if this machine has trusted keys or a signing key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from trtbuild.core.model.comparisons import Report
from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Signature
from trtbuild.core.values.codec import decode
from trtbuild.driver.farm.exchange import Exchange
from trtbuild.driver.farm.messages import Answer, BlobFiles
from trtbuild.driver.gpu_comparisons.comparing import REPORT
from trtbuild.driver.gpu_comparisons.job import ComparisonJob
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import ActionResult

#: The outputs of an engine step, and of a comparison.
_ENGINE_OUTPUTS, _COMPARISON_OUTPUTS = frozenset({"plan", "layers"}), frozenset({REPORT})


class WrongAnswer(Exception):
    """The answer of a worker cannot be read, is not signed by a trusted key, or belongs to another job."""


@dataclass(frozen=True)
class VerifiedReport:
    """The report of a comparison, and its record, which is not stored yet. `document` is the record as bytes.

    `worst` is the content of the file with the inputs that gave the largest error; None if there is no such file.
    """

    report: Report
    record: Record
    document: bytes
    signatures: Sequence[Signature]
    worst: bytes | None

    def publish(self, store: LayeredStore) -> Record:
        """Store and return the record, which replaces an earlier one. Raises StoreError."""
        return store.put_record_copy(self.record, self.document, self.signatures, replace=True)


def verified_record(
    answer: Answer, recipe: Recipe, store: LayeredStore, exchange: Exchange, *, replace: bool
) -> Record:
    """Publish the record of an answer, and return it. Afterwards, the local store has its blobs.

    Raises WrongAnswer if the record is for another step, or if no trusted key has signed it. Raises StoreError if a blob is
    missing or has other bytes.
    """
    record, signatures = _receive_record(answer, recipe, _ENGINE_OUTPUTS, store.local, exchange)
    return store.put_record_copy(record, answer.document.encode(), signatures, replace=replace)


def verified_report(
    answer: Answer, recipe: Recipe, comparison: ComparisonJob, local: LocalStore, exchange: Exchange
) -> VerifiedReport:
    """Receive the blobs of an answer's record into the local store, and return the report.

    Raises WrongAnswer if the record is for another verification, if no trusted key has signed it, or if the report is about
    another comparison. Raises StoreError if a blob is missing or has other bytes.
    """
    record, signatures = _receive_record(answer, recipe, _COMPARISON_OUTPUTS, local, exchange)
    try:
        report = decode(Report, json.loads(local.get_bytes(record.outputs[REPORT].sha256)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WrongAnswer(f"it is not a report ({type(error).__name__}: {error})") from error
    partitions = Partitions.from_bytes(local.get_bytes(comparison.job.partitions)).partitions
    names = [partition.name for partition in partitions if partition.kind == "tensorrt"]
    if (
        report.runner != "engine"
        or list(report.points) != list(comparison.job.points)
        or [entry.partition for entry in report.partitions] != names
    ):
        raise WrongAnswer("it is the report of another comparison")
    worst = None
    if answer.worst is not None:
        exchange.receive(local, [answer.worst])
        worst = local.get_bytes(answer.worst.sha256)
    return VerifiedReport(report, record, answer.document.encode(), signatures, worst)


def _receive_record(
    answer: Answer, recipe: Recipe, outputs: Collection[str], local: LocalStore, exchange: Exchange
) -> tuple[Record, Sequence[Signature]]:
    """Receive the blobs of an answer's record into the local store. Return the record and its signatures."""
    try:
        document = answer.document.encode()
        entry = ActionResult.from_bytes(answer.entry.encode())
        record = Record.from_bytes(document, recipe)
        files = {sha256: BlobFiles(sha256, parts) for sha256, parts in entry.blobs().items()}
        blobs = [files[output.sha256] for output in record.outputs.values()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WrongAnswer(f"it is not a record ({type(error).__name__}: {error})") from error
    if not record.recipe.same_as(recipe):
        raise WrongAnswer(f"it is the record of another {record.recipe.stage}, {record.recipe.key}")
    if set(record.outputs) != outputs:
        raise WrongAnswer(f"its outputs are {', '.join(sorted(record.outputs)) or 'missing'}")
    why_not = local.trust.refusal(
        recipe.key, Output(hashlib.sha256(document).hexdigest(), len(document)), entry.signatures
    )
    if why_not is not None:
        raise WrongAnswer(f"its record does not count: {why_not}")
    exchange.receive(local, blobs)
    return record, entry.signatures
