"""Hash slots of a cluster: CRC16 (XMODEM) of the key, or of what stands in its first braces, modulo 16384.

Source: the Redis Cluster specification, "Key distribution model" and "Hash tags".
"""

from __future__ import annotations

from typing import Final

SLOTS: Final = 16_384
_POLYNOMIAL: Final = 0x1021


def _table() -> tuple[int, ...]:
    values = []
    for byte in range(256):
        crc = byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ _POLYNOMIAL if crc & 0x8000 else crc << 1
        values.append(crc & 0xFFFF)
    return tuple(values)


_CRC: Final = _table()


def slot_of(key: str | bytes) -> int:
    """The slot this key lies in."""
    data = tag_of(key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key)
    crc = 0
    for byte in data:
        crc = ((crc << 8) & 0xFFFF) ^ _CRC[(crc >> 8) ^ byte]
    return crc % SLOTS


def tag_of(key: bytes) -> bytes:
    """What is hashed of a key: what its first `{…}` holds, if that holds anything, else all of it."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            return key[start + 1 : end]
    return key


def has_tag(key: str) -> bool:
    """Whether a hash tag, and not the whole key, decides where it lies."""
    data = key.encode("utf-8", "surrogatepass")
    return tag_of(data) != data
