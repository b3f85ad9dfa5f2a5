"""All models."""

from typing import Final

from spec import acknowledgements
from spec.checker import Spec

SPECS: Final[tuple[Spec, ...]] = (acknowledgements.SPEC,)
