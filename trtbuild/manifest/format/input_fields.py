"""The fields that describe a model's inputs: element types, value ranges, dims, and shapes in profiles."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, model_validator

from trtbuild.manifest.format import kinds
from trtbuild.manifest.format.base import Fields, shorthand
from trtbuild.manifest.format.kinds import invalid_value
from trtbuild.manifest.format.value_ranges import RangeEnds


class ShapeFields(Fields):
    """One input's shapes in a profile: `min`, `opt` and `max`, or `shape` if all three are equal."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["shape"], "maxProperties": 1}, {"required": ["min", "opt", "max"]}]}
    )

    min: kinds.Shape | None = Field(None, description="The smallest shape.", examples=[[1, 3, 224, 224]])
    opt: kinds.Shape | None = Field(None, description="The shape to optimize for.", examples=[[8, 3, 224, 224]])
    max: kinds.Shape | None = Field(None, description="The largest shape.", examples=[[32, 3, 224, 224]])
    shape: kinds.Shape | None = Field(None, description="A static shape: min = opt = max.", examples=[[1, 3, 224, 224]])

    @model_validator(mode="after")
    def _check_one_form(self) -> ShapeFields:
        written_fields = self.model_fields_set
        range_fields = [name for name in ("min", "opt", "max") if name in written_fields]
        missing = [name for name in ("min", "opt", "max") if name not in written_fields]
        if "shape" in written_fields and range_fields:
            raise invalid_value(
                f"`shape` and `{range_fields[0]}` cannot be used together", "write shape alone, or min, opt and max"
            )
        if "shape" not in written_fields and missing:
            names = " and ".join(f"`{name}`" for name in missing)
            raise invalid_value(
                f"{names} {'is' if len(missing) == 1 else 'are'} missing",
                "write min, opt and max, or shape alone for a static shape",
            )
        if any(getattr(self, name) is None for name in written_fields):
            raise invalid_value("a shape is a list of sizes, not null", "write [] for a scalar")
        return self


class InputFields(Fields):
    """A tensor that the model takes."""

    dtype: kinds.Dtype = Field("float32", description="Its element type.")
    keyword: bool = Field(False, description="Whether the input is passed by name instead of by position.")
    range: RangeEnds | None = Field(
        None,
        description="The smallest and the largest value of random inputs. `verify`, `run`, `bench` and the check of the "
        "trace use such inputs. Without a range, floats are normally distributed, and integers are 0 or 1. In `verify`, "
        "integers that index a table have the range of its rows. Engines do not depend on this field.",
    )


class DimFields(Fields):
    """A named dimension. Its range comes from the profiles. `batch: image.0` is short for `batch: {at: [image.0]}`."""

    model_config = ConfigDict(json_schema_extra=shorthand("at"))

    at: kinds.Places = Field(description="The axes that have this size: one or several.")
    multiple_of: kinds.Count = Field(1, description="Every size of this dim is a multiple of this number.")

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, value: Any) -> Any:
        return {"at": value} if isinstance(value, str | list) else value
