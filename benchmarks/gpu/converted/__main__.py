"""Compare TensorRT with onnxruntime, for each converted partition of a project.

    python -m benchmarks.gpu.converted write DIR              on any machine with torch and onnxruntime
    python -m benchmarks.gpu.converted record DIR CASES       on the same machine; DIR may be any other project, too
    python -m benchmarks.gpu.converted samples CASES          instead of both: records calls from PyTorch's own tests
    python -m benchmarks.gpu.converted measure CASES          on the GPU host, which needs no torch

`write` makes a project of the rows of docs/aten-operators.md that trtbuild accepts. `record` builds the project up to its
conversions, and runs them with onnxruntime. `measure` builds an engine for each model with TensorRT, runs the engine, and
prints the differences.
The exit code of `measure` is 1 if an output differs, or if a model failed. Models that TensorRT refuses do not change it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

#: The time limit for one model, in seconds.
_TIMEOUT_S = 300
#: The progress is printed each time that this many models have ended.
_PROGRESS_MODELS = 50


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.command == "write":
        from benchmarks.gpu.converted.project import write_rows
        from benchmarks.gpu.project import Hardware

        tactic_sources = () if options.no_tactic_sources else None
        write_rows(options.project, Hardware(options.sm, options.toolchain, options.version, tactic_sources))
        return 0
    if options.command == "record":
        from benchmarks.gpu.converted.recording import record

        count = record(options.project.absolute(), options.cases)
        print(f"{count} models")
        return 0 if count else 1
    if options.command == "samples":
        from benchmarks.gpu.converted.samples import record_samples
        from trtbuild.core.model.spec import Target

        target = Target("gpu", options.sm, options.toolchain, options.version)
        count = record_samples(options.cases, options.dtype, target)
        print(f"{count} models")
        return 0 if count else 1
    return measure(sorted(options.cases.glob("*.onnx")), options.processes, options.json)


def measure(models: Sequence[Path], process_count: int, file: Path | None) -> int:
    """Run each model in its own process, at most `process_count` at a time.

    Prints each difference, refusal and failure, and their numbers. Returns the exit code.
    """
    found: list[dict[str, Any]] = []
    with ThreadPoolExecutor(process_count) as pool:
        for number, part in enumerate(pool.map(lambda model: list(_rows_of_process(model)), models), 1):
            if number % _PROGRESS_MODELS == 0:
                print(f"{number} of {len(models)} models", file=sys.stderr, flush=True)
            found += part
            for row in part:
                if problem := next(
                    (f"{kind}: {row[kind]}" for kind in ("wrong", "refused", "failed") if kind in row), ""
                ):
                    print(row["model"], row.get("case", ""), row.get("output", ""), problem, flush=True)
    count = Counter(next((kind for kind in ("wrong", "refused", "failed") if kind in row), "equal") for row in found)
    print(
        f"{len(models)} models: {count['equal']} outputs are equal, {count['wrong']} differ; {count['refused']} models "
        f"are refused, {count['failed']} failed"
    )
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if count["wrong"] or count["failed"] else 0


def _rows_of_process(model: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a model. If its process crashes or takes too long, the last row has the key `failed`."""
    command = [sys.executable, "-m", "benchmarks.gpu.converted.process", str(model)]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        yield {"model": model.stem, "failed": f"no end after {_TIMEOUT_S} s"}
        return
    yield from (json.loads(line) for line in process.stdout.splitlines() if line.startswith("{"))
    if process.returncode:
        yield {"model": model.stem, "failed": f"status {process.returncode}: {process.stderr.strip()[-300:]}"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.converted",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="write the project")
    write.add_argument("project", type=Path, metavar="DIR")
    write.add_argument("--no-tactic-sources", action="store_true", help="the GPU host has neither cuBLAS nor cuDNN")
    record = commands.add_parser("record", help="run the conversions with onnxruntime")
    record.add_argument("project", type=Path, metavar="DIR")
    record.add_argument("cases", type=Path, metavar="CASES")
    samples = commands.add_parser("samples", help="convert calls of all operators, and run them with onnxruntime")
    samples.add_argument("cases", type=Path, metavar="CASES")
    samples.add_argument("--dtype", default="float32", help="the dtype of the samples; default %(default)s")
    for command in (write, samples):
        command.add_argument("--sm", type=int, default=90, help="the SM of the GPU; default %(default)s")
        command.add_argument("--toolchain", default="tensorrt", choices=["tensorrt", "tensorrt-rtx"])
        command.add_argument("--version", help="the toolchain's version, if this machine has another version or none")
    measure = commands.add_parser("measure", help="run the conversions with TensorRT")
    measure.add_argument("cases", type=Path, metavar="CASES")
    measure.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one for each core")
    measure.add_argument("--json", type=Path, metavar="FILE", help="write all rows to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
