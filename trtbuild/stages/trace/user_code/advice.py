"""Give advice about an exception of user code, if the exception shows what to do next.

Rules
1. Advice says what to do next, or names a fact from which this follows. Advice that would only repeat the error is not
   given.
2. Advice depends on the exception's type. It depends on the text only if torch has no separate type for the error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError

from trtbuild.core.model.spec import Input
from trtbuild.core.values.nearest import nearest
from trtbuild.core.values.value_ranges import is_index_error

#: Advice about a script that PyTorch's converter from TorchScript cannot convert.
PYTHON_SOURCE_HINT = (
    "export the model from its Python source instead (`python:`), or save it with torch.jit.trace, which leaves no "
    "branches in the script"
)

_NO_GPU_TEXT = re.compile(
    r"Torch not compiled with CUDA|No CUDA GPUs are available|Found no NVIDIA driver|on a CUDA device but|CUDA driver"
)
_DTYPE_TEXT = re.compile(r"\bdtype\b|scalar type", re.IGNORECASE)
_INTEGER_TEXT = re.compile(r"scalar types?:? Long|tensors used as indices|must be long", re.IGNORECASE)
#: Prefixes of modules. If one of them defines the type of an exception, user code used the network.
_NETWORK_MODULES = ("requests.", "httpx.", "urllib3.", "aiohttp.")
#: Prefixes of modules whose OSErrors are about the network. The other exceptions of these modules are about invalid
#: values, such as those of a model's configuration.
_PARTLY_NETWORK_MODULES = ("huggingface_hub.",)


def error_text(error: BaseException) -> str:
    """The text of an error. User code may raise an error whose text cannot be read."""
    try:
        return str(error)
    except Exception as text_error:
        return f"(its text cannot be read: {type(text_error).__name__})"


def advice(error: BaseException, failing_file: str | None = None) -> str | None:
    """Advice about `error`; None if there is no advice. `failing_file` is the file of the
    innermost frame that the error's message shows (`Frames.user_frames`)."""
    for adviser in _ADVISERS:
        text = adviser(error, failing_file)
        if text:
            return text
    return None


def shape_advice(error: BaseException, inputs: Sequence[Input], default_advice: str) -> str | None:
    """Advice about a model that fails with the declared inputs. It is about their dtypes if the error's text names a dtype,
    otherwise it is `default_advice`. None if the inputs cannot be the reason of the error."""
    text = error_text(error)
    declared = ", ".join(f"{entry.name}: {entry.dtype}" for entry in inputs)
    if _INTEGER_TEXT.search(text):
        return f"the manifest declares {declared}: indices are integers, such as `{inputs[0].name}: {{dtype: int64}}`"
    if _DTYPE_TEXT.search(text):
        return (
            f"the manifest declares {declared}: write the dtype that the model takes (this does not change the "
            "precision of the engines, which `precision` sets)"
        )
    is_input_error = isinstance(error, RuntimeError | ValueError | IndexError | AssertionError)
    return default_advice if is_input_error and not isinstance(error, NotImplementedError | RecursionError) else None


def value_advice(error: BaseException, inputs: Sequence[Input]) -> str | None:
    """Advice about a model that fails with the example's integers; None if they are not a likely reason of the error."""
    integers = [entry for entry in inputs if "int" in entry.dtype]
    if not integers or not is_index_error(error_text(error)):
        return None
    undeclared = next((entry for entry in integers if entry.range is None), None)
    if undeclared is not None:
        return (
            "integer inputs are 0 and 1 here; say which values the model takes: "
            f"`{undeclared.name}: {{dtype: {undeclared.dtype}, range: [LOWEST, HIGHEST]}}`"
        )
    ranges = ", ".join(f"`{entry.name}: {{range: {list(entry.range or ())}}}`" for entry in integers)
    return f"the values here are from {ranges}: correct the range, or the model"


def misspelt_module(name: str, folders: Sequence[Path]) -> str | None:
    """The dotted name of the module in `folders` whose name is most similar to `name`; None if no name is similar."""
    package, _, last = name.rpartition(".")
    modules = set()
    for folder in folders:
        directory = folder.joinpath(*package.split(".")) if package else folder
        for entry in directory.iterdir() if directory.is_dir() else ():
            if entry.suffix == ".py" or (entry.is_dir() and entry.name.isidentifier()):
                modules.add(entry.stem)
    similar = nearest(last, sorted(modules - {"__init__", "__pycache__"}))
    return f"{package}.{similar}" if similar and package else similar


def _advice_on_missing_module(error: BaseException, failing_file: str | None) -> str | None:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    top_name = error.name.partition(".")[0]
    if failing_file and _has_module(Path(failing_file).parent, top_name):
        folder_name = Path(failing_file).parent.name
        import_text = f"from {folder_name} import {top_name}"
        return f"{top_name} is in that file's folder, but imports start at the manifest's folder: `{import_text}`"
    if top_name == error.name or not _is_importable(top_name):
        return f"install it where trtbuild runs: {sys.executable} -m pip install {top_name}"
    return f"{top_name} is installed, but has no {error.name}: does the code need another version?"


def _has_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def _is_importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _advice_on_missing_file(error: BaseException, failing_file: str | None) -> str | None:
    path = getattr(error, "filename", None)
    if isinstance(error, FileNotFoundError) and isinstance(path, str) and not Path(path).is_absolute():
        return f"relative paths start at the project, {Path.cwd()}"
    return None


def _advice_on_process_end(error: BaseException, failing_file: str | None) -> str | None:
    if isinstance(error, SystemExit):
        return 'do not end the process there; put code for the command line below `if __name__ == "__main__":`'
    return None


def _advice_on_missing_gpu(error: BaseException, failing_file: str | None) -> str | None:
    if isinstance(error, AssertionError | RuntimeError) and _NO_GPU_TEXT.search(error_text(error)):
        return (
            "models are traced on the CPU, and no GPU is visible: create the model on the CPU (no .cuda(); torch.load with "
            "map_location='cpu')"
        )
    return None


def _advice_on_network(error: BaseException, failing_file: str | None) -> str | None:
    module = type(error).__module__
    is_client_error = module.startswith(_NETWORK_MODULES) or (
        isinstance(error, OSError) and module.startswith(_PARTLY_NETWORK_MODULES)
    )
    if is_client_error or isinstance(error, URLError | ConnectionError):
        return "a build should not depend on the network: download the file once, and read it from the project"
    return None


_ADVISERS: Sequence[Callable[[BaseException, str | None], str | None]] = (
    _advice_on_missing_module,
    _advice_on_missing_file,
    _advice_on_process_end,
    _advice_on_missing_gpu,
    _advice_on_network,
)
