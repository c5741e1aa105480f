"""Cuts the network off: imported at its start by every Python process that finds this folder in PYTHONPATH.

Names other than this machine's are not looked up, and nothing is sent to another machine; each attempt is
refused and noted in the file that WORKBENCH_NETWORK_LOG names, so that code which swallows the refusal is
found out. Loopback stays open, since a notebook's kernel is reached through it. An audit hook sees what every
library does through Python's sockets and cannot be undone.
"""

import os
import sys

LOOK_UPS = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}
SENDS = {"socket.connect", "socket.sendto", "socket.sendmsg"}
THIS_MACHINE = {"", "localhost", "::1", "0.0.0.0", "::", os.uname().nodename}


def is_elsewhere(host: object) -> bool:
    """Return whether a host is a name or address of another machine; a socket may have none, or a number."""
    name = host.decode() if isinstance(host, bytes) else host
    return isinstance(name, str) and name not in THIS_MACHINE and not name.startswith("127.")


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Audit hook: note and refuse look-ups of other machines, and what is sent to them.

    Raises:
        ConnectionRefusedError: `arguments` name another machine.
    """
    host: object = None
    if event in LOOK_UPS:
        host = arguments[0]
    elif event in SENDS and isinstance(address := arguments[1], tuple):  # a Unix socket's is a path
        host = address[0]
    if is_elsewhere(host):
        with open(os.environ["WORKBENCH_NETWORK_LOG"], "a") as log:
            log.write(f"{event} {host!r} by {sys.argv[:1]}\n")
        raise ConnectionRefusedError(
            f"the network is cut off: {event} {host!r}. Ask no other machine in this process."
        )


sys.addaudithook(refuse)
