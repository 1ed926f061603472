"""Write the outputs of a model. An error of the disk gets a hint."""

from __future__ import annotations

import contextlib
import errno
import traceback
from pathlib import Path

from trtbuild.core.planning.graph import ModelPlan
from trtbuild.driver.building.steps import exported_files
from trtbuild.driver.project.outcome import WrittenOutput
from trtbuild.driver.project.workspace import Workspace
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.errors import InternalError, StoreError, TrtbuildError

#: Error number → the beginning of the hint if outputs cannot be written.
_OUTPUT_HINTS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EFBIG: "a limit on file sizes is in force (ulimit -f): raise it",
    errno.EROFS: "the file system is read-only: choose other `outputs` in the manifest",
    errno.EISDIR: "there is a directory where a file has to be written: remove it",
    errno.ENOTDIR: "there is a file where a directory has to be: remove it",
    errno.EEXIST: "there is a file where a directory has to be: remove it",
}


def write_outputs(workspace: Workspace, plan: ModelPlan, pool: WorkerPool) -> list[WrittenOutput]:
    """Write the outputs of a model whose steps are hits.

    Every error is a TrtbuildError. An error of the disk is a StoreError with a hint.
    """
    name = plan.model.name
    try:
        if "pt2" in dict(plan.model.outputs):
            exported_files.create_files(workspace, plan, pool)
        return workspace.write_outputs(plan)
    except TrtbuildError:
        raise
    except OSError as error:
        place = _path_in_parentheses(error.filename, workspace.project)
        raise StoreError(
            f"the outputs of model {name!r} cannot be written{place}: {error.strerror or error}",
            hint=_OUTPUT_HINTS.get(error.errno or 0, "make the outputs' directory writable")
            + "; then build again: the built engines are in the cache",
        ) from error
    except Exception as error:
        raise InternalError(f"outputs of {name}: {type(error).__name__}: {error}\n{traceback.format_exc()}") from error


def _path_in_parentheses(path: object, project: Path) -> str:
    """A space and `path` in parentheses, relative to `project` if possible; empty if `path` is not a string."""
    if not isinstance(path, str):
        return ""
    with contextlib.suppress(ValueError):
        return f" ({Path(path).relative_to(project)})"
    return f" ({path})"
