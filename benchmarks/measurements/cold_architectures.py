"""Compare cold builds of ResNet-50, BERT and Whisper's encoder by trtbuild and by a script, as in `cold_build.py`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.architectures import ARCHITECTURES, script_arguments, write_architecture
from benchmarks.figure import Row
from benchmarks.measure import measure_alternately
from benchmarks.measurements.cold_build import build_cold, compare
from benchmarks.session import Session


def rows(session: Session) -> Iterator[Row]:
    for name in ARCHITECTURES:
        yield from _rows_of(session, name)


def _rows_of(session: Session, name: str) -> Iterator[Row]:
    project = write_architecture(session.folder(f"cold-{name}"), name)
    session.say(f"  {session.sizes.cold_repeats} times: the script, {name}")
    medians = measure_alternately(
        session.sizes.cold_repeats,
        script=lambda measure_memory: session.run_script(
            "straight_model.py", project, script_arguments(name), measure_memory=measure_memory
        ),
        trtbuild=lambda measure_memory: build_cold(session, project, measure_memory=measure_memory),
    )
    yield from compare(name, medians["trtbuild"], medians["script"], bound=0.85)
