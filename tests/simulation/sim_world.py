"""A world whose clients know where brokers are."""

from pybroker.simulation.broker import PORT
from pybroker.simulation.world import World


class ClientsWorld(World):
    service_url = f"pulsar://127.0.0.1:{PORT}"
