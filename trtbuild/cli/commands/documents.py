"""The JSON Schemas of the documents that commands print with ``--json``, and of the lines of ``build --events``."""

from __future__ import annotations

from typing import Any

from trtbuild.core.values.json_schema import DIALECT, schema_of
from trtbuild.driver.answers import documents as answers
from trtbuild.driver.answers.differences import Diff
from trtbuild.driver.cache import documents as caches
from trtbuild.driver.doctor.examination import Diagnosis
from trtbuild.driver.event_log import events
from trtbuild.driver.inspection.documents import Inspection, Inspections
from trtbuild.driver.inspection.precision import InspectedPrecision
from trtbuild.driver.project.versions import Versions
from trtbuild.driver.reports.report_file import WrittenReport
from trtbuild.driver.running.documents import Bench, Run

DOCUMENTS = (
    answers.Affected,
    answers.Build,
    answers.Failure,
    answers.Graph,
    answers.NewProject,
    answers.Plan,
    answers.Status,
    answers.Verification,
    answers.Why,
    caches.CacheExport,
    caches.CacheGc,
    caches.CacheImport,
    caches.CachePull,
    caches.CachePush,
    caches.CacheStats,
    caches.CacheVerify,
    caches.Locked,
    caches.NewKey,
    Bench,
    Diagnosis,
    Diff,
    Inspection,
    Inspections,
    InspectedPrecision,
    Run,
    Versions,
    WrittenReport,
)

#: The lines of ``build --events``.
EVENTS = tuple(events.KINDS.values())


def schema() -> dict[str, Any]:
    """One schema for all documents and events, with a definition for each kind."""
    definitions: dict[str, Any] = {}
    kinds = [schema_of(kind, definitions) for kind in (*DOCUMENTS, *EVENTS)]
    return {
        "$schema": DIALECT,
        "title": "The documents that trtbuild prints with --json, and the events of build --events",
        "anyOf": kinds,
        "$defs": dict(sorted(definitions.items())),
    }
