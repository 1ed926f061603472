"""Verifies the answer of a worker, and publishes its record."""

from __future__ import annotations

import hashlib

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.farm.exchange import Exchange
from trtbuild.driver.farm.messages import Answer, BlobFiles
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.trust.action_result import ActionResult

#: The outputs of an engine step.
_OUTPUTS = {"plan", "layers"}


class WrongAnswer(Exception):
    """The answer of a worker is not what was asked for."""


def verified_record(
    answer: Answer, recipe: Recipe, store: LayeredStore, exchange: Exchange, *, replace: bool
) -> Record:
    """The published record of an answer. Its blobs are in the local store then.

    Raises WrongAnswer if the record is for another step, RecordUntrusted if no trusted key has signed it, and another
    StoreError if a blob is missing or has other bytes.
    """
    document = answer.document.encode()
    try:
        entry = ActionResult.from_bytes(answer.entry.encode())
        record = Record.from_bytes(document, recipe)
        files = {sha256: BlobFiles(sha256, parts) for sha256, parts in entry.blobs().items()}
        blobs = [files[output.sha256] for output in record.outputs.values()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WrongAnswer(f"it is not a record ({type(error).__name__}: {error})") from error
    if not record.recipe.same_as(recipe):
        raise WrongAnswer(f"it is the record of another engine, {record.recipe.key}")
    if set(record.outputs) != _OUTPUTS:
        raise WrongAnswer(f"its outputs are {', '.join(sorted(record.outputs)) or 'missing'}")
    why_not = store.local.trust.refusal(
        recipe.key, Output(hashlib.sha256(document).hexdigest(), len(document)), entry.signatures
    )
    if why_not is not None:
        raise WrongAnswer(f"its record does not count: {why_not}")
    exchange.receive(store.local, blobs)
    return store.put_record_copy(record, document, entry.signatures, replace=replace)
