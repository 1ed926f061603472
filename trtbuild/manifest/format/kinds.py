"""The kinds of single values in a manifest, such as sizes in bytes, SMs (GPU architectures) and platforms.

A kind is a type with its checks. Values with equal meanings, such as ``"1GiB"`` and 1073741824, become equal here, so they
get equal keys in the cache.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from trtbuild.core.model.builder_settings import INT32_MAX


@dataclass(frozen=True)
class Allowed:
    """Describes the allowed values in messages and in docs/manifest.md. The text can follow the words "must be"."""

    text: str


def invalid_value(text: str, hint: str | None = None) -> PydanticCustomError:
    """A pydantic error whose text and hint become the message to the user, unchanged."""
    return PydanticCustomError("trtbuild", "{text}", {"text": text, "hint": hint})


def join_names(names: Sequence[str], word: str) -> str:
    """The text "`a`, `b` and `c`" for three names and the word "and"."""
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} {word} {last}" if first else last


def _text_schema(schema: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", **schema})


# Names --------------------------------------------------------------------------------------------------------------

_NAME_PATTERN = "^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
_IDENTIFIER_PATTERN = "^[A-Za-z_][A-Za-z0-9_]*$"


def _reject_keyword(name: str) -> str:
    if keyword.iskeyword(name):
        raise invalid_value(f"{name!r} is a keyword of Python, so no argument can have that name")
    return name


#: Names of models, profiles and targets. Step names, paths and command lines contain them.
Name = Annotated[
    str,
    Field(pattern=_NAME_PATTERN, max_length=128),
    Allowed("a name of letters, digits, `_`, `-` and `.`, not starting with `-` or `.`"),
]
#: Names of inputs and dims: arguments of ``forward`` and names of ``torch.export.Dim``.
Identifier = Annotated[
    str,
    Field(pattern=_IDENTIFIER_PATTERN, max_length=128),
    AfterValidator(_reject_keyword),
    Allowed("a Python identifier (letters, digits and `_`)"),
]
EnvironmentName = Annotated[str, Field(pattern=_IDENTIFIER_PATTERN), Allowed("the name of an environment variable")]
PathText = Annotated[
    str,
    Field(min_length=1, pattern=r"^[^\\\x00]+$"),
    Allowed("a path, with `/` between its parts"),
]

# Choices ------------------------------------------------------------------------------------------------------------

Dtype = Literal["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
Precision = Literal["float32", "float16", "bfloat16"]
QuantizationFormat = Literal["int8", "fp8", "int8_weight_only", "int4_weight_only", "nvfp4"]
QuantizationMethod = Literal["max", "entropy", "smoothquant", "awq"]
Toolchain = Literal["tensorrt-rtx", "tensorrt"]
Compatibility = Literal["exact", "same_compute_capability", "ampere_plus"]
Platform = Literal["linux-x86_64", "linux-aarch64", "windows-x86_64"]

#: Other common names of the choices, for hints.
SYNONYMS = {
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "tf32": "float32",
    "single": "float32",
    "double": "float64",
    "fp64": "float64",
    "long": "int64",
    "int": "int32",
    "byte": "uint8",
    "trt": "tensorrt",
    "rtx": "tensorrt-rtx",
    "trt-rtx": "tensorrt-rtx",
    "tensorrt_rtx": "tensorrt-rtx",
    "win-x86_64": "windows-x86_64",
    "windows-amd64": "windows-x86_64",
    "linux-amd64": "linux-x86_64",
    "linux-arm64": "linux-aarch64",
}

# Numbers ------------------------------------------------------------------------------------------------------------

INT64_MAX = 2**63 - 1

Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
#: Negative sizes are rejected here. `core.model.declared_shapes` checks that a dynamic size is at least 1.
Size = Annotated[int, Field(ge=0, le=INT32_MAX), Allowed("a whole number ≥ 0")]
Shape = Annotated[list[Size], Field(max_length=8), Allowed("a list of at most 8 sizes")]

#: The architectures that at least one recent TensorRT release supports.
KNOWN_SMS = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)


def _check_sm(value: Any) -> Any:
    """Return a known SM. For any other number or text, raise an error whose hint names one or all SMs."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return value  # pydantic reports the wrong type
    if isinstance(value, int) and value in KNOWN_SMS:
        return value
    number_text = str(value).casefold().removeprefix("sm").lstrip("_ ")
    number: int | None = None
    if re.fullmatch(r"[0-9]{1,2}\.[0-9]", number_text):
        number = int(number_text.replace(".", ""))
    elif re.fullmatch(r"[0-9]{1,4}", number_text):
        number = int(number_text)
    if number is not None and number not in KNOWN_SMS and number * 10 in KNOWN_SMS:
        number *= 10  # 9 means Hopper, SM 90
    known = ", ".join(map(str, KNOWN_SMS))
    if number in KNOWN_SMS:
        raise invalid_value(
            f"an SM is written as ten times the compute capability, not {value!r}", f"write `sm: {number}`"
        )
    if not isinstance(value, int):
        raise invalid_value(f"`sm` must be a whole number, not {value!r}", f"the SMs are: {known}")
    similar = min(KNOWN_SMS, key=lambda sm: (abs(sm - value), sm))
    raise invalid_value(f"unknown SM {value}", f"did you mean {similar}? the SMs are: {known}")


