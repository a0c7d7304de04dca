"""Which addresses outbound requests may go to: decided on the address a name resolved to, at the moment of connecting.

A name can be pointed anywhere between two look-ups, so a rule about names alone protects nothing. Callers resolve,
ask here, and connect to the very address that was allowed.
"""

import ipaddress
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

# Where clouds keep credentials for whoever can reach them; never a model server.
METADATA = tuple(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "169.254.170.2", "169.254.169.253", "100.100.100.200", "fd00:ec2::254")
)


class Reach:
    """Hosts that may be reached: names and networks as an administrator listed them; nothing listed allows any.

    ``closed`` are (address, port) pairs of this installation itself, which no target may be; port 0 stands for all.
    Link-local, multicast and unspecified addresses and metadata services are refused whatever is listed.
    """

    def __init__(self, allowed: Iterable[str] = (), closed: Iterable[tuple[str, int]] = ()) -> None:
        self._names: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for item in allowed:
            try:
                self._networks.append(ipaddress.ip_network(item, strict=False))
            except ValueError:
                self._names.add(item.lower().rstrip("."))
        self._closed = {(ipaddress.ip_address(address), port) for address, port in closed}

    def refusal(self, host: str, address: str, port: int) -> str:
        """Why ``host``, which resolved to ``address``, may not be connected to at ``port``; empty when it may."""
        ip = ipaddress.ip_address(address.partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        if ip in METADATA or ip.is_link_local:
            return f"{host} is at {ip}, where clouds keep credentials, not model servers"
        if ip.is_multicast or ip.is_unspecified or ip.is_reserved:
            return f"{host} is at {ip}, which is no server's address"
        if (ip, port) in self._closed or (ip, 0) in self._closed:
            return f"{host} is at {ip} port {port}, which is this installation itself"
        if not self._names and not self._networks:
            return ""
        if host.lower().rstrip(".") in self._names or any(ip in network for network in self._networks):
            return ""
        return f"{host} at {ip} is not among the hosts an administrator allowed"


def check_http_url(value: str) -> str:
    """``value`` without a slash at its end; `ValueError` unless it is an http or https address with a host."""
    parts = urlsplit(value)
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{value!r} has a port that is none; write 1 to 65535") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f'{value!r} is no address of a server; write one such as "http://127.0.0.1:8000"')
    if parts.username or parts.password:
        raise ValueError("an address carries no user name or password; register an endpoint with its secret instead")
    if parts.fragment or parts.query:
        raise ValueError(f"{value!r} has a query or fragment; write the server's address alone")
    return value.rstrip("/")


HttpUrl = Annotated[str, AfterValidator(check_http_url)]
