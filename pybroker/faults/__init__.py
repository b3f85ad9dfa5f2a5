"""Fault points: named steps of the broker where a test can make it crash, wait, lose or refuse."""

from pybroker.faults.passing import Passing
from pybroker.faults.points import ACTIONS, POINTS, Action, Point
from pybroker.faults.registry import Faults, Observation
from pybroker.faults.rule import NeverStruck, Rule

__all__ = [
    "ACTIONS",
    "POINTS",
    "Action",
    "Faults",
    "NeverStruck",
    "Observation",
    "Passing",
    "Point",
    "Rule",
]
