"""A build system for TensorRT engines. The command line is `trtbuild.cli.main`; see docs/architecture.md.

In a program: `trtbuild.load` opens a package, `trtbuild.compile` builds engines for a module that is in memory, and
`trtbuild.save` writes what it returns; ``torch.compile(model, backend="trtbuild")`` and ``torch.export.load`` of a ``.pt2``
file work, too (docs/in-a-program.md). Importing this costs nothing: every command begins with it. Names are looked up when
they are used, and torch is told of the operator of ``.pt2`` files when it is there.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing and importlib would cost more than the null build does
if TYPE_CHECKING:
    from typing import Any

    from trtbuild.driver.in_program.compiling import compile as compile
    from trtbuild.driver.in_program.inputs import Input as Input
    from trtbuild.driver.in_program.saving import save as save
    from trtbuild.driver.packages.loading import load as load
    from trtbuild.driver.running.triton_model import TritonPythonModel as TritonPythonModel

#: What a program may use → the module that has it.
_PUBLIC = {
    "Input": "trtbuild.driver.in_program.inputs",
    "TritonPythonModel": "trtbuild.driver.running.triton_model",
    "compile": "trtbuild.driver.in_program.compiling",
    "load": "trtbuild.driver.packages.loading",
    "save": "trtbuild.driver.in_program.saving",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


class _AfterTorch:
    """A finder that finds nothing: it has `_tell_torch` called when torch has been imported, whoever imports it."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not _AfterTorch]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        loader: Any = getattr(spec, "loader", None)  # this one alone: to look for torch is not to import it
        if loader is not None and hasattr(loader, "exec_module"):
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                loader.exec_module = execute
                if _AfterTorch in sys.meta_path:
                    sys.meta_path.remove(_AfterTorch)
                execute(module)
                _tell_torch()

            loader.exec_module = exec_module
        return spec


def _tell_torch() -> None:
    """Register the operator of `.pt2` files. What goes wrong is said when a file needs it."""
    try:
        from trtbuild.driver.packages.engine_operator import register

        register()
    except Exception as error:
        import warnings

        warnings.warn(f"trtbuild cannot register its operator with this torch: {error}", RuntimeWarning, stacklevel=2)


if "torch" not in sys.modules:
    sys.meta_path.insert(0, _AfterTorch)
elif hasattr(sys.modules["torch"], "library"):
    _tell_torch()
