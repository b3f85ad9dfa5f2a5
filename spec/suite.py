"""All models."""

from typing import Final

from spec import acknowledgements, fencing, groups, transaction_ends, with_database
from spec.checker import Spec

SPECS: Final[tuple[Spec, ...]] = (
    acknowledgements.SPEC,
    transaction_ends.SPEC,
    groups.SPEC,
    fencing.SPEC,
    with_database.SPEC,
)
