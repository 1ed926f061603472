"""Trace jobs: their JSON, and their origins in the manifest. The modules that plan a trace do not import torch."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

from trtbuild.core.model.shapes import ShapePlan, Symbol, SymbolAxis
from trtbuild.core.model.spec import Input, Source
from trtbuild.core.values.codec import decode, encode
from trtbuild.stages.trace import TraceJob

JOB = TraceJob(
    source=Source(
        "python",
        "models.vit:build",
        {"rate": 0.1, "tiny": -0.0, "deep": {"names": ["a", None, True, 1, 1.0], "kinds": {}}, "$odd": b"\x00\xff"},
        deps=("data/*.json",),
        env=("MODE",),
        cacheable=False,
        roots=("models", "."),
    ),
    inputs=(Input("image", "float16", range=(0.1, 1.0)), Input("mask", "bool", keyword=True)),
    shapes=ShapePlan(
        (Symbol("batch", 1, 32, example=8), Symbol("height", 64, 640, example=320, multiple_of=32)),
        ((SymbolAxis(0), 3, SymbolAxis(1)), ()),
    ),
    points=((1, 64), (32, 640)),
    weights=(("head.weight", "float32", (2, 3)), ("scale", "float32", ())),
    origins={"inputs.image": "trtbuild.yaml:12"},
)


def test_a_job_decoded_from_json_equals_the_original() -> None:
    decoded = decode(TraceJob, json.loads(json.dumps(encode(JOB))))
    assert decoded == JOB
    assert decoded.origins == JOB.origins
    kwargs = decoded.source.kwargs
    assert struct.pack(">d", kwargs["tiny"]) == struct.pack(">d", -0.0)
    assert [*kwargs["deep"]] == ["names", "kinds"]  # a source may depend on the order of the keys
    assert type(kwargs["deep"]["names"][4]) is float and type(kwargs["deep"]["names"][3]) is int


def test_a_job_without_a_weights_file_differs_from_a_job_with_an_empty_file() -> None:
    without = decode(TraceJob, {**encode(JOB), "weights": None})
    assert without.weights is None
    assert decode(TraceJob, {**encode(JOB), "weights": []}).weights == ()


def test_a_place_is_the_first_known_origin() -> None:
    assert JOB.place("dims.height", "inputs.image") == {"file": "trtbuild.yaml", "line": 12}
    assert JOB.place("dims.height") == {}


def test_the_modules_that_plan_a_trace_import_no_torch() -> None:
    code = (
        "import sys, trtbuild.stages.trace, trtbuild.stages.trace.user_code.observe; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