Sm = Annotated[
    int,
    BeforeValidator(_check_sm),
    WithJsonSchema({"type": "integer", "enum": list(KNOWN_SMS)}),
    Allowed("one of " + ", ".join(map(str, KNOWN_SMS))),
]

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BYTES_PATTERN = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,6}))? ?([A-Za-z]+)", re.ASCII)
_BYTES_ALLOWED = 'a number of bytes > 0, or text such as "512MiB" or "1GiB"'


def _parse_bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _BYTES_PATTERN.fullmatch(value.strip())
    if match is None or match[3] not in _UNITS:
        similar_unit = match and {unit.casefold()[0]: unit for unit in _UNITS}.get(match[3].casefold()[0])
        number_text = match and f"{match[1]}{'.' + match[2] if match[2] else ''}"
        raise invalid_value(
            f"{value!r} is not a size in bytes",
            f"write {number_text}{similar_unit}; the units are {', '.join(_UNITS)}"
            if similar_unit
            else f"write {_BYTES_ALLOWED}",
        )
    fraction = match[2] or ""
    # The arithmetic uses integers, because equal sizes must become equal numbers, and 0.1 has no exact float.
    scaled = int(match[1] + fraction) * _UNITS[match[3]]
    size, remainder = divmod(scaled, 10 ** len(fraction))
    if remainder:
        raise invalid_value(f"{value!r} is not a whole number of bytes", f"write {_BYTES_ALLOWED}")
    return size


Bytes = Annotated[
    int,
    BeforeValidator(_parse_bytes),
    Field(gt=0, le=INT64_MAX),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)? ?(B|KiB|MiB|GiB|TiB)\s*$"},
            ],
            "examples": ["1GiB", "512MiB", 1073741824],
        }
    ),
    Allowed(_BYTES_ALLOWED),
]

# Versions, callables, places, operators --------------------------------------------------------------------------------


