"""Conversion between frozen dataclasses and plain JSON values, exact in both directions.

A component (model, objective, optimizer, schedule ...) is stored with its ``kind``, the class name, so that the
abstract type of a field resolves to its concrete class. The valid kinds are the imported subclasses.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import numbers
import types
import typing
from abc import ABC
from typing import Any

from daybreak.core.errors import UserError, reason
from daybreak.schemas.old_names import FIELDS


class UnknownKind(UserError):
    """A component whose class is not among the imported ones."""


class Component(ABC):  # noqa: B024 (its subclasses have the methods)
    """Base of abstract configuration classes; their concrete subclasses are stored with their ``kind``.

    A class without one of the abstract methods cannot be instantiated, so the error appears when the user's file runs
    and not during training.
    """


def nearest(word: str, choices: typing.Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest choice, or an empty string when none is close."""
    found = difflib.get_close_matches(str(word), list(choices), n=1, cutoff=0.5)
    return f" Did you mean '{found[0]}'?" if found else ""


def check_choice(name: str, value: str, known: typing.Collection[str]) -> None:
    """Raise UserError unless ``value`` is one of ``known``."""
    if value not in known:
        *others, last = known
        raise UserError(f"{name} cannot be '{value}'.{nearest(value, known)}", f"Use {', '.join(others)} or {last}.")


def to_dict(value: Any) -> Any:
    """Turn a dataclass (nested, with tuples, dicts and numbers) into JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields} if isinstance(value, Component) else fields
    if isinstance(value, dict):
        return {key: to_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    # A number of numpy, as from a sweep, is one of Python.
    return value.item() if isinstance(value, numbers.Number) and hasattr(value, "item") else value


def flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Dotted names and values of nested dicts: ``[('optimizer.lr', 0.001), ...]``."""
    if not isinstance(value, dict):
        return [(name, value)]
    return [pair for key, item in value.items() for pair in flat(item, f"{name}.{key}" if name else str(key))]


def from_dict(cls: Any, value: Any, where: str = "") -> Any:
    """Rebuild a value of type ``cls`` from JSON values."""
    origin, arguments = typing.get_origin(cls), typing.get_args(cls)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return from_dict(next(a for a in arguments if a is not type(None)), value, where)
    wanted = {tuple: list, list: list, dict: dict}.get(origin) if origin else None
    if wanted is not None and not isinstance(value, wanted):
        what = "an object" if wanted is dict else "a list"
        raise UserError(f"{_called(where)} should be {what}.", "Correct or delete that file.")
    if origin is tuple:
        return tuple(from_dict(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is list:
        return [from_dict(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        return {key: from_dict(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(cls) or (isinstance(cls, type) and issubclass(cls, Component)):
        return _dataclass_from_dict(cls, value, where)
    if cls is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{_called(where)} holds too large a number.", "Correct or delete that file.") from None
    if cls is not Any and (not isinstance(value, cls) or (cls is int and isinstance(value, bool))):
        raise UserError(f"{_called(where)} holds {value!r}, not {cls.__name__}.", "Correct or delete that file.")
    return value


def _called(where: str) -> str:
    return f"The field '{where}'" if where else "The content"


def _dataclass_from_dict(cls: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise UserError(f"{_called(where)} should be an object.", "Correct or delete that file.")
    value = dict(value)
    if issubclass(cls, Component):
        kinds = {kind.__name__: kind for kind in _final_subclasses(cls)}
        kind = str(value.pop("kind", None))
        if kind not in kinds:
            raise UnknownKind(
                f"'{kind}' is not a kind of {cls.__name__} that this version knows.{nearest(kind, kinds)}",
                f"Use one of: {', '.join(sorted(kinds))}.",
            )
        cls = kinds[kind]
    renamed = FIELDS.get(cls.__name__, {})
    value = {new: content for name, content in value.items() if (new := renamed.get(name, name))}
    hints = _hints(cls)
    known = {field.name: field for field in dataclasses.fields(cls)}
    for name in value:
        if name not in known:
            raise UserError(
                f"Unknown field '{where + '.' if where else ''}{name}'.{nearest(name, known)}",
                "Remove it or correct its name.",
            )
    for name, field in known.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in value:
            raise UserError(f"The field '{where + '.' if where else ''}{name}' is missing.", "Add it.")
    inner = {n: from_dict(hints[n], v, f"{where}.{n}" if where else n) for n, v in value.items()}
    try:
        return cls(**inner)
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:  # a check of the class itself
        raise UserError(f"{_called(where)} is invalid ({reason(error)}).", "Correct or delete that file.") from None


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Types of the fields, cached because a long run has many thousand records of one type."""
    return typing.get_type_hints(cls)


def _final_subclasses(cls: Any) -> list[Any]:
    """The concrete kinds below ``cls``; a user's subclass of a Daybreak class does not make that class abstract."""
    below = type.__subclasses__(cls)
    daybreak_kinds = [kind for kind in below if kind.__module__.startswith("daybreak.")]
    found: list[Any] = [cls] if dataclasses.is_dataclass(cls) and not daybreak_kinds else []
    for subclass in below:
        found += _final_subclasses(subclass)
    return found


def fingerprint(value: Any) -> str:
    """Return 16 hex digits that identify a plain or dataclass value, whatever the order of its keys."""
    text = json.dumps(to_dict(value), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
