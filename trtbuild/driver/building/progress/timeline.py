"""The timeline of a build (`--trace`): when each step ran, as Chrome trace events.

ui.perfetto.dev and chrome://tracing open the file. Its format is "Trace Event Format" of the Catapult project, with times
in µs.

Rules
1. Events in one lane (a row, which the format calls a "thread") do not overlap. Steps have the lanes of workers. Phases,
   such as planning, have the lanes of the build.
2. The file is written when the build ends, with or without an error. It replaces a regular file atomically. Steps that
   still run are marked as interrupted.
3. If the file cannot be written, the command fails before the build starts. A failure at the end is only reported.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtbuild.atomic import replace_file
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.values.codec import encode
from trtbuild.driver.building.progress.events import LastDuration, Watcher
from trtbuild.driver.building.progress.lanes import Lanes
from trtbuild.driver.project.outcome import StepRun
from trtbuild.errors import TrtbuildError, UsageError

#: An event of the format, or a part of an event.
JsonObject = dict[str, Any]

#: The two groups of lanes, which the format calls "processes".
BUILD_PROCESS, WORKER_PROCESS = 1, 2


class Timeline(Watcher):
    """Collects events and writes them to `path`. `report_error` gets a message if writing fails at the end.

    Raises UsageError if `path` cannot be written.
    """

    def __init__(self, path: str | Path, report_error: Callable[[str], None]) -> None:
        self._report_error = report_error
        self._path = Path(path).absolute()
        if self._path.is_dir() or not os.access(self._path if self._path.exists() else self._path.parent, os.W_OK):
            raise UsageError(f"--trace {path}: the file cannot be written", hint="name a file in a writable directory")
        self._lock = threading.Lock()
        self._start_s = time.perf_counter()
        self._start_unix_s = time.time()
        self._lanes = {BUILD_PROCESS: Lanes("build"), WORKER_PROCESS: Lanes("worker")}
        #: (Process, name) → lane, start in µs, category and arguments, for events that have not ended.
        self._open_events: dict[tuple[int, str], tuple[int, float, JsonObject]] = {}
        self._events: list[JsonObject] = []

    def build_started(self, jobs: int, last_duration_s: LastDuration) -> None:
        """The timeline does not show this event."""

    def model_planned(self, plan: ModelPlan) -> None:
        """The timeline does not show this event."""

    def step_started(self, step: Step) -> None:
        reason = {"code": step.reason.code, "text": step.reason.text}
        changed = encode(step.reason.changed)
        args = {"model": step.model, "target": step.target, "key": step.key, "reason": reason, "changed": changed}
        self._begin(WORKER_PROCESS, step.id, step.stage, args)

    def step_finished(self, step: Step, ran: StepRun) -> None:
        # only now is the key of a trace step known, because it contains the observed dependencies
        args: JsonObject = {
            "verdict": "run" if ran.source == "built" else "hit",
            "source": ran.source,
            "key": ran.record.recipe.key,
        }
        statistics = ran.record.provenance.get("statistics")
        if isinstance(statistics, dict):
            args["statistics"] = statistics
        if ran.peak_rss_bytes:
            args["peak_rss_bytes"] = ran.peak_rss_bytes
        if ran.worker is not None:
            args["worker"] = ran.worker
        if ran.conversions:
            args["conversions"] = len(ran.conversions)
        self._end(WORKER_PROCESS, step.id, args)

    def step_failed(self, step: Step, error: TrtbuildError) -> None:
        self._end(WORKER_PROCESS, step.id, {"verdict": "failed", "error": type(error).__name__, "text": error.text})

    def phase_started(self, name: str) -> None:
        self._begin(BUILD_PROCESS, name, "phase", {})

    def phase_finished(self, name: str, *, succeeded: bool) -> None:
        self._end(BUILD_PROCESS, name, {})

    def close(self) -> None:
        with self._lock:
            now_us = self._now_us()
            for (process, name), (lane, start_us, event) in self._open_events.items():
                args = {**event["args"], "verdict": "interrupted"}
                self._events.append(_complete_event(process, lane, name, start_us, now_us, {**event, "args": args}))
            self._open_events.clear()
            document = json.dumps(self.document(), separators=(",", ":"))
        try:
            _write(self._path, document)
        except OSError as error:  # a watcher never raises (events.py, rule 2)
            self._report_error(f"the timeline could not be written to {self._path}: {error.strerror or error}")

    def document(self) -> JsonObject:
        """The content of the file: complete events (``X``) sorted by time, and metadata (``M``) with the names of lanes."""
        names = {BUILD_PROCESS: "trtbuild", WORKER_PROCESS: "workers"}
        metadata = [_metadata_event(process, 0, "process_name", name) for process, name in names.items()]
        for process, lanes in self._lanes.items():
            for lane in range(lanes.lane_count):
                metadata.append(_metadata_event(process, lane, "thread_name", lanes.name_of(lane)))
        events = sorted(self._events, key=lambda event: float(event["ts"]))
        return {
            "traceEvents": metadata + events,
            "displayTimeUnit": "ms",
            "otherData": {"schema": "trtbuild.trace/1", "started_unix_s": round(self._start_unix_s, 3)},
        }

    def _begin(self, process: int, name: str, category: str, args: JsonObject) -> None:
        with self._lock:
            if (process, name) in self._open_events:  # the step could not read a blob, and starts again
                self._close_event(process, name, {"verdict": "repeated"})
            lane = self._lanes[process].add(name)
            self._open_events[process, name] = (lane, self._now_us(), {"cat": category, "args": args})

    def _end(self, process: int, name: str, args: JsonObject) -> None:
        with self._lock:
            if (process, name) in self._open_events:
                self._close_event(process, name, args)
                return
            lanes, now_us = self._lanes[process], self._now_us()
            lane = lanes.add(name)  # a step that never started fails if its model cannot be planned again
            lanes.remove(lane)
            self._events.append(_complete_event(process, lane, name, now_us, now_us, {"cat": "step", "args": args}))

    def _close_event(self, process: int, name: str, args: JsonObject) -> None:
        lane, start_us, event = self._open_events.pop((process, name))
        self._lanes[process].remove(lane)
        merged = {**event, "args": {**event["args"], **args}}
        self._events.append(_complete_event(process, lane, name, start_us, self._now_us(), merged))

    def _now_us(self) -> float:
        return (time.perf_counter() - self._start_s) * 1e6


def _complete_event(
    process: int, lane: int, name: str, start_us: float, end_us: float, event: JsonObject
) -> JsonObject:
    return {
        "ph": "X",
        "name": name,
        "cat": event["cat"],
        "pid": process,
        "tid": lane,
        "ts": round(start_us, 1),
        "dur": round(end_us - start_us, 1),
        "args": event["args"],
    }


def _metadata_event(process: int, lane: int, kind: str, name: str) -> JsonObject:
    return {"ph": "M", "name": kind, "pid": process, "tid": lane, "args": {"name": name}}


def _write(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():  # a pipe or /dev/null must not be replaced
        path.write_text(text, encoding="utf-8")
        return
    replace_file(path, text.encode())
