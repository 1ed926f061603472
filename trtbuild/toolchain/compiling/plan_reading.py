"""Read the types of weights and kernels from a plan of TensorRT-RTX, without a GPU.

TensorRT's engine inspector needs an engine that is loaded on a GPU. But a plan of TensorRT-RTX contains its program as
text, because the kernels are compiled on the machine that runs the engine. NVIDIA does not document these texts. In plans
of release 1.7.1 (SM 75 to 120, for one SM and for several) they have this form:

* Before each text are the four bytes ``NLYM``, four other bytes, and the length of the text (8 bytes, little endian). The
  text begins with ``header {``.
* ``descriptors`` has a line for each tensor, with its type. ``const_payload_size`` is the number of bytes of a weight.
* ``main`` has a line for each kernel, with its operands, its results and the ``layers`` that it computes.
* A kernel of the kind ``runtime_fusion`` consists of other kernels, which have their lines in another text.

Rules
1. For a plan without such a text, the result is None. Only plans of TensorRT-RTX have such texts.
2. A plan may come from an untrusted source. No part of it is executed, and a text in another form is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trtbuild.core.engines.plan_contents import Kernel, PlanContents
from trtbuild.toolchain.onnx_files.onnx_outline import Bytes

_TEXT_START = re.compile(rb"NLYM.{4}(?P<length>.{8})(?=header \{\n)", re.DOTALL)
#: Longer texts and lines are left out (rule 2). The longest line of ResNet-50 has about 1,000 characters.
_LONGEST_TEXT, _LONGEST_LINE = 1 << 28, 1 << 16

#: The plan's name of a type → trtbuild's name.
_TYPE_NAMES = {
    "float": "float32",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8e4m3fn",
    "fp8_e5m2": "float8e5m2",
    "fp4_e2m1": "float4e2m1",
}
#: A tensor with one number of such a type counts as a size or a condition, not as data of the model.
_SIZE_TYPES = ("int64", "int32", "bool")

_STATEMENT = re.compile(r'  (?P<kind>\w+)=\{ name="?(?P<name>[^" ]*)')
_OPERANDS = re.compile(r" (?:input|input_args)=\{(?P<names>[^}]*)\}")
_RESULTS = re.compile(r" (?:output|output_args)=\{(?P<names>[^}]*)\}")
_LAYERS = re.compile(r' layers="(?P<names>[^"]*)"')
_LAYER = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_QUOTED = re.compile(r'"([^"]*)"')
_TENSOR = re.compile(
    r"  tensor=\{ .*?(?:const_payload_size=(?P<size>\d+) )?dims=\{ (?P<dims>[^}]*)\} .*?"
    r'name="(?P<name>[^"]*)" .*?rank0=(?P<rank0>\d) .*?type=(?P<type>\w+) \}'
)


def read_plan(plan: Bytes) -> PlanContents | None:
    """Return the types and kernels that a plan names, or None if it names no kernels."""
    weights: dict[str, int] = {}
    kernels: list[Kernel] = []
    texts = [*_texts(plan)]
    for text in texts:
        types: dict[str, str] = {}
        for match in map(_TENSOR.match, _lines_of(text, "descriptors")):
            if match is None:
                continue
            type_ = _TYPE_NAMES.get(match["type"], match["type"])
            if match["size"] is not None:
                weights[type_] = weights.get(type_, 0) + int(match["size"])
            # Scalars (rank0=1), sizes and conditions are left out.
            if match["rank0"] == "0" and not (match["dims"].strip() == "1" and type_ in _SIZE_TYPES):
                types[match["name"]] = type_
        kernels += (
            _kernel(line, match, types)
            for line in _lines_of(text, "main")
            if (match := _STATEMENT.match(line)) is not None and match["kind"] != "shape_call"
        )
    return PlanContents(weights, tuple(kernels)) if kernels else None


def _texts(plan: Bytes) -> Iterator[str]:
    for match in _TEXT_START.finditer(plan):
        length = int.from_bytes(match["length"], "little")
        if length <= _LONGEST_TEXT:
            yield bytes(plan[match.end() : match.end() + length]).decode("latin-1")


def _lines_of(text: str, section: str) -> list[str]:
    """Return the lines of ``section { … }``."""
    _, found, rest = text.partition(f"\n{section} {{\n")
    lines = rest.partition("\n}\n")[0].split("\n") if found else []
    return [line for line in lines if len(line) <= _LONGEST_LINE]


def _kernel(line: str, match: re.Match[str], types: dict[str, str]) -> Kernel:
    def types_in(pattern: re.Pattern[str]) -> tuple[str, ...]:
        found = pattern.search(line)
        names = _QUOTED.findall(found["names"]) if found else []
        return tuple(dict.fromkeys(types[name] for name in names if name in types))

    layers = _LAYERS.search(line)
    return Kernel(
        kind=match["kind"],
        name=match["name"],
        layers=tuple(_LAYER.findall(layers["names"])) if layers else (),
        reads=types_in(_OPERANDS),
        writes=types_in(_RESULTS),
    )
