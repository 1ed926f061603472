"""Asking the parser about a candidate: it is converted first; conversions are looked up in the store, and kept there."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from trtbuild.core import keys
from trtbuild.core.ports import Store
from trtbuild.core.record import Output, Record
from trtbuild.errors import BlobMissing, ConversionRefused, EntryCorrupt

Job = Mapping[str, Any]


class Judge:
    """Converts candidates (looking in the store first, keeping what it makes there) and asks the parser."""

    def __init__(self, store: Store, job: Job) -> None:
        from trtbuild.toolchain.parsing import Parser

        self._store = store
        self._opset: int = job["opset"]
        self._versions: dict[str, str] = job["versions"]
        self._parser = Parser(job["toolchain"], job["toolchain_version"])
        #: Key of each conversion made here → seconds.
        self.made: dict[str, float] = {}

    def untranslatable(self, program: Any) -> dict[int, str]:
        from trtbuild.stages.convert.conversion import untranslatable

        return {index: f"{name} has no ONNX translation" for index, name in untranslatable(program)}

    def refusal(self, program: Any, text: str) -> Any:
        from trtbuild.stages.partition.run import Refusal

        try:
            model, origins = self._converted(program, text)
        except ConversionRefused as refused:
            return Refusal(refused.text, dict.fromkeys(refused.nodes, refused.text))
        answer = self._parser.refused(model)
        if answer is None:
            return None
        calls = dict(origins)
        said = "; ".join(answer.messages) or "the parser does not take it"
        return Refusal(said, {calls[node]: said for node in answer.nodes if node in calls})

    def _converted(self, program: Any, text: str) -> tuple[bytes, list[tuple[str, int]]]:
        import hashlib

        from trtbuild.stages.convert.conversion import convert

        recipe = keys.convert(hashlib.sha256(text.encode()).hexdigest(), self._opset, self._versions)
        with contextlib.suppress(BlobMissing, EntryCorrupt, KeyError, ValueError):  # else it is made, and kept, again
            record = self._store.get_record(recipe.key)
            if record is not None and record.recipe.same_as(recipe):
                origins = json.loads(self._store.get_bytes(record.outputs["origins"].sha256))
                return self._store.get_bytes(record.outputs["onnx"].sha256), [(name, call) for name, call in origins]
        started = time.monotonic()
        converted = convert(program, self._opset)
        outputs = conversion_outputs(converted, self._store)
        duration = time.monotonic() - started
        self._store.put_record(Record(recipe, outputs, {"duration_s": duration}), replace=True)
        self.made[recipe.key] = duration
        return converted.model, list(converted.origins)


def conversion_outputs(converted: Any, store: Store) -> dict[str, Output]:
    """The outputs of a convert step: its model, and which call each node comes from."""
    origins = json.dumps([[name, call] for name, call in converted.origins]).encode()
    return {"onnx": store.put_bytes(converted.model), "origins": store.put_bytes(origins)}
