"""Write the project of `benchmarks.gpu.converted`: each of its models has a few rows of `tests.operators`.

A row is a call of an operator. Rows that trtbuild refuses are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu.project import Hardware
from benchmarks.projects import write
from tests.operators.page import PAGE
from tests.operators.rows import ALONE, CHUNKS, Row
from tests.operators.sharing import share_inputs

#: A model has at most this many rows. If TensorRT cannot build an engine, the other models still show their rows.
_ROWS_PER_MODEL = 10

_MANIFEST = """\
version: 1
include: [targets.yaml]
defaults: {{targets: [gpu], {builder}, partition: {{min_block_size: 1}}}}
profiles:
{profiles}models:
{models}"""
_MODEL = """\
  {name}:
    source: {{python: "models.rows:{name}"}}
    inputs: {inputs}
    dims: {dims}
    profiles: [{profile}]
    precision: {precision}
"""
_SOURCE = """\
import operator

import torch


class Rows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()
"""
_CLASS = '''

class {name}(Rows):
    """{rows}"""

    def forward(self, {arguments}):
        return ({calls},)
'''


def write_rows(folder: Path, hardware: Hardware) -> Path:
    """Write the project. If all inputs of a model are float32, the project also has this model in float16."""
    source, profiles, models = _SOURCE, "", ""
    for number, rows in enumerate(_groups()):
        name = f"Rows{number:02}"
        inputs, calls = share_inputs(rows, [_function(row) for row in rows])
        places: dict[tuple[int, ...], list[str]] = {}  # min, opt and max of a dynamic axis → the axes
        profiles += f"  {name}:\n"
        for k, (_, axes) in enumerate(inputs):
            low, usual, high = ([axis if isinstance(axis, int) else axis[n] for axis in axes] for n in range(3))
            profiles += f"    x{k}: {{min: {low}, opt: {usual}, max: {high}}}\n"
            for axis, size in enumerate(axes):
                if not isinstance(size, int):
                    places.setdefault(size, []).append(f"x{k}.{axis}")
        source += _CLASS.format(
            name=name,
            rows=", ".join(row.operator for row in rows),
            arguments=", ".join(f"x{k}" for k in range(len(inputs))),
            calls=", ".join(calls),
        )
        is_float32 = all(dtype == "float32" for dtype, _ in inputs)
        for suffix, precision in [("", "float32"), *([("Half", "float16")] if is_float32 else [])]:
            source += f"\n\nclass {name}Half({name}):\n    pass\n" if suffix else ""
            models += _MODEL.format(
                name=name + suffix,
                inputs=json.dumps({f"x{k}": {"dtype": dtype} for k, (dtype, _) in enumerate(inputs)}),
                dims=json.dumps({f"n{k}": {"at": axes} for k, axes in enumerate(places.values())}),
                profile=name,
                precision=precision,
            )
    write(folder / "targets.yaml", hardware.manifest())
    write(folder / "models" / "__init__.py", "")
    write(folder / "models" / "rows.py", source)
    builder = hardware.builder("tf32: false")
    write(folder / "trtbuild.yaml", _MANIFEST.format(builder=builder, profiles=profiles, models=models))
    return folder


def _groups() -> Iterator[Sequence[Row]]:
    """Yield the rows of each model. A row in `ALONE` is the only row of its model."""
    refused = set(re.findall(r"^\| `(.+?)` \| (.*?) \| refused \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    for chunk in CHUNKS.values():
        rows = [row for row in chunk if (row.operator, row.note) not in refused]
        yield from ([row] for row in rows if (row.operator, row.note) in ALONE)
        together = [row for row in rows if (row.operator, row.note) not in ALONE]
        for first in range(0, len(together), _ROWS_PER_MODEL):
            yield together[first : first + _ROWS_PER_MODEL]


def _function(row: Row) -> str:
    """Return the Python expression for the operator of a row."""
    return row.operator if row.operator.startswith(("operator.", "torch.")) else f"torch.ops.{row.operator}"
