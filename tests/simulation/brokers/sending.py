"""An administrator sends bundles to certain brokers while clients look them up everywhere."""

from typing import Any, Final

from checks.history import Logs
from clients.plain import Process
from features.feature import Feature

from brokers.administering import Unanswered, ask, phantoms

_SETTLED_S: Final = 15.0  # several sessions
_MOVES: Final = 6
_WITHIN_S: Final = 8.0  # from the end of the release; less than the lifetime of a promise
_RELEASED_S: Final = 40.0  # more than a release may take: loops that stall make it slow
_BETWEEN_S: Final = 1.0  # all brokers know of the move by then; a promise would still hold


class Sender(Process):
    """Moves bundles over HTTP, from any broker to any other."""

    def __init__(self, *args: Any, cluster: Any, count: int) -> None:
        super().__init__(*args)
        self.cluster = cluster
        self.left = count

    async def work(self, client: Any) -> None:
        while self.left and not self.stopping:
            self.left -= 1
            await self._send()
            await self.pause(self.rng.choice((0.05, 0.3, 1.0)))

    async def _send(self) -> None:
        owners = [member for member in self.cluster.members if member.owned()]
        if not owners:
            return
        bundle = self.rng.choice(sorted(self.rng.choice(owners).owned(), key=str))
        destination = self.cluster.some_member().broker_id
        target = f"namespaces/{bundle.namespace}/{bundle.range}/unload"
        try:
            reply = await ask(self.cluster, "PUT", f"{target}?destinationBroker={destination}")
        except Unanswered as why:
            self.note(f"{bundle} to {destination}: {why}")
            return
        self.note(f"{bundle} to {destination}: {reply.status} {reply.body[:200]!r}")
        self.history.counts[f"bundles sent: {reply.status}"] += 1


class SentBundles(Feature):
    """After the last fault, a bundle goes where it is sent, whichever broker is asked meanwhile,
    and from there to the next broker.
    """

    name = "sent bundles"
    serves_http = True

    def begin(self) -> None:
        self.simulation.producers.append(
            Sender(
                self.world,
                self.history,
                "sender",
                cluster=self.broker,
                count=self.rng.choice((3, 10)),
            )
        )

    def rest(self) -> None:
        self.world.sleep(_SETTLED_S)
        self.found = phantoms(self.broker)
        owners = [member for member in self.broker.members if member.owned()]
        if not self.broker.serving or not owners:
            return
        owner = self.rng.choice(owners)
        bundle = self.rng.choice(sorted(owner.owned(), key=str))
        for _ in range(_MOVES):
            others = [member for member in self.broker.members if member is not owner]
            if owner.topics.ownership.owns_bundle(bundle):  # otherwise it was divided or given back
                owner = self._sent(bundle, owner, self.rng.choice(others))
            self.world.sleep(_BETWEEN_S)

    def _sent(self, bundle: Any, owner: Any, destination: Any) -> Any:
        """The bundle's owner afterwards."""
        self.count("bundles sent in peace")
        owner.release(bundle, destination.broker_id)
        until_s, at_last_s = self.world.now + _WITHIN_S, self.world.now + _RELEASED_S
        while self.world.now < min(until_s, at_last_s):
            self.world.sleep(0.01 * self.rng.random())
            if bundle in owner.topics.ownership._releasing:
                until_s = self.world.now + _WITHIN_S
            for member in self.broker.members:
                if member is not owner and member.topics.ownership.owns_bundle(bundle):
                    if member is not destination:
                        self._fails(bundle, destination, f"went to {member.name}")
                    return member
            self.rng.choice(self.broker.members).look_up(bundle, self.rng.random() < 0.5)
        self._fails(bundle, destination, "did not arrive")
        return owner

    def _fails(self, bundle: Any, destination: Any, what: str) -> None:
        """Not if a fault lasts: a broker that is cut off from a bookie closes its topics late."""
        if self.broker.serving and not self.world.network.is_cut:
            self.found.append(f"ASTRAY: {bundle} was sent to {destination.name}, and {what}")

    def account(self, logs: Logs) -> list[str]:
        return self.found
