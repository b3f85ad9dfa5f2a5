"""A world whose clients know the addresses of brokers."""

from pybroker.simulation.broker import PORT
from pybroker.simulation.world import World


class ClientsWorld(World):
    service_url = f"pulsar://127.0.0.1:{PORT}"
