"""Tries one case. Its outcome consists of texts and a number, so that it can be sent to another process."""

from __future__ import annotations

import re
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Literal

from tests.fuzz.comparing import differences
from tests.fuzz.generator import case_of
from tests.fuzz.modules import case_text
from tests.fuzz.pipeline import ModuleCase, build
from tests.fuzz.ranges import UnusableCase
from trtbuild.errors import InternalError, TrtbuildError

Verdict = Literal["built", "refused", "skipped", "different", "crashed"]

#: Verdicts that are findings.
FINDINGS = ("different", "crashed")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    `group` is the reason of the verdict, empty for ``built``. `details` are the differences, or the lines of an error.
    `case` is the text of the case, empty if there is no case. `unchecked` are error messages about partitions
    without a kernel in onnxruntime.
    """

    seed: int
    verdict: Verdict
    group: str = ""
    details: tuple[str, ...] = ()
    case: str = ""
    unchecked: tuple[str, ...] = field(default=())


def try_seed(seed: int) -> Outcome:
    """Generate the case of a seed, build it and compare it with PyTorch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case = case_of(seed)
        except UnusableCase as error:
            return Outcome(seed, "skipped", str(error).partition(":")[0], (str(error),))
        return try_case(case, seed)


def try_case(case: ModuleCase, seed: int = -1, *, engines: bool = True) -> Outcome:
    """Build a case, with or without engines, and compare it with PyTorch.

    An InternalError, or an error that is not a TrtbuildError, is a crash.
    """
    text = case_text(case)
    try:
        built = build(case, engines=engines)
        comparison = differences(case, built)
    except InternalError as error:
        return Outcome(seed, "crashed", "InternalError", (str(error),), text)
    except TrtbuildError as error:
        return Outcome(seed, "refused", reason_group(error), (str(error),), text)
    except Exception as error:
        lines = traceback.format_exception(error)
        return Outcome(seed, "crashed", type(error).__name__, tuple("".join(lines).splitlines()[-12:]), text)
    unchecked = tuple(dict.fromkeys(comparison.unchecked))
    if comparison.differences:
        return Outcome(
            seed,
            "different",
            _without_details(comparison.differences[0]),
            tuple(comparison.differences),
            text,
            unchecked,
        )
    return Outcome(seed, "built", "", (), text, unchecked)


def reason_group(error: TrtbuildError) -> str:
    """The type, code and first line of an error, without details (`_without_details`)."""
    code = getattr(error, "code", "")
    first = (error.text.strip().splitlines() or [""])[0]
    return f"{type(error).__name__}{f' ({code})' if code else ''}: {_without_details(first)}"


def _without_details(text: str) -> str:
    """The start of a text, with ellipses in place of numbers, lists and quoted names.

    So errors with the same reason get equal texts.
    """
    return re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\b(?!float\d|int\d|bfloat\d|uint\d)[\w.]*\d[\w.]*", "…", text)[:110]