def _check_version(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise invalid_value(f"a version is text, not the number {value}", f'put it in quotes: version: "{value}"')
    return value


_VERSION_PATTERN = r"^[0-9]+(\.[0-9]+)*([A-Za-z+_-][A-Za-z0-9.+_-]*|\.(post|dev)[0-9]+)?$"
Version = Annotated[
    str,
    BeforeValidator(_check_version),
    Field(pattern=_VERSION_PATTERN, max_length=64),
    _text_schema({"pattern": _VERSION_PATTERN, "examples": ["8.6.0", "1.7.1.116"]}),
    Allowed('a version in quotes, such as "8.6.0"'),
]

_CALLABLE_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"


def _check_callable(value: str) -> str:
    if re.fullmatch(_CALLABLE_PATTERN[1:-1], value):  # without ^ and $, which are for the JSON Schema
        return value
    module, _, name = value.partition(":")
    guess = module.removesuffix(".py").replace("/", ".").strip(".")
    hint = "write `module.path:callable`, such as `models.vit:build`"
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", guess):
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            hint = f'write "{guess}:{name}"'
        elif not name and "." in guess and ":" not in value and not value.endswith(".py") and "/" not in value:
            hint = f'write "{guess.rpartition(".")[0]}:{guess.rpartition(".")[2]}"'
        elif not name:
            hint = f'name the callable too, such as "{guess}:build"'
    raise invalid_value(f"{value!r} is not the name of a callable", hint)


CallableName = Annotated[
    str,
    AfterValidator(_check_callable),
    _text_schema({"pattern": _CALLABLE_PATTERN, "examples": ["models.vit:build"]}),
    Allowed("`module.path:callable`"),
]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _one_or_more_schema(item: dict[str, Any], examples: list[Any]) -> WithJsonSchema:
    many = {"type": "array", "items": item, "minItems": 1}
    return WithJsonSchema({"anyOf": [item, many], "examples": examples})


ModulePatterns = Annotated[
    list[str],
    BeforeValidator(_as_list),
    Allowed('a list of module paths, such as [head, "*.norm"]'),
    _one_or_more_schema({"type": "string"}, [["head", "*.norm*"]]),
]

#: The name of a TensorRT plugin. The ONNX node that calls the plugin has this name as its operator.
PluginName = Annotated[str, Field(min_length=1), Allowed("the name of a plugin, such as RoiPlugin")]

#: A version or a namespace of a plugin.
PluginText = Annotated[str, Allowed('text in quotes, such as "1"')]

BufferPatterns = Annotated[
    list[str],
    BeforeValidator(_as_list),
    Allowed('a list of names of buffers, such as [counter, "cache.*"]'),
    _one_or_more_schema({"type": "string"}, [["counter", "cache.*"]]),
]

PLACE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*\.[0-9]{1,2}$"
Places = Annotated[
    list[Annotated[str, Field(pattern=PLACE_PATTERN), Allowed("`<input>.<axis>`, such as `image.0`")]],
    BeforeValidator(_as_list),
    Field(min_length=1),
    _one_or_more_schema({"type": "string", "pattern": PLACE_PATTERN}, [["image.0"], ["query.2", "key.2"]]),
    Allowed("a list of places, each an input and an axis, such as [image.0]"),
]

_MODULE_PATTERN = r"^[A-Za-z0-9_*?\[\]!-]+(\.[A-Za-z0-9_*?\[\]!-]+)*$"
Granularity = Annotated[
    list[
        Annotated[str, Field(pattern=_MODULE_PATTERN), Allowed("`model`, or a module path such as `encoder.layers.*`")]
    ],
    BeforeValidator(_as_list),
    Field(min_length=1),
    _one_or_more_schema({"type": "string", "pattern": _MODULE_PATTERN}, ["model", ["encoder.layers.*"]]),
    Allowed("`model`, or a list of module paths such as [encoder.layers.*]"),
]

_OPERATOR_PATTERN = r"^(torch\.ops\.)?[A-Za-z_]\w*(\.|::)[A-Za-z_]\w*(\.[A-Za-z_]\w*)?$"


def _normal_operator(value: str) -> str:
    return value.removeprefix("torch.ops.").replace("::", ".")


def _normal_operators(values: list[str]) -> list[str]:
    """The names, sorted and without duplicates. An overload is removed if its operator is in the list, too."""
    names = set(values)
    return sorted(name for name in names if name.count(".") < 2 or name.rpartition(".")[0] not in names)


_OperatorName = Annotated[
    str,
    Field(pattern=_OPERATOR_PATTERN),
    AfterValidator(_normal_operator),
    Allowed("an operator such as `aten.cumsum.default`, or `aten.cumsum` for all its overloads"),
]
Operators = Annotated[
    list[_OperatorName], AfterValidator(_normal_operators), Allowed("a list of operators such as [aten.cumsum.default]")
]

_TACTIC_SOURCES = ("cublas", "cublas_lt", "cudnn", "edge_mask_convolutions", "jit_convolutions")
TacticSources = Annotated[
    list[
        Annotated[
            Literal["cublas", "cublas_lt", "cudnn", "edge_mask_convolutions", "jit_convolutions"],
            Allowed(", ".join(_TACTIC_SOURCES)),
        ]
    ],
    AfterValidator(lambda values: sorted(set(values))),
    Allowed("a list of tactic sources such as [edge_mask_convolutions, jit_convolutions], or [] for no sources"),
]
