"""Open a ``.pt2`` file (a zip archive) that trtbuild wrote, for one device.

Rules
1. The description of the file (`ExportedFileInfo`) is read first. If it is missing, nothing in the file is loaded.
2. torch.export.load reads the program with pickle, which can run code. So a file must come from a trusted source. The
   digest of each engine is checked when the engine is opened.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.core.packages.exported_file import INFO_FILE, ExportedFileInfo
from trtbuild.driver.packages.machine import gpu_number
from trtbuild.errors import NoFittingTarget, PackageDamaged, PackageMissing, UsageError
from trtbuild.regular import read_regular

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: The first bytes of the last record of a zip archive, and the size of this record in bytes. torch writes no zip comment,
#: which would make the record longer.
_ARCHIVE_END, _ARCHIVE_END_SIZE = b"PK\x05\x06", 22


class LoadedFile:
    """An open ``.pt2`` file. `exported` is its program, with all tensors on `device`."""

    def __init__(self, path: Path, about: ExportedFileInfo, exported: ExportedProgram, device: str) -> None:
        self.path = path
        self.model = about.model
        self.target = about.target
        self.exported = exported
        self.device = device

    def module(self) -> Any:
        """Return the model as a ``torch.nn.Module``."""
        return self.exported.module()

    def __enter__(self) -> LoadedFile:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def __repr__(self) -> str:
        return f"<trtbuild file {self.path.name!r} on {self.device}: {self.model!r} for target {self.target!r}>"


def load_file(path: str | os.PathLike[str], *, device: Any = None, target: str | None = None) -> LoadedFile:
    """Open the file at `path` for `device`.

    Raises PackageMissing, PackageDamaged, PackageTooNew, NoFittingTarget, and UsageError for an unknown device, another
    target, or a file that trtbuild did not write.
    """
    file = Path(path)
    ordinal = gpu_number(device)
    data = _read_file(file)
    about = _parse_about(data, file)
    if target is not None and target != about.target:
        raise UsageError(f"{file} is for the target {about.target!r}, not {target!r}", hint="leave target out")
    exported = _load_program(data, file)
    if ordinal is None:
        _ensure_reference(exported, about)
        return LoadedFile(file, about, exported, "cpu")
    return LoadedFile(file, about, _move_to_gpu(exported, about, ordinal), f"cuda:{ordinal}")


def _read_file(path: Path) -> bytes:
    try:
        return read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise PackageMissing(f"there is no file {path}", hint="trtbuild.save writes it") from None
    except OSError as error:
        raise PackageMissing(f"{path} cannot be read: {error.strerror}") from error


def _parse_about(data: bytes, path: Path) -> ExportedFileInfo:
    """Return the description of the file (rule 1). Raises PackageDamaged, PackageTooNew or UsageError."""
    try:
        # zipfile does not find every truncation: the rest of the file may contain the end of an inner archive
        if data[-_ARCHIVE_END_SIZE:][: len(_ARCHIVE_END)] != _ARCHIVE_END:
            raise zipfile.BadZipFile("it does not end as an archive does")
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if name.endswith(f"/extra/{INFO_FILE}")]
            text = archive.read(names[0]) if names else None
    except (zipfile.BadZipFile, zlib.error, OSError, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise PackageDamaged(
            f"{path} is not a .pt2 file, or it is truncated: {error}", hint="save the model again, or copy it again"
        ) from None
    if text is None:
        raise UsageError(
            f"trtbuild did not write {path}",
            hint="torch.export.load(path) opens files of torch.export.save; trtbuild.compile builds engines for the result",
        )
    return ExportedFileInfo.from_text(text, str(path))


def _load_program(data: bytes, path: Path) -> ExportedProgram:
    import torch

    from trtbuild.driver.packages.engine_operator import register
    from trtbuild.runtime.calls.torch_part import export_load_allowed

    register()
    try:
        with export_load_allowed():
            return torch.export.load(io.BytesIO(data))
    except Exception as error:  # torch raises many types
        reason = (str(error).strip().splitlines() or [""])[0]
        raise PackageDamaged(
            f"torch.export.load of torch {torch.__version__} cannot read {path}: {type(error).__name__}: {reason}",
            hint="use the torch that wrote it, or save the model again",
        ) from error


def _ensure_reference(exported: ExportedProgram, about: ExportedFileInfo) -> None:
    """Raise NoFittingTarget if an engine has no reference program, which runs in place of the engine on a CPU."""
    from trtbuild.runtime.calls import operators
    from trtbuild.runtime.packages.choice import no_reference_hint

    for node in exported.graph.nodes:
        if str(node.target).startswith("trtbuild.engine"):
            text = operators.parse_text(node.args[-1])
            if text.reference is None:
                raise NoFittingTarget(
                    f"the file of {about.model!r} has no reference program, and engines do not run on a CPU",
                    hint=no_reference_hint(),
                )


def _move_to_gpu(exported: ExportedProgram, about: ExportedFileInfo, ordinal: int) -> ExportedProgram:
    import torch
    from torch.export.passes import move_to_device_pass

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if ordinal >= count:
        raise NoFittingTarget(
            f"there is no GPU {ordinal} for the file of {about.model!r}: PyTorch finds {count} here",
            hint='pass device="cpu" to run it without its engines',
        )
    return move_to_device_pass(exported, f"cuda:{ordinal}")
