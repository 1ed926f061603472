"""``python -m benchmarks.zoo``: build and verify the models of the zoo, and write docs/zoo.md.

Exit status 1 if a model is wrong, 2 if a name is unknown. A model that cannot be built has a row with the reason.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from benchmarks.zoo.measuring import Row, Size, Zoo
from benchmarks.zoo.page import line, replace
from trtbuild.manifest import load

_FOLDER = Path(__file__).parent
_PAGE = _FOLDER.parents[1] / "docs" / "zoo.md"


def main(arguments: list[str] | None = None) -> int:
    """Measure the models that are named, or all."""
    options = _parser().parse_args(arguments)
    precisions = {model.name: model.precision for model in load(options.project).models}
    names = [name for name in options.only.split(",") if name] or list(precisions)
    if unknown := [name for name in names if name not in precisions]:
        print(f"no model {', '.join(unknown)}; the models are {', '.join(precisions)}", file=sys.stderr)
        return 2
    zoo = Zoo(options.project.absolute(), options.cache.absolute(), options.size)

    def publish(rows: list[Row]) -> None:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(replace(page, options.size, rows, list(precisions)), encoding="utf-8")

    rows = zoo.build({name: precisions[name] for name in names})
    # Now and after the verification, so that an interrupted run keeps its rows.
    publish(rows)
    rows = zoo.verify(rows)
    publish(rows)
    print(*map(line, rows), sep="\n")
    return 1 if any(row.status == "wrong" for row in rows) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME,…", help="these models; default: all")
    parser.add_argument("--size", choices=get_args(Size), default="published", help="default %(default)s")
    parser.add_argument("--project", type=Path, default=_FOLDER, metavar="DIR", help="default %(default)s")
    parser.add_argument(
        "--cache", type=Path, default=_FOLDER / ".work" / "cache", metavar="DIR", help="default %(default)s"
    )
    parser.add_argument("--page", type=Path, default=_PAGE, metavar="FILE", help="default %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
