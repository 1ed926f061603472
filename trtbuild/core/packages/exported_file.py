"""The paths of a package's ``.pt2`` files, and the text in each file that names its package."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from trtbuild.errors import PackageDamaged, PackageTooNew

#: The name of the text among the extra files of torch.export.save.
INFO_FILE = "trtbuild.json"

SUFFIX = ".pt2"

_FORMAT = "trtbuild.pt2/"
_SCHEMA = f"{_FORMAT}1"


def exported_file_paths(path: str, targets: Iterable[str]) -> dict[str, str]:
    """Map each target of a package to the path of its ``.pt2`` file.

    The file of a single target has the path `path`. With several targets, each path has its target: ``net.ada.pt2``."""
    names = list(targets)
    stem = path.removesuffix(SUFFIX)
    return {name: path if len(names) == 1 else f"{stem}.{name}{SUFFIX}" for name in names}


@dataclass(frozen=True)
class ExportedFileInfo:
    """The model and the target of a ``.pt2`` file. `index` is the digest of the index of its package."""

    model: str
    target: str
    index: str

    def to_text(self) -> str:
        return json.dumps({"schema": _SCHEMA, **asdict(self)})

    @classmethod
    def from_text(cls, text: bytes, where: str) -> ExportedFileInfo:
        """The inverse of `to_text`. `where` is the file, for messages. Raises PackageDamaged and PackageTooNew."""
        try:
            data = json.loads(text)
            schema = data.pop("schema")
            if schema == _SCHEMA:
                return cls(str(data["model"]), str(data["target"]), str(data["index"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            schema = None
        if isinstance(schema, str) and schema.startswith(_FORMAT):
            raise PackageTooNew(
                f"{where} has the format {schema}, but this version of trtbuild reads {_SCHEMA}",
                hint="upgrade trtbuild (pip install --upgrade trtbuild), or save the model with this version",
            )
        raise PackageDamaged(f"{where}: its {INFO_FILE} cannot be used", hint="save the model again")
