"""What is wrong with a field of a request, or with a setting, as a clause for people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from steerserve.errors import Refusal

_NAMED_MAXIMUM = 20
"""The most faults that a refusal names."""

_WHOLE, _NUMBER, _BOOLEAN = "must be a whole number", "must be a number", "must be true or false"
_OBJECT = "must be an object"
_TIME = "must be a time, as 2026-01-31T12:00:00Z"

_CLAUSES = {
    "missing": "is required",
    "bool_type": _BOOLEAN,
    "bool_parsing": _BOOLEAN,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": "has too many digits",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "string_unicode": "must not have half of a surrogate pair",
    "none_required": "must be null",
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_object_invalid": _TIME,
    "datetime_from_date_parsing": _TIME,
    "timezone_naive": _TIME,
}
"""By the validator's type of the fault, with the names that its context has."""

_LENGTHS = {
    "too_short": ("at least", "min_length", "item"),
    "too_long": ("at most", "max_length", "item"),
    "string_too_short": ("at least", "min_length", "character"),
    "string_too_long": ("at most", "max_length", "character"),
}


def described(fault: Mapping[str, Any]) -> str:
    """The clause for a fault that a validator found, as `must be at least 1`. Faults without a clause of their own have
    the words of the validator.

    Args:
        fault: one of `ValidationError.errors()`, with its context.
    """
    kind, context = str(fault["type"]), fault.get("ctx", {})
    if kind in _LENGTHS:
        bound, limit, unit = _LENGTHS[kind]
        count = context[limit]
        if (bound, count) == ("at least", 1):
            return "must not be empty"
        return f"must have {bound} {count} {unit}{'' if count == 1 else 's'}"
    if kind in _CLAUSES:
        return _CLAUSES[kind].format_map({name: _plain(value) for name, value in context.items()})
    clause = str(fault["msg"]).removeprefix("Value error, ")
    return _PLAIN.get(clause) or re.sub(r"^Input should be", "must be", clause)


_PLAIN = {"Extra inputs are not permitted": "is an unknown field"}
_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
"""The types in the words of the decoder -> for people."""
_SPOKEN = (
    (re.compile(r"Expected `(?P<kinds>[^`]*)`, got `[^`]*`"), "must be {kinds}"),
    (
        re.compile(r"Expected `(?P<kinds>[^`]*)` (?P<bound>>=|<=|>|<) (?P<limit>\S+)"),
        "{bound} {limit}",
    ),
    (re.compile(r"Object missing required field `(?P<name>[^`]*)`"), "{name!r} is required"),
    (
        re.compile(r"Object contains unknown field `(?P<name>[^`]*)`"),
        "{name!r} is an unknown field",
    ),
)
_BOUNDS = {
    ">=": "must be at least",
    "<=": "must be at most",
    ">": "must be above",
    "<": "must be below",
}
_AT = re.compile(r" - at `\$\.?(?P<place>.*)`$", re.DOTALL)


def spoken(fault: str) -> str:
    """The words of the decoder of records about a fault, as a clause for people. The place comes first where the
    decoder names one."""
    place = ""
    if found := _AT.search(fault):
        place, fault = f"{found['place']}: ", fault[: found.start()]
    for pattern, clause in _SPOKEN:
        if match := pattern.match(fault):
            named = match.groupdict()
            if "kinds" in named:
                kinds = dict.fromkeys(_TYPES.get(k, k) for k in named["kinds"].split(" | "))
                named["kinds"] = " or ".join(kinds)
            if "bound" in named:
                named["bound"] = _BOUNDS[named["bound"]]
            return place + clause.format_map(named)
    return place + fault[:1].lower() + fault[1:].replace("`", "'")


def refuse_value(place: Sequence[str], why: str, message: str = "", /, **details: Any) -> Refusal:
    """VALIDATION_ERROR for the value at a place, as `["body", "name"]`. The message is `why` where none is given."""
    errors = [{"loc": [*place], "msg": why}]
    return Refusal("VALIDATION_ERROR", message or why, **details, errors=errors)


def refuse_field(field: str, why: str, /, **details: Any) -> Refusal:
    """VALIDATION_ERROR for a field of a body."""
    return refuse_value(["body", field], why, f"{field}: {why}", **details)


def refuse_parameter(param: str, why: str, /, **details: Any) -> Refusal:
    """INVALID_PARAMETER for the value of a parameter, or for the value at a place, as `input[0]`."""
    return Refusal("INVALID_PARAMETER", f"{param}: {why}", param=param, **details)


def refusal(faults: Sequence[Mapping[str, Any]], within: Sequence[str] = ()) -> Refusal:
    """VALIDATION_ERROR with the first fault in its message and the first 20 in its details.

    Args:
        within: where the object is whose fields have the faults, as `["body"]`.
    """
    errors = [
        {"loc": [*within, *fault["loc"]], "msg": described(fault), "type": fault["type"]}
        for fault in faults[:_NAMED_MAXIMUM]
    ]
    where = ".".join(str(part) for part in errors[0]["loc"])
    return Refusal("VALIDATION_ERROR", f"{where}: {errors[0]['msg']}", errors=errors)


def _plain(value: object) -> object:
    """A bound of a number without a fraction, as `2` in place of `2.0`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
