"""Build and verify models of the zoo with trtbuild's commands, and collect the results of each model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.zoo.models.sizes import SIZE_VARIABLE
from trtbuild.manifest import load

Size = Literal["published", "small"]

#: The only target in the manifest of the zoo.
_TARGET = "ada"


@dataclass(frozen=True, kw_only=True)
class Row:
    """The results of one model.

    `engines` and `torch_partitions` are numbers, or None if the model was not built. `status` is None if `verify` has no
    result for the model. `error` is the worst error of a partition or of the whole model, or None if nothing was compared.
    `problem` says why the model was not built, or why `verify` compared nothing; otherwise it is empty. `seconds` is the
    time of all build steps, or None if the model was not built. A cached step counts with the time of its earlier run.
    """

    model: str
    precision: str
    engines: int | None = None
    torch_partitions: int | None = None
    status: str | None = None
    error: float | None = None
    seconds: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Zoo:
    """The project of the models, its cache, and the size of the models.

    `trtbuild` is the command that starts trtbuild. `jobs` is the number of steps that run at the same time.
    """

    project: Path
    cache: Path
    size: Size
    trtbuild: Sequence[str] = (sys.executable, "-m", "trtbuild")
    jobs: int = 1

    def measure(self, names: Sequence[str]) -> Iterator[list[Row]]:
        """Build the models `names`, or all, and verify them. Yields all rows twice: after the build and after `verify`.

        Raises ValueError if a name is unknown.
        """
        precisions = {model.name: model.precision for model in load(self.project).models}
        if unknown := [name for name in names if name not in precisions]:
            raise ValueError(f"no model {', '.join(unknown)}; the models are {', '.join(precisions)}")
        rows = self.build({name: precisions[name] for name in names or precisions})
        yield rows
        yield self.verify(rows)

    def build(self, models: Mapping[str, str]) -> list[Row]:
        """Build `models` (name → precision), and return their rows."""
        document = self._run("build", [*models, "--keep-going", "--jobs", str(self.jobs)])
        if not document["steps"]:
            raise RuntimeError(f"trtbuild build: {_sentence(document['errors'])}")
        return [
            self._row_of_build(name, precision, [step for step in document["steps"] if step["model"] == name])
            for name, precision in models.items()
        ]

    def verify(self, rows: Sequence[Row]) -> list[Row]:
        """Return `rows` with the results of ``trtbuild verify`` for the models that are built."""
        built = [row.model for row in rows if row.engines is not None]
        if not built:
            return list(rows)
        document = self._run("verify", built)
        entries = {entry["model"]: entry for entry in document["models"]}
        problem = _sentence(document["errors"])
        return [_with_verification(row, entries[row.model], problem) if row.model in entries else row for row in rows]

    def _row_of_build(self, model: str, precision: str, steps: Sequence[Mapping[str, Any]]) -> Row:
        row = Row(model=model, precision=precision)
        if errors := [step["error"] for step in steps if step.get("error")]:
            return replace(row, problem=_sentence(errors))
        index = json.loads((self.project / "dist" / model / "index.json").read_bytes())
        kinds = [part["kind"] for part in index["targets"][_TARGET]["partitions"]["partitions"]]
        return replace(
            row,
            engines=kinds.count("tensorrt"),
            torch_partitions=kinds.count("torch"),
            seconds=sum(step["duration_s"] + step["saved_s"] for step in steps),
        )

    def _run(self, command: str, arguments: Sequence[str]) -> Any:
        """Run a command with ``--json``, and return its document. Raises RuntimeError if there is no document."""
        command_line = [*self.trtbuild, command, *arguments, "-C", str(self.project), "--offline", "--json"]
        variables = {**os.environ, "TRTBUILD_CACHE_DIR": str(self.cache), SIZE_VARIABLE: self.size}
        process = subprocess.run(command_line, env=variables, stdout=subprocess.PIPE, text=True, check=False)
        try:
            return json.loads(process.stdout)
        except ValueError:
            raise RuntimeError(f"trtbuild {command}: exit status {process.returncode}, and no document") from None


def _with_verification(row: Row, entry: Mapping[str, Any], problem: str) -> Row:
    """Return `row` with the results of its verification. `problem` is the first error of the whole command.

    A cut is one way to divide the model into partitions. Each entry of `cuts` is the verification of one cut
    by one runner. It has an error for each partition, and one for the whole model.
    """
    parts = [part for cut in entry["cuts"] for part in (*cut["partitions"], cut["whole"])]
    error = max((part["error"] for part in parts if part["error"] is not None), default=None)
    return replace(row, status=entry["status"], error=error, problem="" if entry["cuts"] else problem)


def _sentence(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return the first line of the first error, and also its second line if the first ends with "fails".

    Without errors, return an empty string.
    """
    lines = [line.strip() for line in errors[0]["text"].strip().splitlines()] if errors else [""]
    return ": ".join(lines[:2] if lines[0].endswith("fails") else lines[:1]).rstrip(":. ")
