"""The messages about wrong fields. « marks the line and column that a message must name."""

from __future__ import annotations

import pytest

from tests.manifest.conftest import BASE, Files
from trtbuild.manifest.format.wording import ExpectedType, allowed_text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("«precison: float16", "unknown field 'precison'\n  → did you mean 'precision'?"),
        ("«zzz: 1", "unknown field 'zzz'\n  → the fields here are: "),
        ("precision: «fp16", "must be one of float32, float16, bfloat16, not the text 'fp16'\n  → did you mean 'float16'?"),
        ("precision: «16", "not the number 16"),
        ("precision:«", "not nothing (null)"),
        ("precision: «[float16]", "not a list"),
        ("precision: «[float16]", "a mapping sets other precisions for modules: {default: float16, float32: "),
        ("«precision: {}", "`precision` must be one of float32, float16, bfloat16, not an empty mapping"),
        ("precision: {default: «fp16}", "`default` must be one of float32, float16, bfloat16, not the text 'fp16'"),
        ("precision: {default: float16, «float8: [a]}", "unknown field 'float8'\n  → did you mean 'float"),
        ("precision: {default: float16, float32: «3}", "`float32` must be a list of module paths"),
        ("precision: {default: float16, float32: [«3]}", "each entry of `float32` must be text, not the number 3"),
        ("«precision: {float32: [head]}", "lists modules under `float32` only, and float32 is its default anyway"),
        ("precision: {float16: [a, b], bfloat16: [c, «b]}", "'b' is listed under `float16` and `bfloat16`"),
        ("toolchain: «tensort", "did you mean 'tensorrt'?"),
        ("toolchain: «trt", "did you mean 'tensorrt'?"),
        ("weights: «3", "`weights` must be a path, with `/` between its parts, not the number 3\n  → put it in quotes"),
        ("weights: «a\\b.pt", "write a/b.pt"),
        ("weights: «''", "`weights` must be a path"),
        ('weights: «"a\\0"', "`weights` must be a path"),
        ("dims: «[x.0]", "`dims` must be a mapping, not a list"),
        ("dims: {«2n: x.0}", "'2n' cannot be a name here\n  → it must be a Python identifier"),
        ("dims: {«if: x.0}", "'if' is a keyword of Python"),
        ("dims: {n: «x}", "each entry of `at` must be `<input>.<axis>`, such as `image.0`, not the text 'x'"),
        ("dims: {n: [x.0, «x.b]}", "not the text 'x.b'"),
        ("dims: {n: {at: [«0]}}", "not the number 0"),
        ("dims: {n: «[]}", "`at` must be a list of places"),
        ("dims: {«n: {multiple_of: 2}}", "the field `at` is missing"),
        ("dims: {n: {at: x.0, multiple_of: «0}}", "`multiple_of` must be a whole number ≥ 1, not the number 0"),
        ("dims: {n: {at: x.0, «multiple: 2}}", "did you mean 'multiple_of'?"),
        ("partition: {min_block_size: «0}", "a whole number ≥ 1, not the number 0"),
        ("partition: {min_block_size: «'5'}", "→ write 5, without quotes or underscores"),
        ("partition: {min_block_size: «1_0}", "→ write 10, without quotes or underscores"),
        ("partition: {min_block_size: «5.0}", "→ write 5"),
        ("partition: {min_block_size: «true}", "not true"),
        ("partition: {require_full_compilation: «yes}", "must be true or false, not the text 'yes'\n  → write true"),
        ("partition: {require_full_compilation: «off}", "→ write false"),
        ("partition: {require_full_compilation: «1}", "not the number 1\n  → write true"),
        ("partition: {granularity: «[]}", "not an empty list"),
        ("partition: {granularity: [a, «b c]}", "each entry of `granularity` must be `model`, or a module path"),
        ("partition: {torch_executed_ops: «aten.mm}", "must be a list of operators such as [aten.cumsum.default], "
         "not the text 'aten.mm'\n  → write [aten.mm]"),
        ("partition: {torch_executed_ops: [aten.mm, «mm]}", "each entry of `torch_executed_ops` must be an operator"),
        ("builder: {optimization_level: «6}", "a whole number from 0 to 5, not the number 6"),
        ("builder: {optimization_level: «-1}", "a whole number from 0 to 5"),
        ("builder: {workspace: «0}", 'a number of bytes > 0, or text such as "512MiB" or "1GiB", not the number 0'),
        ("builder: {workspace: «1GB}", "'1GB' is not a size in bytes\n  → write 1GiB"),
        ("builder: {max_aux_streams: «-1}", "a whole number ≥ 0"),
        ("builder: {avg_timing_iterations: «9999999999}", "at most 2147483647"),
        ("builder: {profiling_verbosity: «detail}", "did you mean 'detailed'?"),
        ("builder: {tiling_optimization_level: «1}", "one of none, fast, moderate, full, not the number 1"),
        ("builder: {«workspac: 1GiB}", "did you mean 'workspace'?"),
        ("builder: {tf32: «[]}", "true or false, not an empty list"),
        ("outputs: «dist", "`outputs` must be a mapping, not the text 'dist'"),
        ("outputs: {«packge: dist}", "did you mean 'package'?"),
    ],
)  # fmt: skip
def test_rejects_wrong_fields_of_a_model(files: Files, more: str, words: str) -> None:
    files.assert_base_refused(more, words)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{dtype: float32}", "{dtype: «flot32}", "did you mean 'float32'?"),
        ("{dtype: float32}", "{dtype: «long}", "did you mean 'int64'?"),
        (
            "{dtype: float32}",
            "{dtype: «int16}",
            "one of bool, uint8, int8, int32, int64, float16, bfloat16, float32, float64",
        ),
        ("{dtype: float32}", "{«type: float32}", "did you mean 'dtype'?"),
        ("{dtype: float32}", "{keyword: «'true'}", "must be true or false, not the text 'true'\n  → write true"),
        ("{dtype: float32}", "«float32", "`x` must be a mapping, not the text 'float32'"),
        ("inputs: {x: {dtype: float32}}", "inputs: «[x]", "`inputs` must be a mapping, not a list"),
        ("{x: {dtype: float32}}", "{x: , «x-y: }", "'x-y' cannot be a name here"),
        (
            "profiles: [batch]",
            "profiles: «batch",
            "a list of names such as [a, b], not the text 'batch'\n  → write [batch]",
        ),
        ("profiles: [batch]", "profiles: «[]", "a list of names such as [a, b], not an empty list"),
        (
            "targets: [ada]",
            "targets: [ada, «1]",
            "each entry of `targets` must be text, not the number 1\n  → put it in quotes",
        ),
        ("{sm: 89}", "{sm: «8.9}", "write `sm: 89`"),
        ("{sm: 89}", "{sm: «88}", "unknown SM 88\n  → did you mean 87?"),
        ("  ada: {sm: 89}", "  «ada: {}", "the field `sm` is missing\n  → `sm` is one of 75, 80"),
        ("  ada: {sm: 89}", "  ada:«", "`ada` must be a mapping, not nothing (null)"),
        (
            "{sm: 89}",
            "{sm: 89, version: «8.6}",
            'a version is text, not the number 8.6\n  → put it in quotes: version: "8.6"',
        ),
        ("{sm: 89}", "{sm: 89, version: «'>=8'}", 'a version in quotes, such as "8.6.0"'),
        ("{sm: 89}", "{sm: 89, compatibility: «same}", "one of exact, same_compute_capability, ampere_plus"),
        ("{sm: 89}", "{sm: 89, platform: «windows}", "did you mean 'windows-x86_64'?"),
        ("{sm: 89}", "{sm: 89, «compat: exact}", "did you mean 'compatibility'?"),
        ("  ada:", "  «a/b: {sm: 89}\n  ada:", "'a/b' cannot be a name here\n  → it must be a name of letters"),
        (
            "targets:\n  ada: {sm: 89}",
            "targets: «[ada]\ndefaults: {}",
            "`targets` must be a mapping of names, not a list",
        ),
        ("min: [1, 8]", "min: [1, «-8]", "each entry of `min` must be a whole number ≥ 0, not the number -8"),
        ("min: [1, 8]", "min: [1, «'8']", "write 8, without quotes or underscores"),
        ("min: [1, 8]", "min: [1, «8.0]", "write 8"),
        ("min: [1, 8]", "min: «8", "`min` must be a list of at most 8 sizes, not the number 8\n  → write [8]"),
        ("min: [1, 8]", "min: «[1, 2, 3, 4, 5, 6, 7, 8, 9]", "a list of at most 8 sizes, not a list of 9"),
        ("    x: {min: [1, 8], ", "    «x: {", "`min` is missing"),
        ("    x: {min: [1, 8], opt: [4, 8], ", "    «x: {", "`min` and `opt` are missing"),
        ("    x: {min: [1, 8], ", "    «x: {shape: [1, 8], ", "`shape` and `opt` cannot be used together"),
        ("{min: [1, 8], opt: [4, 8], max: [32, 8]}", "«[1, 8]", "`x` must be a mapping, not a list"),
        (
            "    x: {min: [1, 8], opt: [4, 8], max: [32, 8]}",
            "    «x: {shape: }",
            "a shape is a list of sizes, not null",
        ),
        ("min: [1, 8]", "«mni: [1, 8]", "did you mean 'min'?"),
        ("version: 1", "version: 1\n«profile: {}", "unknown field 'profile'\n  → did you mean 'profiles'?"),
    ],
)
def test_rejects_wrong_values_anywhere_in_a_manifest(files: Files, old: str, new: str, words: str) -> None:
    assert old in BASE
    files.assert_refused(BASE.replace(old, new, 1), words)


