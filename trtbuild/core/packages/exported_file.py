"""The text in a ``.pt2`` file that describes the file's package: the package from which the file was written."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from trtbuild.errors import PackageDamaged, PackageTooNew

#: The name of the extra file that has the text, for torch.export.save and torch.export.load.
INFO_FILE = "trtbuild.json"

_FORMAT = "trtbuild.pt2/"
_SCHEMA = f"{_FORMAT}1"


@dataclass(frozen=True)
class ExportedFileInfo:
    """The model and the target of a ``.pt2`` file. `index` is the digest of the index of its package."""

    model: str
    target: str
    index: str

    def to_text(self) -> str:
        """The text in the file."""
        return json.dumps({"schema": _SCHEMA, **asdict(self)})

    @classmethod
    def from_text(cls, text: bytes, where: str) -> ExportedFileInfo:
        """The inverse of `to_text`. `where` is the file, for messages. Raises PackageDamaged and PackageTooNew."""
        try:
            data = json.loads(text)
            schema = data.pop("schema")
            if schema == _SCHEMA:
                return cls(str(data["model"]), str(data["target"]), str(data["index"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            schema = None
        if isinstance(schema, str) and schema.startswith(_FORMAT):
            raise PackageTooNew(
                f"{where} has the format {schema}, but this version of trtbuild reads {_SCHEMA}",
                hint="upgrade trtbuild (pip install --upgrade trtbuild), or save the model with this version",
            )
        raise PackageDamaged(f"{where}: its {INFO_FILE} cannot be used", hint="save the model again")
