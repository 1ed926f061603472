"""``python -m benchmarks [NAME…]``: run benchmarks, print each row at once, and print a table of verdicts at the end.

A verdict says whether a row meets its bound. The exit code is 1 if a benchmark failed, or if a bound is not met and
``--strict`` is given. Otherwise it is 0.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

from benchmarks.figure import Row, line, table, to_json
from benchmarks.measurements import (
    chunks,
    cold_architectures,
    cold_build,
    crowd,
    digests,
    farm,
    in_program,
    large,
    load,
    null_build,
    one_layer,
    plan_speed,
    pull,
    restore,
    transfer,
    watch,
)
from benchmarks.session import Session, Sizes

#: Name → benchmark, in the order in which they run.
BENCHMARKS: dict[str, Callable[[Session], Iterator[Row]]] = {
    "digest": digests.rows,
    "chunks": chunks.rows,
    "cold": cold_build.rows,
    "cold-models": cold_architectures.rows,
    "layer": one_layer.rows,
    "watch": watch.rows,
    "compile": in_program.rows,
    "restore": restore.rows,
    "pull": pull.rows,
    "crowd": crowd.rows,
    "transfer": transfer.rows,
    "load": load.rows,
    "large": large.rows,
    "farm": farm.rows,
    "null": null_build.rows,
    "plan": plan_speed.rows,
}

_WORK = Path(__file__).parent / ".work"


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    sizes = replace(
        Sizes(), **{field.name: value for field in fields(Sizes) if (value := getattr(options, field.name)) is not None}
    )
    if options.full:
        sizes = replace(sizes, weights_gb=10.0)
    session = Session(options.work.absolute(), sizes, peers=options.peers.absolute())
    if options.trtbuild:
        session.trtbuild = options.trtbuild.absolute()
    measured: list[tuple[str, Row]] = []
    failed: list[str] = []
    print(_machine(), flush=True)
    for name in options.names or BENCHMARKS:
        started = time.monotonic()
        print(f"{name}: {BENCHMARKS[name].__module__}", flush=True)
        try:
            for row in BENCHMARKS[name](session):
                measured.append((name, row))
                print(line(row), flush=True)
        except Exception:  # the other benchmarks still run
            failed.append(name)
            traceback.print_exc()
        print(f"  [{name} took {time.monotonic() - started:.0f} s; load {os.getloadavg()[0]:.1f}]", flush=True)
    print("\n" + table(measured))
    not_met = [f"{name}: {row.what}" for name, row in measured if row.met is False]
    print(
        f"\n{sum(row.met is True for _, row in measured)} met, {len(not_met)} not met, {len(failed)} failed {failed or ''}"
    )
    if options.json:
        document = {"machine": _machine(), "rows": [{"benchmark": name, **to_json(row)} for name, row in measured]}
        options.json.write_text(json.dumps({**document, "failed": failed}, indent=2) + "\n")
    return 1 if failed or (options.strict and not_met) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    # if no name is given, argparse checks that an empty list is one of the `choices`
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--full", action="store_true", help="use a weights file of 10 GB instead of 2 GB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows to this file")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bound is not met")
    parser.add_argument(
        "--work", type=Path, default=_WORK, metavar="DIR", help="folder of projects and caches; default %(default)s"
    )
    parser.add_argument(
        "--peers", type=Path, default=_WORK / "peers", metavar="VENV", help="virtual environment with doit and dvc"
    )
    parser.add_argument("--trtbuild", type=Path, metavar="PROGRAM", help="the trtbuild program to measure")
    sizes = parser.add_argument_group("sizes (smaller ones give a quick estimate)")
    for field in fields(Sizes):
        kind = float if isinstance(field.default, float) else int
        sizes.add_argument(f"--{field.name.replace('_', '-')}", type=kind, metavar="N", help=f"default {field.default}")
    return parser


def _machine() -> str:
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    return f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores, load {load}"


if __name__ == "__main__":
    sys.exit(main())
