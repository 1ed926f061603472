"""The answer of a finished task, and the error in an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtbuild.driver.farm.messages import PROTOCOL, Answer, FarmJob
from trtbuild.driver.farm.verifying import WrongAnswer
from trtbuild.driver.workers.worker_process import error_from_json
from trtbuild.errors import TrtbuildError, WorkersError

if TYPE_CHECKING:
    from distributed import Future

#: The seconds in which the answer of a finished task has to arrive.
RESULT_TIMEOUT_S = 30.0


def answer_of(future: Future[str], message: FarmJob) -> Answer:
    """The answer of a finished task. If the task raised an error, the answer has the outcome ``died``.

    Raises WorkersError if each worker that ran the task has died. Raises WrongAnswer if the answer cannot be read. Raises
    ConnectionError if the scheduler has dropped the task, and TimeoutError or another error of Dask if the answer does
    not arrive.
    """
    from distributed import KilledWorker

    if future.status == "cancelled":
        raise ConnectionError("the scheduler has dropped the job")
    try:
        text = future.result(timeout=RESULT_TIMEOUT_S)
    except KilledWorker as error:
        last = getattr(error.last_worker, "name", error.last_worker)
        raise WorkersError(
            f"each worker process that ran this step died; the last one was {last}",
            hint="look at the output of trtbuild worker there; the system ends processes when memory runs out",
        ) from None
    except Exception as error:
        if future.status != "error":
            raise  # the task has succeeded, but its result did not arrive
        return answer_of_dead_worker(message, f"{type(error).__name__}: {error}")
    try:
        return Answer.from_text(text)
    except ValueError as error:
        raise WrongAnswer(str(error)) from error


def answer_of_dead_worker(message: FarmJob, text: str) -> Answer:
    """An answer with the outcome ``died``, because the worker itself cannot send one. `text` is the reason."""
    return Answer(PROTOCOL, message.key, "the worker", "died", error={"text": text})


def error_of(answer: Answer) -> TrtbuildError:
    """The error in an answer, with the worker's log."""
    fields: Mapping[str, Any] = answer.error or {"text": "the worker gave no reason"}
    error = error_from_json(fields, answer.log)
    error.worker_log = answer.log
    return error
