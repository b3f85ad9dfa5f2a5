"""What a broker asks of the others when an ordinary topic is made scalable."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pybroker.base.names import TopicName


@dataclass(frozen=True, slots=True)
class Stranger:
    """A client that does not say that it can follow."""

    topic: str
    what: str  # for people
    subscription: str = ""  # of a consumer, as the next
    consumer: str = ""


@dataclass(frozen=True, slots=True)
class Attached:
    """A broker's clients of an ordinary topic."""

    strangers: tuple[Stranger, ...] = ()
    members: tuple[tuple[str, str], ...] = ()  # of groups: subscription, name

    def json(self) -> dict[str, Any]:
        strangers = [asdict(each) for each in self.strangers]
        return {"strangers": strangers, "members": [list(each) for each in self.members]}

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> "Attached":
        """Raises TypeError, KeyError or ValueError for other JSON."""
        members = tuple((str(subscription), str(name)) for subscription, name in said["members"])
        return cls(tuple(Stranger(**each) for each in said["strangers"]), members)


class OtherBrokersOfParts(Protocol):
    async def attached(self, name: TopicName) -> list[Attached]:
        """What each other broker says of its clients of the ordinary topic with the name of the
        scalable topic `name`. Raises NotAllowed, ServiceNotReady.
        """
        ...

    async def leave(self, name: TopicName) -> None:
        """When it returns, no other broker has a part loaded. Raises ServiceNotReady."""
        ...
