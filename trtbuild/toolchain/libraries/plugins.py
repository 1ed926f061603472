"""Load libraries of TensorRT plugins into this process, and check that TensorRT's registry has the required plugins.

Rules
1. Most libraries register their plugins when a process loads them (``REGISTER_TENSORRT_PLUGIN``). If a library registers
   nothing, but has the function ``getCreators`` or ``getPluginCreators``, this module asks TensorRT to register its plugins
   (``IPluginRegistry::loadLibrary``, since 8.6).
2. A library stays loaded until the process ends, because engines may use it. It is refused if another library has already
   registered one of the required plugins. TensorRT keeps the first plugin of a name, so the engine would run the code of
   the other library.
3. A library is loaded from a private copy of verified bytes, so that no other process can replace the file before the load.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterable
from typing import Any

from trtbuild.core.model.plugins import plugin_text
from trtbuild.errors import PluginError

#: The name, version and namespace of a plugin.
PluginIdentity = tuple[str, str, str]

_ENTRY_POINTS = ("getCreators", "getPluginCreators")

#: SHA-256 of a loaded library → the plugins that it has registered.
_LOADED: dict[str, frozenset[PluginIdentity]] = {}
_LOCK = threading.Lock()


def require_plugins(trt: Any, logger: Any, plugins: Iterable[PluginIdentity], library: bytes | None, name: str) -> None:
    """Make `plugins` available in this process.

    `library` is the content of the plugins' library, and `name` is its name in messages. If `library` is None, the plugins
    must be in TensorRT's own libraries.

    Raises PluginError if the library cannot be loaded, if a plugin is missing, or if another library has registered it."""
    required = frozenset(plugins)
    with _LOCK:
        if library is None:
            trt.init_libnvinfer_plugins(logger, "")
            hint = "correct its name or version in the manifest, or write `library:`, the library that has it"
            _refuse_missing(required, _registered(trt), "TensorRT has", hint)
            return
        digest, before = hashlib.sha256(library).hexdigest(), _registered(trt)
        known = _LOADED.get(digest)
        # A library that this process has loaded is loaded again if `trt` is another TensorRT, with its own registry.
        if known is None or not known <= before:
            _refuse_duplicates(required & before, name)
            _load(trt, library, name, before)
            _LOADED[digest] = (known or frozenset()) | (_registered(trt) - before)
        _refuse_duplicates((required & _registered(trt)) - _LOADED[digest], name)
        _refuse_missing(
            required,
            _LOADED[digest] & _registered(trt),
            f"{name} registers",
            "correct the name, the version or the namespace of the plugin in the manifest",
        )


def _load(trt: Any, data: bytes, name: str, before: frozenset[PluginIdentity]) -> None:
    descriptor, path = tempfile.mkstemp(prefix="trtbuild-plugins-", suffix=".so")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        try:
            handle = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            text = str(error).replace(path, name)
            raise PluginError(
                f"{name} cannot be loaded: {text}",
                hint="install the libraries that it needs, or build it for this machine",
            ) from error
        if _registered(trt) == before and any(hasattr(handle, entry) for entry in _ENTRY_POINTS):
            load_library = getattr(trt.get_plugin_registry(), "load_library", None)
            if load_library is not None:
                load_library(path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108


def _registered(trt: Any) -> frozenset[PluginIdentity]:
    registry = trt.get_plugin_registry()
    creators = [*getattr(registry, "plugin_creator_list", ()), *getattr(registry, "all_creators", ())]
    return frozenset((creator.name, creator.plugin_version, creator.plugin_namespace) for creator in creators)


def _refuse_duplicates(plugins: frozenset[PluginIdentity], name: str) -> None:
    if plugins:
        raise PluginError(
            f"another library has registered the plugin {plugin_text(*min(plugins))} in this process, so TensorRT would "
            f"not use the one of {name}",
            hint="give the plugin another name or version, or use the libraries in separate processes",
        )


def _refuse_missing(
    plugins: frozenset[PluginIdentity], available: frozenset[PluginIdentity], subject: str, hint: str
) -> None:
    missing = plugins - available
    if missing:
        names = "; ".join(plugin_text(*plugin) for plugin in sorted(available)) or "no plugin"
        raise PluginError(
            f"there is no plugin {plugin_text(*min(missing))}: {subject} {names}",
            hint=hint,
        )
