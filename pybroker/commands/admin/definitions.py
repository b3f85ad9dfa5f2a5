"""Tenants, namespaces, their policies and permissions as one JSON file: out of a broker, and in.

    {"definitions": 1,
     "tenants": {"acme": {"adminRoles": […], "allowedClusters": […]}},
     "namespaces": {"acme/shop": {"bundles": 4, "policies": {"retention": {…}, …},
                                  "permissions": {"role": ["produce", …]},
                                  "subscriptionPermissions": {"audit": ["role", …]}}}}

An import makes what is missing and sets what differs. It removes nothing, and may be repeated:
after an error, the next one goes on. The file is checked as a whole before the first change.
Policies have the names of the broker's own table; each is read and set by the same route.
"""

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from pybroker.broker.policies.policy import Level
from pybroker.broker.policies.table import POLICIES
from pybroker.commands.admin.command import namespace_parts, segment
from pybroker.commands.admin.rest import Rest, RestError

VERSION: Final = 1
_MOST_BYTES: Final = 64 * 1024 * 1024  # of a file
_QUOTAS: Final = "backlogQuota"
_LEVELS: Final[Mapping[str, Level]] = {
    policy.name: policy.namespace
    for policy in POLICIES
    if policy.namespace is not None and not policy.namespace.by_hand
}
# Their routes differ from the others', and so do the steps that set them.
_BY_HAND: Final = (_QUOTAS, "resourcegroup", "replication")
_SECTIONS: Final = ("bundles", "policies", "permissions", "subscriptionPermissions")


@dataclass(frozen=True, slots=True)
class Step:
    """A request that brings the broker closer to the file, and what it does in words."""

    does: str
    verb: str
    path: str
    body: Any = None


def export(rest: Rest, options: Namespace) -> Any:
    """The definitions; or, with a file to write them to, a sentence. Raises RestError, OSError."""
    found = definitions_of(rest)
    if not options.output:
        return found
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    Path(options.output).write_text(text, encoding="utf-8")
    tenants, namespaces = len(found["tenants"]), len(found["namespaces"])
    return f"wrote {tenants} tenants and {namespaces} namespaces to {options.output}"


def bring_in(rest: Rest, options: Namespace) -> list[str]:
    """What was done, or would be done. Raises ValueError for a file that is none of definitions,
    and RestError, which says how far it came.
    """
    wanted = checked(_read(Path(options.filename)))
    done = list[str]()
    for step in steps(rest, wanted):
        if not options.dry_run:
            try:
                rest.ask(step.verb, step.path, step.body)
            except RestError as error:
                raise RestError(
                    f"{step.does}: {error}; {len(done)} changes were made before: mend the reason, "
                    "and import again"
                ) from None
        done.append(step.does)
    return done


def definitions_of(rest: Rest) -> dict[str, Any]:
    tenants: list[str] = sorted(rest.ask("GET", "tenants"))
    names = [name for tenant in tenants for name in _namespaces(rest, tenant)]
    return {
        "definitions": VERSION,
        "tenants": {each: rest.ask("GET", f"tenants/{segment(each)}") for each in tenants},
        "namespaces": {name: _namespace(rest, name) for name in names},
    }


def checked(found: Any) -> dict[str, Any]:
    """`found` itself. Raises ValueError."""
    if not isinstance(found, dict) or found.get("definitions") != VERSION:
        raise ValueError(
            f'the file is none of definitions: its first field is "definitions": {VERSION}'
        )
    _object(found, "the file", ("definitions", "tenants", "namespaces"))
    for name, said in _object(found.get("tenants", {}), "tenants").items():
        for part, values in _object(said, f"tenants.{name}").items():
            _texts(values, f"tenants.{name}.{part}")
    for name, said in _object(found.get("namespaces", {}), "namespaces").items():
        namespace_parts(name)
        _check_namespace(_object(said, f"namespaces.{name}", _SECTIONS), f"namespaces.{name}")
    return found


def _check_namespace(said: dict[str, Any], place: str) -> None:
    policies = _object(said.get("policies", {}), f"{place}.policies", (*_LEVELS, *_BY_HAND))
    _object(policies.get(_QUOTAS, {}), f"{place}.policies.{_QUOTAS}")
    for part in ("permissions", "subscriptionPermissions"):
        for name, values in _object(said.get(part, {}), f"{place}.{part}").items():
            _texts(values, f"{place}.{part}.{name}")


def _object(found: Any, place: str, known: Iterable[str] | None = None) -> dict[str, Any]:
    """Raises ValueError for anything else, and for a name that is not among the known ones."""
    if not isinstance(found, dict):
        raise ValueError(f"{place} must be an object")
    if known is not None and (unknown := found.keys() - set(known)):
        raise ValueError(f"{place} has {min(unknown)}, which nobody knows here")
    return found