def test_all_problems_are_reported_at_once(files: Files) -> None:
    files.assert_refused(
        """\
        version: 1
        targets: {ada: {sm: «88}}
        profiles: {p: {x: {min: [1, «5], opt: [1, 4], max: [1, 8]}}}
        models:
          net:
            source: {python: «net}
            inputs: {x: {dtype: «floot}, y: }
            dims: {n: {at: «z.0}, m: {at: «x.9}, k: {at: x.0, multiple_of: «0}}
            profiles: [«p, «q]
            targets: [ada, «adda]
            precision: «half
            partition: {min_block_size: «0}
            builder: {tf32: «on, refit: «no}
            outputs: {package: «/x, plans: «../y}
            weights: «gone.pt
            «wieghts: a
        """,
        "unknown target 'adda'",
        "profile 'p' has no shape for input 'y'",
        "there is no input 'z'",
        "dim 'm' is at x.9, but 'x' has 2 axes",
    )


def test_an_aliased_value_is_reported_once(files: Files) -> None:
    text = BASE.replace("{sm: 89}", "&t {sm: «88}\n  two: *t")
    assert len(files.assert_refused(text)) == 1


def test_the_text_about_allowed_values_describes_the_type() -> None:
    assert allowed_text(ExpectedType(int)) == "a whole number"
    assert allowed_text(ExpectedType(bool)) == "true or false"
    assert allowed_text(ExpectedType(list[int])) == "a list"
    assert allowed_text(ExpectedType(dict[str, int])) == "a mapping"
