"""Which partition each row's key goes to, for all rows at once."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pybroker.client import partition_for_key
from pybroker.spark.writing import byte_columns
from pybroker.spark.writing.byte_columns import Numbers

# Longer keys and keys that are not ASCII are hashed one by one, each distinct key once.
_MAX_LENGTH: Final = 64
_POSITIVE: Final = np.uint32(0x7FFF_FFFF)


def partitions_for_keys(keys: pa.LargeBinaryArray, count: int) -> Numbers:
    """Like `partition_for_key`; the keys are UTF-8."""
    if count == 1:
        return np.zeros(len(keys), np.int64)
    offsets, sizes = byte_columns.offsets(keys), byte_columns.lengths(keys, len(keys))
    data = np.frombuffer(byte_columns.data(keys), np.uint8)
    used = data[offsets[0] : offsets[-1]]
    if np.max(sizes, initial=0) > _MAX_LENGTH or np.max(used, initial=0) > 0x7F:
        return _one_by_one(keys, count)
    return (_java_hashes(data, offsets[:-1], sizes) & _POSITIVE).astype(np.int64) % count


def _java_hashes(
    data: npt.NDArray[np.uint8], starts: Numbers, sizes: Numbers
) -> npt.NDArray[np.uint32]:
    hashes = np.zeros(len(starts), np.uint32)
    for place in range(int(np.max(sizes, initial=0))):
        long_enough = sizes > place
        characters = data[np.where(long_enough, starts + place, 0)]
        hashes = np.where(long_enough, hashes * np.uint32(31) + characters, hashes)
    return hashes


def _one_by_one(keys: pa.LargeBinaryArray, count: int) -> Numbers:
    encoded = keys.dictionary_encode()
    different = [
        partition_for_key(key.decode("utf-8", "replace"), count)
        for key in encoded.dictionary.to_pylist()
    ]
    found: Numbers = np.array(different, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
    return found
