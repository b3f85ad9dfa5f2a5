"""Groups the addresses that one machine may own: all IPv6 addresses of a /64 count as one."""


def machine_of(address: str) -> str:
    """The part that the addresses of a machine share."""
    if ":" not in address:
        return address
    from ipaddress import IPv6Address

    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped  # how a dual-stack socket reports an IPv4 peer
    return parsed.exploded[:19] if mapped is None else str(mapped)
