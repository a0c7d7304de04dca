"""The base of every spec: frozen, no unknown keys, and canonical so that it can be digested."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Spec(BaseModel):
    """A frozen value with no unknown keys; equal specs have equal digests in every process."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)
    later_sections: ClassVar[tuple[str, ...]] = ()
    """Sections that the spec had not always: while all in them is absent, they change no digest."""

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, data: Any) -> Any:
        """``yes`` is true in YAML, and true is 1 in Python; where a number is meant, it is a mistake."""
        for name, value in data.items() if isinstance(data, Mapping) else ():
            field = cls.model_fields.get(str(name))
            if isinstance(value, bool) and field is not None and not _takes_truth(field.annotation):
                raise ValueError(f"{name}: is {str(value).lower()}, which is neither a number nor a text in quotes")
        return data

    def canonical(self) -> dict[str, Any]:
        """Plain JSON data with every default written out."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """Hex digest of the canonical form without what is absent: a new optional setting or section changes none."""
        data = _without_empty(self.model_dump(mode="json", exclude_none=True))
        for section in self.later_sections:
            if not data.get(section, True):
                del data[section]
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _without_empty(data: Any) -> Any:
    """``data`` without sections in which nothing is set."""
    if not isinstance(data, dict):
        return data
    kept = {key: _without_empty(value) for key, value in data.items()}
    return {key: value for key, value in kept.items() if value != {}}


def _takes_truth(annotation: Any) -> bool:
    return annotation in (bool, Any) or any(map(_takes_truth, get_args(annotation)))


def read_fraction(value: object) -> object:
    """``"10%"``, ``"+5%"`` and ``"-2%"`` as fractions; numbers stay as they are."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([+-]?\d+(?:\.\d+)?)\s*%\s*", value)
        if not match:
            raise ValueError(f'{value!r} is not a share; write a percentage such as "10%" or a fraction such as 0.1')
        return float(match[1]) / 100
    return value


def _slug(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}", value):
        shown = repr(value if len(value) <= 80 else value[:80] + "...")
        raise ValueError(
            f"{shown} is not a usable name; use up to 64 letters, digits, spaces, '.', '_' or '-', "
            "starting with a letter or digit"
        )
    return value


Fraction = Annotated[float, BeforeValidator(read_fraction)]
Share = Annotated[float, BeforeValidator(read_fraction), Field(ge=0, le=1)]
Name = Annotated[str, AfterValidator(_slug)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
PositiveFloat = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(gt=0)]

SpecT = TypeVar("SpecT", bound=Spec)


def require_one(spec: SpecT) -> SpecT:
    """``spec`` itself if exactly one of its fields is set; for specs written as ``{kind: {...}}``."""
    given = [name for name in type(spec).model_fields if getattr(spec, name) is not None]
    if len(given) != 1:
        names = ", ".join(type(spec).model_fields)
        raise ValueError(f"give exactly one of {names}; got {', '.join(given) or 'nothing'}")
    return spec
