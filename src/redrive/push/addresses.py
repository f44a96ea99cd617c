"""Which addresses messages may be pushed to: by default only those of the public internet.

A URL is often typed by a customer, and whoever controls a name controls what it resolves to. So the rule looks at the
address a connection is really made to (`redrive.push.client` asks it for every new connection), never at the name, and
an IPv6 address counts as the IPv4 address that is hidden in it.
"""

from __future__ import annotations

import ipaddress
from typing import Final, TypeAlias

Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"

PLATFORM_ADDRESSES: Final = frozenset({ipaddress.ip_address("168.63.129.16")})
"""Public by their number, yet the hosting platform's own service inside a machine (Azure's WireServer)."""

_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_SITE_LOCAL: Final = ipaddress.ip_network("fec0::/10")
_PROTOCOL: Final = ipaddress.ip_network("192.0.0.0/24")
"""IETF protocol assignments. Versions of Python differ about what in it is global; a hosting platform serves its
metadata from it.
"""
_COMPATIBLE: Final = ipaddress.ip_network("::/96")


def refusal_of(text: str) -> str | None:
    """Why messages are not pushed to this IP address (without brackets, a zone allowed); None: they may be.

    >>> refusal_of("169.254.169.254"), refusal_of("::ffff:10.0.0.1"), refusal_of("93.184.215.14")
    ('a link-local address', 'a private address', None)
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return "no IP address"
    return next((why for each in _meant(address) if (why := _refusal(each))), None)


def _meant(address: Address) -> tuple[Address, ...]:
    """The address and the IPv4 addresses that packets to it may end at."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    hidden: list[Address | None] = [address.ipv4_mapped, address.sixtofour]
    hidden += address.teredo or ()
    if address in _NAT64 or address in _COMPATIBLE:
        hidden.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    found = [each for each in hidden if each is not None]
    # A mapped address is its IPv4 address in every respect; asking for its own range would only hide which one.
    return tuple(found) if address.ipv4_mapped else (address, *found)


def _refusal(address: Address) -> str | None:
    if address.is_unspecified:
        return "the unspecified address"
    if address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if address in PLATFORM_ADDRESSES:
        return "a service of the hosting platform"
    if address.is_private or (isinstance(address, ipaddress.IPv6Address) and address in _SITE_LOCAL):
        return "a private address"
    return None if address.is_global and address not in _PROTOCOL else "a reserved address"
