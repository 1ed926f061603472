"""``trtbuild inspect`` without a name: show the contents of all packages of a project."""

from __future__ import annotations

from trtbuild.driver.inspection import inspect_directory
from trtbuild.driver.inspection.documents import Inspections, MissingPackage
from trtbuild.driver.packages.lookup import packages_of
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import UsageError


def inspect_all(
    request: Request, *, layers: bool = False, memory: bool = False, onnx: str | None = None
) -> Inspections:
    """Return the contents of the packages of all models. ONNX models are written to ``<onnx>/<model>``.

    Raises UsageError if no model has a package, and the errors of `inspect`.
    """
    packages, missing = [], []
    for name, path_or_error in packages_of(request).items():
        if isinstance(path_or_error, UsageError):
            missing.append(MissingPackage(model=name, reason=path_or_error.text, hint=path_or_error.hint))
        else:
            onnx_folder = None if onnx is None else f"{onnx}/{name}"
            packages.append(
                inspect_directory(request, path_or_error, name, layers=layers, memory=memory, onnx=onnx_folder)
            )
    if not packages:
        raise UsageError("no model of this project has a package", hint="trtbuild build")
    return Inspections(packages=packages, missing=missing)
