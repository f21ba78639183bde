"""No test opens a connection to another machine: one that is tried fails, and fails the test too where a library swallows the error."""

import ipaddress
import socket
from typing import Any

TRIED: list[str] = []
"""What was tried since it was last looked at."""

_LOCAL = frozenset({"localhost", "localhost.localdomain", socket.gethostname(), ""})
_CONNECT, _CONNECT_EX, _LOOK_UP = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo


class OfflineError(OSError):
    """Tests run offline."""


def is_local(host: object) -> bool:
    """Whether a host is this machine."""
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if name is None or name in _LOCAL:
        return True
    address = _address(name)
    return address is not None and (address.is_loopback or address.is_unspecified)


def _refuse(host: object) -> None:
    TRIED.append(str(host))
    raise OfflineError(f"tests run offline, and something tried to reach {host}")


def _checked(self: socket.socket, address: Any) -> None:  # noqa: ANN401 - as of `socket.connect`
    if self.family in {socket.AF_INET, socket.AF_INET6} and not is_local(address[0]):
        _refuse(address[0])


def _connect(self: socket.socket, address: Any) -> None:  # noqa: ANN401 - likewise
    _checked(self, address)
    _CONNECT(self, address)


def _connect_ex(self: socket.socket, address: Any) -> int:  # noqa: ANN401 - likewise
    _checked(self, address)
    return _CONNECT_EX(self, address)


def _look_up(host: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as of `socket.getaddrinfo`
    if not is_local(host) and _address(host) is None:
        _refuse(host)
    return _LOOK_UP(host, *args, **kwargs)


def _address(host: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A host that is an address, not a name."""
    try:
        return ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return None


def block() -> None:
    """Refuse connections of this process to other machines from now on."""
    socket.socket.connect = _connect  # type: ignore[assignment,method-assign]  # for the whole run
    socket.socket.connect_ex = _connect_ex  # type: ignore[assignment,method-assign]  # likewise
    socket.getaddrinfo = _look_up
