"""Keys as bytes. Producers write keys that are not text as base64, and flag them."""

import base64
import binascii

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pybroker.spark.columns.arrays import binaries, byte_strings
from pybroker.spark.columns.fields import Data, Slices


def keys(data: Data, slices: Slices, is_base64: npt.NDArray[np.bool_]) -> pa.Array:
    plain = binaries(data, slices)
    if not is_base64.any():
        return plain
    pairs = zip(plain.to_pylist(), is_base64.tolist(), strict=True)
    return byte_strings([_decoded(key) if encoded else key for key, encoded in pairs])


def _decoded(key: bytes | None) -> bytes | None:
    """Returns the key unchanged if its flag is wrong."""
    if key is None:
        return None
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        return key
