"""The configuration of CI's runners: SM of a GPU → the labels of machines with it (``[matrix] sm_89 = ["l4"]``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trtbuild.driver.configuration.file import Place
from trtbuild.driver.configuration.sources import Sources

VARIABLE = "TRTBUILD_MATRIX"

_KEY = re.compile(r"sm_([1-9][0-9]{1,2})")
#: A label of GitHub Actions or a tag of GitLab. Other characters may have a meaning in YAML or in GitHub's expressions.
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.:/-]{0,99}")


def read_runners(sources: Sources) -> Mapping[int, tuple[str, ...]]:
    """Return SM → labels. Errors are added to `sources.problems`."""
    variable = sources.variable(VARIABLE)
    if variable is not None:
        entries = _entries_of_variable(sources, *variable)
    else:
        entries = [
            (key, value, sources.file.place("matrix", key))
            for key, value in sources.in_table("matrix").items()
            if sources.file is not None
        ]
    runners: dict[int, tuple[str, ...]] = {}
    for key, value, place in entries:
        match = _KEY.fullmatch(key)
        if match is None:
            sources.add_problem(place, f"{key!r} is not known here", "write sm_ and the number of the SM: sm_89")
        elif int(match[1]) in runners:
            sources.add_problem(place, f"{key} is set twice", "write all labels of a runner in one entry")
        elif (labels := _labels(sources, key, value, place)) is not None:
            runners[int(match[1])] = labels
    return runners


def _entries_of_variable(sources: Sources, text: str, place: Place) -> list[tuple[str, Any, Place]]:
    """Return (key, labels, place) of each word of the environment variable: ``sm_89=self-hosted,l4 sm_90=h100``."""
    entries: list[tuple[str, Any, Place]] = []
    for word in text.split():
        key, separator, labels = word.partition("=")
        if separator:
            entries.append((key, labels.split(","), place))
        else:
            sources.add_problem(place, f"{word!r} has no labels", "write sm_89=self-hosted,l4 sm_90=h100")
    return entries


def _labels(sources: Sources, key: str, value: Any, place: Place) -> tuple[str, ...] | None:
    """Return the labels of an entry; None if they are not valid."""
    labels = [value] if isinstance(value, str) else value
    if not isinstance(labels, list) or not labels:
        sources.add_problem(place, f"{key} has no labels", f'write {key} = ["self-hosted", "l4"]')
        return None
    for label in labels:
        if not isinstance(label, str) or not _LABEL.fullmatch(label):
            hint = "a label has letters, digits, spaces and _ . : / -, and begins with a letter or a digit"
            sources.add_problem(place, f"{label!r} is not a label of a runner", hint)
            return None
    return tuple(labels)
