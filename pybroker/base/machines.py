"""Addresses that one machine may have for itself count as one: an IPv6 address with its /64."""


def machine_of(address: str) -> str:
    """What its addresses have in common."""
    if ":" not in address:
        return address
    from ipaddress import IPv6Address

    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped  # how a socket for both versions names an IPv4 peer
    return parsed.exploded[:19] if mapped is None else str(mapped)
