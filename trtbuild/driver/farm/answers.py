"""The answer of a finished task, and the error in an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtbuild.driver.farm.messages import PROTOCOL, Answer, FarmJob
from trtbuild.driver.workers.pool import error_from_json
from trtbuild.errors import TrtbuildError, WorkersError

if TYPE_CHECKING:
    from distributed import Future

#: The seconds in which the answer of a finished task has to arrive.
RESULT_S = 30.0


def answer_of(future: Future[str], message: FarmJob) -> Answer:
    """The answer of a finished task. Raises WorkersError, and any error of Dask."""
    from distributed import KilledWorker

    if future.status == "cancelled":
        raise ConnectionError("the scheduler has dropped the job")
    try:
        return Answer.from_text(future.result(timeout=RESULT_S))
    except KilledWorker as error:
        last = getattr(error.last_worker, "name", error.last_worker)
        raise WorkersError(
            f"each worker process that ran this step died; the last one was {last}",
            hint="look at the output of trtbuild worker there; the system ends processes when memory runs out",
        ) from None
    except Exception as error:
        if future.status != "error" and not isinstance(error, ValueError):
            raise  # the connection is lost
        return death(message, f"{type(error).__name__}: {error}")


def death(message: FarmJob, text: str) -> Answer:
    """The answer in the place of one that did not come, because the worker has died. `text` is the reason."""
    return Answer(PROTOCOL, message.key, "the worker", "died", error={"text": text})


def error_of(answer: Answer) -> TrtbuildError:
    """The error in an answer, with the worker's log."""
    fields: Mapping[str, Any] = answer.error or {"text": "the worker gave no reason"}
    error = error_from_json(fields, answer.log)
    error.worker_log = answer.log
    return error
