"""From the job file's text to plain values: YAML, ``--set``, and ``${name}`` in strings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from ..artifacts.errors import SpecError

#: ``$${`` stands for a plain ``${``.
_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}")


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice: YAML would silently take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key is there twice: {key}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_job_file(path: Path) -> dict[str, Any]:
    """Raises SpecError for a file that is not there or is not a YAML mapping, with the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SpecError(f"no such job file: {path}", "give the path of a YAML file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"job file can't be read: {path}: {error}", "a job file is YAML in UTF-8") from error
    value = _parsed(text, f"job file: {path}")
    if not isinstance(value, dict):
        raise SpecError(f"job file is no mapping of keys to values: {path}", "see the job file in the README")
    return cast("dict[str, Any]", value)


def settle(raw: Mapping[str, Any], sets: Sequence[str], known: Collection[str]) -> dict[str, Any]:
    """``raw`` with ``--set`` applied and variables filled in. ``known`` are the job file's top-level keys.

    ``name=value`` sets a variable where ``vars`` declares it (always text), else a dotted key (the value is YAML).
    Raises SpecError for a name that is neither, and for a variable that is undeclared or has no value.
    """
    spec = _copy(raw)
    declared = _variables(spec.get("vars"))
    for setting in sets:
        name, equals, value = setting.partition("=")
        if not equals:
            raise SpecError(f"--set without a value: {setting}", "write --set name=value")
        if name in declared:
            declared[name] = value
        elif name.split(".")[0] in known and name != "vars" and not name.startswith("vars."):
            _put(spec, name, _parsed(value, f"--set {name}"))
        else:
            raise SpecError(f"--set names neither a variable nor a key of the job file: {name}", _meant(name, declared))
    filled = {key: _filled(value, declared, key) for key, value in spec.items() if key != "vars"}
    return {**filled, "vars": declared} if "vars" in spec else filled


def nearest(name: str, known: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _parsed(text: str, what: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, character {mark.column + 1}" if mark else ""
        raise SpecError(f"no valid YAML in {what}{place}: {error.problem}", "check quotes and indentation") from error
    except (yaml.YAMLError, ValueError) as error:  # 2026-13-01 is a ValueError
        raise SpecError(f"no valid YAML in {what}: {' '.join(str(error).split())}", "quote what is text") from error


def _variables(raw: Any) -> dict[str, str | None]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise SpecError(f"bad value in the job file: vars: {raw!r}", "allowed: names with values, as in {ds: null}")
    found: dict[str, str | None] = {}
    for name, value in raw.items():
        if isinstance(value, dict | list):
            raise SpecError(f"bad value in the job file: vars.{name}: {value!r}", "allowed: text, a number or null")
        found[str(name)] = _text(value)
    return found


def _text(value: Any) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


def _meant(name: str, declared: Collection[str]) -> str:
    near = nearest(name, declared)
    variables = ", ".join(declared) or "none"
    return f"did you mean {near}?" if near else f"variables that the job file declares under vars: {variables}"


def _put(spec: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    target = spec
    for parent in parents:
        inner = target.get(parent)
        if inner is None:
            inner = target[parent] = {}
        if not isinstance(inner, dict):
            raise SpecError(
                f"--set reaches into a plain value: {dotted}, {parent} is {inner!r}", f"set {parent} itself"
            )
        target = inner
    target[last] = value


def _filled(value: Any, variables: Mapping[str, str | None], where: str) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, variables, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, variables, f"{where}[{number}]") for number, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def fill(found: re.Match[str]) -> str:
        if found.group() == "$${":
            return "${"
        name = found.group(1)
        if name not in variables:
            near = nearest(name, variables)
            hint = f"did you mean ${{{near}}}?" if near else f"declare it under vars: {{{name}: null}}"
            raise SpecError(f"undeclared variable in the job file: {where}: ${{{name}}}", hint)
        text = variables[name]
        if text is None:
            raise SpecError(f"variable without a value in the job file: {where}: ${{{name}}}", f"add --set {name}=…")
        return text

    return _REFERENCE.sub(fill, value)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value
