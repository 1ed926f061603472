"""The validator converts a candidate partition to ONNX, and asks TensorRT's parser whether it accepts the ONNX model.

If the store has the conversion already, it is used. New conversions are stored as blobs. Their records go to the driver,
which signs and publishes them.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from trtbuild.core.planning.jobs import PartitionJob
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.workers.results import Conversion
from trtbuild.errors import BlobMissing, ConversionRefused, EntryCorrupt, RecordUntrusted


class Validator:
    """Asks the parser about candidate partitions. `store` must check records by the trust policy of the job."""

    def __init__(self, store: Store, job: PartitionJob) -> None:
        from trtbuild.toolchain.compiling.parsing import Parser

        self._store = store
        self._opset = job.opset
        self._versions = job.versions
        self._plugins = job.plugins
        self._parser = Parser(
            job.toolchain, job.toolchain_version, job.stand_in, truncates_double=job.settings.truncate_double
        )
        self._new_records: dict[str, Record] = {}
        self._durations_s: dict[str, float] = {}

    @property
    def new_conversions(self) -> dict[str, Conversion]:
        """Key → conversion, for each conversion that this validator has made."""
        return {
            key: Conversion(self._durations_s[key], record.to_bytes().decode())
            for key, record in self._new_records.items()
        }

    def untranslatable_calls(self, program: Any) -> dict[int, str]:
        """Number → reason, for each operator call without an ONNX translation."""
        from trtbuild.stages.convert.conversion import untranslatable_calls

        return {
            index: f"{name} has no ONNX translation" for index, name in untranslatable_calls(program, self._plugins)
        }

    def refusal(self, program: Any, text: str) -> Any:
        """Return the `Refusal` of a candidate, or None if the parser accepts it. `text` is the program's canonical text."""
        from trtbuild.stages.convert.plugins import without_plugins
        from trtbuild.stages.partition.run import Refusal
        from trtbuild.stages.program.symbols import declared_types, largest_sizes

        try:
            model, origins = self._convert(program, text)
        except ConversionRefused as refused:
            return Refusal(refused.text, dict.fromkeys(refused.nodes, refused.text))
        largest_by_name = {f"i{number}": size for number, size in enumerate(largest_sizes(program))}
        parsed = without_plugins(model) if self._plugins else model
        # without its plugin calls, the model has other inputs, so only the engine step compares the types
        answer = self._parser.find_refusal(
            parsed, largest_by_name, declared_types(program) if parsed == model else None
        )
        if answer is None:
            return None
        call_numbers = dict(origins)
        reason = "; ".join(answer.messages) or "the parser does not take it"
        return Refusal(
            reason,
            {call_numbers[node]: answer.reasons.get(node, reason) for node in answer.nodes if node in call_numbers},
        )

    def _convert(self, program: Any, text: str) -> tuple[bytes, list[tuple[str, int]]]:
        """Return the ONNX model of a candidate, and (node, number of its operator call) for each node. Raises
        ConversionRefused."""
        import hashlib

        from trtbuild.stages.convert.conversion import convert
        from trtbuild.stages.program.plugins import plugins_called

        plugins = plugins_called(program.graph, self._plugins)
        recipe = keys.convert(hashlib.sha256(text.encode()).hexdigest(), self._opset, self._versions, plugins)
        unusable = (BlobMissing, EntryCorrupt, RecordUntrusted, KeyError, TypeError, ValueError, RecursionError)
        with contextlib.suppress(*unusable):  # an unusable conversion is made again
            record = self._new_records.get(recipe.key) or self._store.get_record(recipe.key)
            if record is not None and record.recipe.same_as(recipe):
                origins = json.loads(self._store.get_bytes(record.outputs["origins"].sha256))
                return self._store.get_bytes(record.outputs["onnx"].sha256), [(name, call) for name, call in origins]
        started = time.monotonic()
        converted = convert(program, self._opset, plugins)
        outputs = conversion_outputs(converted, self._store)
        self._durations_s[recipe.key] = time.monotonic() - started
        self._new_records[recipe.key] = Record(recipe, outputs, {"duration_s": self._durations_s[recipe.key]})
        return converted.model, list(converted.origins)


def conversion_outputs(converted: Any, store: Store) -> dict[str, Output]:
    """Store and return the outputs of a convert step: the ONNX model, and the number of each node's operator call."""
    origins = json.dumps([[name, call] for name, call in converted.origins]).encode()
    return {"onnx": store.put_bytes(converted.model), "origins": store.put_bytes(origins)}
