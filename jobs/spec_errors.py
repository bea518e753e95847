"""What is wrong with a job file, told by dotted key, value, and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ..artifacts.errors import SpecError
from .settings import nearest

_SECRET = ("storage_options", "artifact_options")
#: Keys that are planned and would change what a job does: better refused than passed over.
_LATER = {
    "consistency": "every worker runs the same variant, which variant: pins",
    "allow_unchecked": "there is no accuracy gate yet",
    "source.text_pair": "only single texts are scored so far",
    "source.text.text_pair": "only single texts are scored so far",
}
_ALLOWED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text (quote it where YAML takes it for something else)",
    "string_too_short": "text that is not empty",
    "tuple_type": "a list",
    "mapping_type": "keys with values",
    "dict_type": "keys with values",
    "model_type": "keys with values",
    "too_short": "at least one",
}
_LIMITS = {
    "greater_than_equal": ("ge", "from {:g}"),
    "greater_than": ("gt", "more than {:g}"),
    "less_than_equal": ("le", "up to {:g}"),
}


def refuse_unsupported(raw: Mapping[str, Any]) -> None:
    """Raises SpecError for a key that is known but not built, so that it is not silently passed over."""
    for dotted, why in _LATER.items():
        if _holds(raw, dotted.split(".")):
            raise SpecError(f"not supported yet in a job file: {dotted}", f"leave it out: {why}")
    pools = raw.get("pools")
    for name, pool in pools.items() if isinstance(pools, Mapping) else ():
        if isinstance(pool, Mapping) and pool.get("num_gpus"):
            message = f"GPU pools are not supported yet: pools.{name}.num_gpus: {pool['num_gpus']}"
            raise SpecError(message, f"leave pools.{name} out, or give it num_cpus")


def translated(error: ValidationError, model: type[BaseModel], raw: Mapping[str, Any]) -> SpecError:
    """The first thing that is wrong; an unknown key before the key that is missing for it."""
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    first = details[0]
    loc = _keys(first["loc"], raw, first["type"] in ("missing", "extra_forbidden"))
    dotted = _dotted(loc)
    if first["type"] == "extra_forbidden":
        return _unknown(loc, model)
    if first["type"] == "missing":
        return SpecError(f"missing key in the job file: {dotted}", "see the job file in the README")
    shown = "***" if any(key in _SECRET for key in loc) else repr(_plain(first["input"]))
    return SpecError(f"bad value in the job file: {dotted}: {shown}", f"allowed: {_allowed(first)}")


def _unknown(loc: list[str | int], model: type[BaseModel]) -> SpecError:
    *parents, name = loc
    known = _fields(model, parents)
    near = nearest(str(name), known)
    elsewhere = nearest(str(name), (path.rsplit(".", 1)[-1] for path in _every(model)))
    if near:
        hint = f"did you mean {_dotted([*parents, near])}?"
    elif elsewhere:
        hint = f"did you mean {next(path for path in _every(model) if path.rsplit('.', 1)[-1] == elsewhere)}?"
    else:
        hint = f"known here: {', '.join(known)}"
    return SpecError(f"unknown key in the job file: {_dotted(loc)}", hint)


def _keys(loc: tuple[str | int, ...], raw: Any, last_is_absent: bool) -> list[str | int]:
    """``loc`` without what pydantic puts between: names of types and of validators."""
    kept: list[str | int] = []
    for number, key in enumerate(loc):
        last = last_is_absent and number + 1 == len(loc)
        inside = raw[key] if _has(raw, key) else None
        if last or _has(raw, key):
            kept.append(key)
            raw = inside
    return kept


def _has(raw: Any, key: str | int) -> bool:
    if isinstance(raw, Mapping):
        return key in raw
    return isinstance(raw, list | tuple) and isinstance(key, int) and key < len(raw)


def _holds(raw: Any, keys: list[str]) -> bool:
    for key in keys:
        if not isinstance(raw, Mapping) or key not in raw:
            return False
        raw = raw[key]
    return raw is not None


def _dotted(loc: list[str | int]) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in loc)
    return text.lstrip(".")


def _allowed(detail: Any) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return words.format(context[name])
    return _ALLOWED.get(kind, str(detail["msg"]))


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value


def _fields(model: type[BaseModel], parents: list[str | int]) -> list[str]:
    for parent in parents:
        field = model.model_fields.get(str(parent))
        if field is None:  # a name that the user chose, of a pool
            continue
        inner = _model_in(field.annotation)
        model = inner or model
    return list(model.model_fields)


def _every(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{above}{name}"
        inner = _model_in(field.annotation)
        if inner is not None:
            middle = "" if inner is field.annotation else "<name>."
            yield from _every(inner, f"{above}{name}.{middle}")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model_in, get_args(annotation)) if found is not None), None)