def _texts(found: Any, place: str) -> None:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{place} must be a list of texts")


def steps(rest: Rest, wanted: dict[str, Any]) -> Iterator[Step]:
    """Each step is asked for when the one before it has been done, or is only looked at."""
    tenants = set(rest.ask("GET", "tenants"))
    for tenant, said in wanted.get("tenants", {}).items():
        path = f"tenants/{segment(tenant)}"
        if tenant not in tenants:
            yield Step(f"create tenant {tenant}", "PUT", path, said)
        elif not _same(said, rest.ask("GET", path)):
            yield Step(f"change tenant {tenant}", "POST", path, said)
    for name, said in wanted.get("namespaces", {}).items():
        yield from _of_namespace(rest, name, said)


def _of_namespace(rest: Rest, name: str, said: dict[str, Any]) -> Iterator[Step]:
    path = _path(name)
    if not _is_there(rest, name):
        bundles = {"bundles": {"numBundles": said["bundles"]}} if "bundles" in said else {}
        yield Step(f"create namespace {name}", "PUT", path, bundles)
    there = _namespace(rest, name) if _is_there(rest, name) else {}
    policies = there.get("policies", {})
    for policy, value in said.get("policies", {}).items():
        if policies.get(policy) != value:
            yield from _set(name, policy, value)
    for role, actions in said.get("permissions", {}).items():
        if sorted(actions) != there.get("permissions", {}).get(role):
            does = f"grant {role} {', '.join(sorted(actions)) or 'nothing'} in {name}"
            yield Step(does, "POST", f"{path}/permissions/{segment(role)}", actions)
    for subscription, roles in said.get("subscriptionPermissions", {}).items():
        if sorted(roles) != there.get("subscriptionPermissions", {}).get(subscription):
            place = f"{path}/permissions/subscription/{segment(subscription)}"
            does = f"grant {', '.join(sorted(roles))} subscription {subscription} in {name}"
            yield Step(does, "POST", place, roles)


def _set(name: str, policy: str, value: Any) -> Iterator[Step]:
    path, does = _path(name), f"set {policy} of {name}"
    if policy == _QUOTAS:
        for kind, quota in value.items():
            asked = urlencode({"backlogQuotaType": kind})
            yield Step(f"{does} by {kind}", "POST", f"{path}/{_QUOTAS}?{asked}", quota)
    elif policy == "resourcegroup":
        yield Step(does, "POST", f"{path}/resourcegroup/{segment(str(value))}")
    elif policy == "replication":
        yield Step(does, "POST", f"{path}/replication", value)
    else:
        level = _LEVELS[policy]
        yield Step(does, level.verb, f"{path}/{level.path}", value)


def _namespace(rest: Rest, name: str) -> dict[str, Any]:
    path = _path(name)
    policies = {
        policy: value
        for policy, level in _LEVELS.items()
        if (value := rest.ask("GET", f"{path}/{level.path}")) not in (None, level.unset)
    }
    if quotas := rest.ask("GET", f"{path}/backlogQuotaMap"):
        policies[_QUOTAS] = quotas
    if group := rest.ask("GET", f"{path}/resourcegroup"):
        policies["resourcegroup"] = group
    policies["replication"] = rest.ask("GET", f"{path}/replication")
    permissions = rest.ask("GET", f"{path}/permissions")
    for_subscriptions = rest.ask("GET", f"{path}/permissions/subscription")
    return {
        "bundles": rest.ask("GET", f"{path}/bundles")["numBundles"],
        "policies": policies,
        "permissions": {role: sorted(each) for role, each in sorted(permissions.items())},
        "subscriptionPermissions": {
            subscription: sorted(roles) for subscription, roles in sorted(for_subscriptions.items())
        },
    }


def _is_there(rest: Rest, name: str) -> bool:
    tenant = namespace_parts(name)[0]
    return tenant in rest.ask("GET", "tenants") and name in _namespaces(rest, tenant)


def _namespaces(rest: Rest, tenant: str) -> list[str]:
    return sorted(rest.ask("GET", f"namespaces/{segment(tenant)}"))


def _path(name: str) -> str:
    return "namespaces/" + "/".join(map(segment, namespace_parts(name)))


def _same(said: Any, there: Any) -> bool:
    """Lists of roles and clusters have no order."""
    if not (isinstance(said, dict) and isinstance(there, dict)):
        return bool(said == there)
    return all(sorted(there.get(part, [])) == sorted(value) for part, value in said.items())


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path} is too large: at most {_MOST_BYTES >> 20} MiB")
        return json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
