"""Register operators from outside PyTorch for a comparison.

The reference runs these operators. So a process that runs user code imports the modules that register them. An operator
without a kernel for the CPU gets a substitute (`trtbuild.stages.program.cpu_kernels`). Then its calls are compared, and not
its results.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.errors import SourceError
from trtbuild.stages.program.cpu_kernels import substitute_kernels
from trtbuild.stages.program.custom_operators import allow_data_dependent_sizes_below_two, registered_schema


@contextlib.contextmanager
def registered(operators: Sequence[CustomOperator], roots: Sequence[Path]) -> Iterator[None]:
    """Import the modules of `operators`. Inside the block, operators without a kernel for the CPU have a substitute.

    `roots` are the folders from which the project's modules are imported. Inside the block, a size that depends on data
    may be 0 or 1. Raises SourceError (code ``verify``).
    """
    if not operators:
        yield
        return
    sys.path[:0] = [str(root) for root in roots]
    for operator in operators:
        _import(operator)
    with substitute_kernels([operator.name for operator in operators]), allow_data_dependent_sizes_below_two():
        yield


def _import(operator: CustomOperator) -> None:
    if registered_schema(operator.name) is None and operator.module is not None:
        try:
            importlib.import_module(operator.module)
        except Exception as error:  # user code may raise any error
            text = (str(error).strip().splitlines() or [""])[0]
            raise SourceError(
                f"`import {operator.module}`, which registers the operator {operator.qualified_name}, fails: "
                f"{type(error).__name__}: {text}",
                code="verify",
                hint=operator.install_command or None,
            ) from error
    schema = registered_schema(operator.name)
    if schema != operator.schema:
        found = "is not registered" if schema is None else f"has the schema {schema}"
        module = "" if operator.module is None else f" after `import {operator.module}`"
        raise SourceError(
            f"the operator {operator.qualified_name} {found}{module}, but the model was traced with {operator.schema}",
            code="verify",
            hint="register the operator when its module is imported, not in a function",
        )
