"""The fields of `source`. Each kind of source has a field (`core.model.source_kinds`)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from trtbuild.core.model.source_kinds import CALLABLE_KINDS, SOURCE_KINDS, SourceKind
from trtbuild.manifest.format import kinds
from trtbuild.manifest.format.base import Fields
from trtbuild.manifest.format.kinds import PathText


def _source_field(kind: SourceKind) -> Any:
    if hasattr(BaseModel, kind.name):
        raise TypeError(f"{kind.name!r} cannot be a kind of source: pydantic's models have an attribute of this name")
    value = kinds.CallableName if kind.file is None else PathText
    examples = None if kind.example is None else [kind.example]
    return value | None, Field(None, description=kind.description, examples=examples)


_NamedSource: Any = create_model(
    "_NamedSource", __base__=Fields, **{name: _source_field(kind) for name, kind in SOURCE_KINDS.items()}
)


class SourceFields(_NamedSource):  # type: ignore[misc]  # one field for each of SOURCE_KINDS
    __doc__ = f"Where the model comes from: exactly one of {kinds.join_names(list(SOURCE_KINDS), 'and')}."

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": [kind]} for kind in SOURCE_KINDS],
            "dependentSchemas": {"kwargs": {"anyOf": [{"required": [kind]} for kind in CALLABLE_KINDS]}},
        }
    )

    kwargs: dict[str, Any] | None = Field(
        None,
        description=f"Keyword arguments of the {kinds.join_names(CALLABLE_KINDS, 'or')} callable.",
        examples=[{"depth": 12}],
    )
    deps: list[PathText] | None = Field(
        None, description="Other files that the source depends on: paths or globs, relative to this file."
    )
    env: list[kinds.EnvironmentName] | None = Field(
        None, description="Environment variables that the source depends on."
    )
    cacheable: bool = Field(
        True,
        description="Use false if the result depends on other inputs, such as a download or the clock.",
    )
