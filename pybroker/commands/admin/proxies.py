"""The HTTP proxy that the environment names (http_proxy, https_proxy, no_proxy), if it applies.

No proxy reaches a broker on the loopback address of this machine.
"""

import ipaddress
import urllib.request
from urllib.parse import urlsplit


def proxy_for(url: str) -> str:
    """The host and port of the proxy on the way to `url`; empty if there is none."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or urllib.request.proxy_bypass(parts.netloc):
        return ""
    named = urllib.request.getproxies().get(parts.scheme, "")
    named = named.partition("://")[2] or named
    return named.rpartition("@")[2].partition("/")[0]  # without a user and a password


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def through(proxy: str, url: str) -> str:
    """The end of an error's sentence."""
    if not proxy:
        return ""
    parts = urlsplit(url)
    return (
        f" (through the proxy {proxy} of the variable {parts.scheme}_proxy; to connect directly, "
        f"set no_proxy={parts.hostname})"
    )
