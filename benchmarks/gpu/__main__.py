"""``python -m benchmarks.gpu write DIR`` writes projects on any machine, and ``… measure DIR [NAME…]`` measures them on a
GPU host. docs/gpu.md explains both.

The exit code is 1 if a measurement failed. Otherwise it is 0, even if a bound is not met.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from pathlib import Path

from benchmarks.figure import Row, line, table, to_json
from benchmarks.gpu.host import Host
from benchmarks.gpu.lean.project import write_lean
from benchmarks.gpu.project import (
    Hardware,
    write_decoders,
    write_examples,
    write_plugins,
    write_quantized,
    write_resnet,
    write_vit,
)
from benchmarks.gpu.subjects.operators import write_operators

#: The name of a measurement → its module in `benchmarks.gpu.subjects`, in the order in which they run.
SUBJECTS = {
    "engines": "engines",
    "shapes": "shapes",
    "bare": "without_torch",
    "overhead": "overhead",
    "ways": "ways",
    "forms": "forms",
    "latency": "latency",
    "granularity": "granularity",
    "load": "loading",
    "verify": "numerics",
    "quantized": "quantized",
    "decoders": "decoders",
    "plugins": "plugins",
    "operators": "operators",
}


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    examples, vit, quantized, decoders = (
        options.folder / name for name in ("examples", "vit", "quantized", "decoders")
    )
    if options.command == "write":
        hardware = Hardware(options.sm, options.toolchain, options.version, () if options.no_tactic_sources else None)
        write_examples(examples, hardware)
        write_vit(vit, hardware)
        resnet = write_resnet(options.folder / "resnet", hardware)
        write_quantized(quantized, hardware)
        write_decoders(decoders, hardware)
        plugins = write_plugins(options.folder / "plugins", hardware)
        operators = write_operators(options.folder / "operators", hardware)
        lean = write_lean(options.folder / "lean", hardware)
        print(
            f"wrote {examples}, {vit}, {resnet}, {quantized}, {decoders}, {plugins}, {operators} and {lean}; "
            "next: (cd DIR && trtbuild build --until convert)"
        )
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    host = Host(
        examples=examples.absolute(),
        vit=vit.absolute(),
        quantized=quantized.absolute(),
        decoders=decoders.absolute(),
        python_without_torch=options.python_without_torch,
        points=options.points,
        repeats=options.repeats,
        work=options.work.absolute(),
        device=options.device,
    )
    return _measure(host, options.names or list(SUBJECTS), options.json)


def _measure(host: Host, names: list[str], file: Path | None) -> int:
    machine = host.describe()
    print(machine, flush=True)
    measured: list[tuple[str, Row]] = []
    failed: list[str] = []
    for name in names:
        started = time.monotonic()
        print(f"{name}:", flush=True)
        try:
            for row in importlib.import_module(f"benchmarks.gpu.subjects.{SUBJECTS[name]}").rows(host):
                measured.append((name, row))
                print(line(row), flush=True)
        except Exception:  # the other measurements still run
            failed.append(name)
            traceback.print_exc(file=sys.stdout)
        print(f"  [{name} took {time.monotonic() - started:.0f} s]", flush=True)
        if file is not None:
            rows = [{"subject": subject, **to_json(row)} for subject, row in measured]
            file.write_text(json.dumps({"machine": machine, "rows": rows, "failed": failed}, indent=2) + "\n")
    print("\n" + table(measured))
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="write the projects that are measured")
    write.add_argument("folder", type=Path, metavar="DIR")
    write.add_argument("--sm", type=int, default=90, help="the SM of the GPU; default %(default)s")
    write.add_argument("--toolchain", default="tensorrt", choices=["tensorrt", "tensorrt-rtx"])
    write.add_argument("--version", help="the toolchain's version, if this machine has no toolchain or another version")
    write.add_argument("--no-tactic-sources", action="store_true", help="the GPU host has neither cuBLAS nor cuDNN")
    measure = commands.add_parser("measure", help="measure on this GPU host")
    measure.add_argument("folder", type=Path, metavar="DIR")
    # if no name is given, argparse checks that an empty list is one of the `choices`
    measure.add_argument("names", nargs="*", choices=[*SUBJECTS, []], metavar="NAME", help=", ".join(SUBJECTS))
    measure.add_argument("--python-without-torch", type=Path, metavar="PROGRAM", help="builds and runs packages")
    measure.add_argument("--points", type=int, default=6, help="random points of each profile; default %(default)s")
    measure.add_argument("--repeats", type=int, default=200, help="timed calls for each number; default %(default)s")
    measure.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: test the measurements only")
    measure.add_argument("--work", type=Path, default=Path("gpu-work"), metavar="DIR", help="default %(default)s")
    measure.add_argument("--json", type=Path, metavar="FILE", help="write all rows to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
