"""A build system for TensorRT engines. The command line is `trtbuild.cli.main`; see docs/architecture.md.

Functions for programs (docs/in-a-program.md): `load` opens a package. `compile` builds engines for a module in memory, and
`save` writes the result as files. `trace` returns the ``ExportedProgram`` from which `compile` builds engines. `dynamo`
names `compile`, `trace` and `Input` as ``torch_tensorrt.dynamo`` does.

``torch.compile(model, backend="trtbuild")`` and ``torch.export.load`` of a ``.pt2`` file work, too. The operator that runs
the engines of such a file is registered with torch as soon as the program has imported torch. Every command imports this
package, so the package imports almost nothing. Public names are imported when they are first used.
"""

import sys

TYPE_CHECKING = False  # importing typing or importlib would slow the null build
if TYPE_CHECKING:
    from typing import Any

    from trtbuild import dynamo as dynamo
    from trtbuild.driver.in_program.arguments.inputs import Input as Input
    from trtbuild.driver.in_program.compiling import compile as compile
    from trtbuild.driver.in_program.saving import save as save
    from trtbuild.driver.in_program.tracing import trace as trace
    from trtbuild.driver.packages.loading import load as load
    from trtbuild.driver.running.triton_model import TritonPythonModel as TritonPythonModel

#: Public name → the module that defines it.
_MODULE_OF_NAME = {
    "Input": "trtbuild.driver.in_program.arguments.inputs",
    "TritonPythonModel": "trtbuild.driver.running.triton_model",
    "compile": "trtbuild.driver.in_program.compiling",
    "load": "trtbuild.driver.packages.loading",
    "save": "trtbuild.driver.in_program.saving",
    "trace": "trtbuild.driver.in_program.tracing",
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name == "dynamo":
        return import_module("trtbuild.dynamo")
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF_NAME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF_NAME, "dynamo"})


class _TorchImportHook:
    """An import hook that calls `_register_operator` after the first import of torch. The other hooks search for torch."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != "torch":
            return None
        finders = [finder for finder in sys.meta_path if finder is not _TorchImportHook]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        # A program may ask for the spec without importing torch, so the hook is not removed here.
        loader: Any = getattr(spec, "loader", None)
        if loader is not None and hasattr(loader, "exec_module"):
            execute = loader.exec_module

            def exec_module(module: "Any") -> None:
                loader.exec_module = execute
                execute(module)
                # The hook is removed only after a successful import, because a program may try again.
                if _TorchImportHook in sys.meta_path:
                    sys.meta_path.remove(_TorchImportHook)
                _register_operator()

            loader.exec_module = exec_module
        return spec


def _register_operator() -> None:
    """Register the operator of ``.pt2`` files. A failure is only a warning, because most programs load no such file."""
    try:
        from trtbuild.driver.packages.engine_operator import register

        register()
    except Exception as error:
        import warnings

        warnings.warn(f"trtbuild cannot register its operator with this torch: {error}", RuntimeWarning, stacklevel=2)


if "torch" not in sys.modules:
    sys.meta_path.insert(0, _TorchImportHook)
elif hasattr(sys.modules["torch"], "library"):  # torch has no `library` while it is being imported
    _register_operator()
