"""``python -m benchmarks.zoo``: build and verify public architectures, and write docs/zoo.md.

The exit status is 1 if a model is wrong, and 2 if a name is unknown or the page has no place for the table. The row of a
model that cannot be built says why.
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
    options = _parser().parse_args(arguments)
    zoo = Zoo(_FOLDER, options.cache.absolute(), options.size)
    order = [model.name for model in load(_FOLDER).models]
    rows: list[Row] = []
    try:
        # The page is written before the verification, too, so that an interrupted verification does not lose the rows.
        for rows in zoo.measure([name for name in options.only.split(",") if name]):
            page = options.page.read_text(encoding="utf-8")
            options.page.write_text(replace(page, options.size, rows, order), encoding="utf-8")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(*map(line, rows), sep="\n")
    return 1 if any(row.status == "wrong" for row in rows) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME,…", help="these models; default: all")
    parser.add_argument("--size", choices=get_args(Size), default="published", help="default %(default)s")
    parser.add_argument(
        "--cache", type=Path, default=_FOLDER / ".work" / "cache", metavar="DIR", help="default %(default)s"
    )
    parser.add_argument("--page", type=Path, default=_PAGE, metavar="FILE", help="default %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
