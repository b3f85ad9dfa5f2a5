"""The broker itself: health, configuration, shutdown."""

import dataclasses
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pybroker.admin.operation import WORDS, DescribedRoute
from pybroker.admin.replies import check
from pybroker.admin.routing import asked, route
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import PROPERTIES, TEXTS
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import camel_case
from pybroker.base.json_schema import TEXT, TRUTH, choice, fields, map_of, or_null, record
from pybroker.base.version import version

_SECRETS = {field.name for field in dataclasses.fields(BrokerConfig) if not field.repr}
_HIDDEN = "*****"
_LOG_LEVEL = "logLevel"
_MIGRATION = "/admin/v2/metadata/migration"
_MIGRATION_STATE = record(
    "MigrationState",
    {
        "phase": choice("NOT_STARTED", "PREPARATION", "COPYING", "COMPLETED", "FAILED"),
        "targetUrl": or_null(TEXT),
    },
)
_STORES = "metadataStoreUrl configurationMetadataStoreUrl ledgersRootPath"
_OWNED = record(
    "NamespaceOwnershipStatus",
    {
        "broker_assignment": choice("primary", "secondary", "shared"),
        **fields(TRUTH, "is_controlled is_active"),
    },
)


class BrokerRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._cluster = services.config.cluster_name

    def routes(self) -> list[DescribedRoute]:
        brokers = "/admin/v2/brokers"
        configuration = f"{brokers}/configuration"
        return [
            route("GET", brokers, self.brokers, TEXTS),
            route("GET", f"{brokers}/health", self.health, WORDS, query={"brokerId": TEXT}),
            route("GET", f"{brokers}/ready", self.health, WORDS),
            route("GET", f"{brokers}/version", self.version, WORDS),
            route(
                "GET",
                f"{brokers}/leaderBroker",
                self.leader,
                record("BrokerInfo", fields(TEXT, "brokerId serviceUrl")),
            ),
            route("GET", f"{configuration}", self.dynamic_names, TEXTS),
            route("GET", f"{configuration}/runtime", self.configuration, PROPERTIES),
            route("GET", f"{configuration}/values", self.dynamic_values, PROPERTIES),
            route(
                "POST",
                f"{configuration}/{{key:segment}}/{{value:segment}}",
                self.change,
                refuses=(412,),
            ),
            route("DELETE", f"{configuration}/{{key:segment}}", self.take_back, refuses=(412,)),
            route(
                "GET",
                f"{brokers}/internal-configuration",
                self.internal_configuration,
                record("InternalConfigurationData", fields(TEXT, _STORES)),
            ),
            route("GET", f"{_MIGRATION}/status", self.metadata_migration, _MIGRATION_STATE),
            route(
                "POST",
                f"{_MIGRATION}/start",
                self.migrate_metadata,
                query={"target": TEXT},
                refuses=(409,),
            ),
            route("GET", f"{brokers}/backlog-quota-check", self.check_quotas),
            route("POST", f"{brokers}/shutdown", self.shut_down, refuses=(412,)),
            route(
                "GET",
                f"{brokers}/{{cluster:segment}}/{{broker:segment}}/ownedNamespaces",
                self.owned,
                map_of(_OWNED, most=None),
            ),
            route("GET", f"{brokers}/{{cluster:segment}}", self.brokers, TEXTS),
        ]

    async def brokers(self, request: Request) -> list[str]:
        if "cluster" in request.path_params:
            self._check_cluster(request)
        members = self._services.members
        return [self._services.broker_id] if members is None else members()

    async def health(self, _: Request) -> Response:
        """Checks that a message can be stored and read back; the result is cached for a second."""
        await self._services.health.check()
        return PlainTextResponse("ok")

    async def version(self, _: Request) -> Response:
        return PlainTextResponse(version())

    async def leader(self, _: Request) -> dict[str, str]:
        """Brokers of a cluster need no leader; all of them name the same broker."""
        services = self._services
        others = {} if services.brokers is None else services.brokers.others()
        first = min((services.broker_id, *others))
        if first != services.broker_id:
            address = others[first]
            return {"brokerId": first, "serviceUrl": address.http_url or address.http_url_tls}
        return {"brokerId": services.broker_id, "serviceUrl": services.admin_url}

    async def configuration(self, _: Request) -> dict[str, str]:
        """The configuration in effect. Secrets are masked."""
        values = dataclasses.asdict(self._services.dynamic.config)
        return {
            camel_case(name): _HIDDEN if name in _SECRETS and value else _spelt(value)
            for name, value in values.items()
        }

    async def dynamic_names(self, _: Request) -> list[str]:
        """The names of the keys that can be changed while the broker runs."""
        logs = [] if self._services.logs is None else [_LOG_LEVEL]
        return logs + self._services.dynamic.names()

    async def dynamic_values(self, _: Request) -> dict[str, str]:
        """The dynamic configuration: keys set at run time and not removed."""
        logs, values = self._services.logs, self._services.dynamic.values()
        return values if logs is None or logs.chosen is None else {_LOG_LEVEL: logs.chosen} | values

    async def change(self, request: Request) -> None:
        """Sets a key of the dynamic configuration. When this is answered, every topic acts on the
        new value, and it survives restarts. Only log levels return to the configuration when the
        broker ends.
        """
        key, value = request.path_params["key"], request.path_params["value"]
        if key == _LOG_LEVEL and (logs := self._services.logs) is not None:
            try:
                logs.choose(value)
            except ValueError as error:
                raise HTTPException(412, str(error)) from None
            return
        await self._services.dynamic.set(key, value)
        await self._services.topics.following.told()

    async def take_back(self, request: Request) -> None:
        """Removes a key of the dynamic configuration: the configuration file's value applies."""
        key = request.path_params["key"]
        if key == _LOG_LEVEL and (logs := self._services.logs) is not None:
            logs.reset()
            return
        await self._services.dynamic.delete(key)
        await self._services.topics.following.told()

    async def internal_configuration(self, _: Request) -> dict[str, str]:
        """The location of the metadata, which the broker stores itself."""
        return dict.fromkeys(_STORES.split(), "")

    async def metadata_migration(self, _: Request) -> dict[str, str | None]:
        return {"phase": "NOT_STARTED", "targetUrl": None}

    async def migrate_metadata(self, request: Request) -> NoReturn:
        """Migration between metadata stores, which is not supported: this broker has its own."""
        if not asked(request, "target"):
            raise HTTPException(400, "No target given: add ?target=…")
        raise HTTPException(
            400,
            "This broker keeps its metadata in its data directory: copy that directory to move it",
        )

    async def check_quotas(self, _: Request) -> None:
        """Does nothing: quotas are checked continuously."""

    async def shut_down(self, _: Request) -> None:
        """Shuts the broker down gracefully after answering this request."""
        if self._services.shut_down is None:
            raise HTTPException(
                412, "This broker is embedded in another process, which must stop it"
            )
        self._services.shut_down()

    async def owned(self, request: Request) -> dict[str, dict[str, Any]]:
        self._check_cluster(request)
        broker = request.path_params["broker"]
        status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        if broker != self._services.broker_id:
            return await self._owned_by(broker, request)
        if self._services.bundles is not None:
            return dict.fromkeys(sorted(map(str, self._services.bundles.owned())), status)
        tenants = self._services.topics.tenants
        namespaces = [n for tenant in tenants.tenants() for n in tenants.namespaces(tenant)]
        return {f"{namespace}/0x00000000_0xffffffff": status for namespace in namespaces}

    async def _owned_by(self, broker: str, request: Request) -> dict[str, dict[str, Any]]:
        brokers = self._services.brokers
        address = None if brokers is None else brokers.others().get(broker)
        if brokers is None or address is None:
            raise HTTPException(404, f"Broker {broker} does not exist")
        reply = await brokers.ask(address, "GET", request.scope["raw_path"].decode("ascii"))
        owned: dict[str, dict[str, Any]] = check(reply).json()
        return owned

    def _check_cluster(self, request: Request) -> None:
        """Raises an error for any cluster but this broker's own."""
        name = request.path_params["cluster"]
        if name != self._cluster:
            raise HTTPException(
                404,
                f"{request.url.path} is not a route, and this broker's only cluster is "
                f"{self._cluster}",
            )


def _spelt(value: object) -> str:
    """The value as broker.conf spells it; empty for a disabled port."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
