"""Record the conversions of each operator that has samples of a dtype. A sample is a call from PyTorch's own tests."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from benchmarks.gpu.converted.recording import record_model
from tests.fuzz.__main__ import counts_text, load_libraries, run
from tests.fuzz.operators import operators
from tests.fuzz.pipeline import ModuleCase, build
from tests.fuzz.samples import try_samples
from tests.fuzz.trying import Outcome, reason_group
from trtbuild.core.model.spec import Target
from trtbuild.errors import InternalError, TrtbuildError

#: The time limit for one operator, in seconds. It ends the recording of an operator that takes longer.
_LIMIT_S = 300


def record_samples(folder: Path, dtype: str, target: Target) -> int:
    """Write the models and cases (`record_model`) of all operators into an empty folder. Returns the number of models.

    Raises FileExistsError if the folder is not empty."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")
    load_libraries()
    record = functools.partial(_record_operator, folder=folder, dtype=dtype, target=target)
    outcomes = list(run(range(len(operators())), jobs=1, limit_s=_LIMIT_S, try_one=record))
    print(counts_text(outcomes), file=sys.stderr)
    return len(list(folder.glob("*.onnx")))


def _record_operator(number: int, folder: Path, dtype: str, target: Target) -> Outcome:
    digests: set[str] = set()

    def record(case: ModuleCase) -> Outcome:
        try:
            built = build(case, engines=False, target=target)
        except InternalError as error:
            return Outcome(number, "crashed", reason_group(error), (str(error),))
        except TrtbuildError as error:
            return Outcome(number, "refused", reason_group(error), (str(error),))
        for digest in sorted(set(built.onnx.values()) - digests):
            op = operators()[number]
            record_model(folder, f"{op.name}.{dtype}.{number}.{len(digests)}", built.store.get_bytes(digest))
            digests.add(digest)
        return Outcome(number, "built")

    return try_samples(number, dtype, record)
