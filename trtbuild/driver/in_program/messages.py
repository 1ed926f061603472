"""Reword errors for `trtbuild.compile`: name arguments instead of fields of a manifest.

The errors mention manifests because the code that raises them also serves the command line.

Rules
1. An error keeps its type and its place. Its text and hint are reworded when it leaves a block of `reword_errors`.
2. Errors from a call of a built module are not reworded, because they mention no manifest.
3. A test searches the source code for the words of each pattern of `_REPLACEMENTS`, so a changed message needs a changed
   pattern. Other tests check that no message of `trtbuild.compile` contains the word "manifest".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from trtbuild.errors import TrtbuildError

#: (pattern, replacement). `reword` makes all replacements of the three tables, in their order.
_SETTING_WORDS = (
    (
        r"set `reference: true` in the manifest and build again; then device=\"cpu\" runs it",
        'compile it with device="cpu", which runs it',
    ),
    (r"set require_full_compilation: false", "set require_full_compilation=False"),
    (r"\bpartition\.(?=[a-z])", ""),
    (r"\bbuilder\.(?=[a-z])", ""),
    (r"\bremove (?=[a-z_]+$)", "leave out "),
    (r"set precision: (\w+)", r'give precision="\1"'),
    (r"or pin the target's version", "or give toolchain_version"),
    (r"or change the pin", "or change toolchain_version"),
    (r"write `toolchain: tensorrt` for this target", 'give toolchain="tensorrt"'),
    (r"; `trtbuild build --until convert` runs the steps that need no GPU", ""),
    (r"add a target with sm: (\d+) to the manifest and build", r"compile with target=\1"),
    (
        r"set TRTBUILD_CACHE_DIR to a directory that can be written",
        "give a cache_dir that can be written, or set TRTBUILD_CACHE_DIR",
    ),
)
_INPUT_WORDS = (
    (
        r"these shapes are the opt of the first profile (.+?): correct the profiles",
        r"these shapes are its opt_shape \1: correct inputs",
    ),
    (r"the manifest has (\d+) positional inputs", r"inputs has \1 entries"),
    (
        r"or write `keyword: true` for inputs that are passed by name",
        "or give inputs that are passed by name in kwarg_inputs",
    ),
    (r"which the manifest's inputs do not give", "which is not given"),
    (r"add `(\w+): \{keyword: true\}` to inputs and its shapes to the profiles", r"give \1 in kwarg_inputs"),
    (r"add `(\w+): \{\}` to inputs and its shapes to the profiles", r"give \1 in inputs"),
    (r"the manifest's inputs do not fit", "inputs do not fit"),
    (r"the manifest declares (.+?): write the dtype", r"inputs say \1: give Input the dtype"),
    (
        r"the manifest declares (.+?): indices are integers, such as `\w+: \{dtype: (\w+)\}`",
        r'inputs say \1: indices are integers: Input(…, dtype="\2")',
    ),
    (
        r"integer inputs are 0 and 1 here; say which values the model takes: `(\w+): \{dtype: (\w+), range: [^`]*`",
        r'integer inputs are 0 and 1 here; say which values \1 takes: Input(…, dtype="\2", range=(LOWEST, HIGHEST))',
    ),
    (r"`(\w+): \{range: \[([^\]]*)\]\}`", r"\1: Input(…, range=(\2))"),
    (r"; the manifest declares (.+)$", r"; inputs are \1"),
    (
        r"positional inputs are passed in order; `keyword: true` passes an input by its name",
        "positional inputs are passed in order, and inputs of kwarg_inputs by name",
    ),
    (
        r"export the model from its Python source instead \(`python:`\), or save it with torch\.jit\.trace, which",
        "compile the nn.Module that it was made from, or make it with torch.jit.trace, which",
    ),
    (r"write `state: \[[^\]]*\]` in the manifest, or", "pass it as an input and return its new value, or"),
    (r", or keep it in a buffer that the field `state` names", ""),
    (
        r"register it as a buffer and name it in the manifest's `state`, or",
        "pass it as an input and return its new value, or",
    ),
    (r"in the manifest\b", "in inputs"),
)
_SHAPE_WORDS = (
    (r"leave that size out of the profiles", "leave that size out of inputs"),
    (r"or declare two models with their own profiles", "or compile the module twice, each time for other inputs"),
    (r"which the profiles allow", "which inputs allow"),
    (r"change the profiles' shapes", "change the shapes of inputs"),
    (r"change the profiles so that", "change inputs so that"),
    (r"can be two models, each with its own profiles", "can be two modules, each with its own inputs"),
    (r"a manifest cannot express this relation", "dims cannot express this relation"),
    (r"\(the same min, opt and max in all profiles\)", "(the same size in min_shape, opt_shape and max_shape)"),
    (r"write (\d+|one size) as min, opt and max of (\S+) in every profile",
     r"give \1 for \2 in min_shape, opt_shape and max_shape"),
    (r"dims: \{(\w+): \{at: \[([^\]]*)\]\}\}", r'dims={"\1": "\2"}'),
    (r"dims: \{(\w+): \{at: \[([^\]]*)\], multiple_of: (\d+)\}\}", r'dims={"\1": {"at": "\2", "multiple_of": \3}}'),
)  # fmt: skip
_REPLACEMENTS = tuple(
    (re.compile(pattern), words) for pattern, words in (*_SETTING_WORDS, *_INPUT_WORDS, *_SHAPE_WORDS)
)
#: A dim whose axes are one string, ``dims={"batch": "x.0, y.0"}``. `reword` makes it a list: ``["x.0", "y.0"]``.
_AXES_OF_DIM = re.compile(r'(dims=\{"\w+": (?:\{"at": )?)"([^"]*)"')


@contextlib.contextmanager
def reword_errors() -> Iterator[None]:
    """Reword each TrtbuildError that leaves the block."""
    try:
        yield
    except TrtbuildError as error:
        error.text = reword(error.text)
        error.hint = None if error.hint is None else reword(error.hint)
        error.args = (error.text,)
        raise


def reword(text: str) -> str:
    """Return the text of an error for `trtbuild.compile`."""
    for pattern, words in _REPLACEMENTS:
        text = pattern.sub(words, text)
    return _AXES_OF_DIM.sub(lambda match: f"{match[1]}[{_quote_axes(match[2])}]", text)


def _quote_axes(axes: str) -> str:
    """Return ``"x.0", "y.0"`` for ``x.0, y.0``."""
    return ", ".join(f'"{axis}"' for axis in axes.split(", "))
