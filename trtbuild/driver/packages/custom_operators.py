"""Check that the custom operators of a package are registered in this process.

A custom operator comes from outside PyTorch. The package contains its name, its schema and the name of the module that
registers the operator, but not its code. `load` does not import the module by default, because an import runs code and a
package may come from another person. So the caller imports the module, or passes ``import_operators=True``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.errors import OperatorMissing


def import_from(project: str | Path) -> None:
    """Append the folder `project` to ``sys.path``, so that its modules can be imported.

    Unlike a user's program, the command ``trtbuild`` usually starts without this folder in ``sys.path``."""
    folder = str(Path(project).resolve())
    if folder not in sys.path:
        sys.path.append(folder)


def require_operators(operators: Sequence[CustomOperator], model: str, *, import_modules: bool) -> None:
    """Raise OperatorMissing for an operator that is not registered, or whose schema has changed since `model` was traced.

    With `import_modules`, the modules of missing operators are imported first."""
    if not operators:
        return
    from trtbuild.stages.program.custom_operators import registered_schema  # it loads torch

    for operator in operators:
        if import_modules and operator.module is not None and registered_schema(operator.name) is None:
            _import(operator, operator.module, model)
        schema = registered_schema(operator.name)
        if schema is None:
            subject = f"the package of {model!r} calls the operator {operator.qualified_name}, which "
            if import_modules and operator.module is not None:
                raise OperatorMissing(
                    f"{subject}is not registered after `import {operator.module}`", hint=_hint(operator)
                )
            module = "" if operator.module is None else f": it comes from the module {operator.module}"
            raise OperatorMissing(f"{subject}is not registered{module}", hint=operator.import_advice)
        if schema != operator.schema:
            raise OperatorMissing(
                f"the operator {operator.qualified_name} has the schema {schema} here, but the package of {model!r} was "
                f"built with {operator.schema}",
                hint=_hint(operator),
            )


def require_cpu_kernels(operators: Sequence[CustomOperator], model: str) -> None:
    """Raise OperatorMissing for an operator that has no kernel for the CPU."""
    if not operators:
        return
    from trtbuild.stages.program.custom_operators import has_cpu_kernel

    for operator in operators:
        if not has_cpu_kernel(operator.name):
            raise OperatorMissing(
                f"the package of {model!r} calls the operator {operator.qualified_name}, which has no kernel for the CPU",
                hint="load the package on a GPU",
            )


def _import(operator: CustomOperator, module: str, model: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:  # the module's code may raise any error
        text = (str(error).strip().splitlines() or [""])[0]
        raise OperatorMissing(
            f"the package of {model!r} calls the operator {operator.qualified_name}, but `import {module}` fails: "
            f"{type(error).__name__}: {text}",
            hint=operator.install_command or f"put the folder of {module} on sys.path",
        ) from error


def _hint(operator: CustomOperator) -> str:
    return f"load the version that the package was built with: {operator.install_command}".removesuffix(": ")
