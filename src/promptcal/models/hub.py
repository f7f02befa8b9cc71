"""Access to the hub of pretrained weights, with a quick check whether it can be reached."""

import contextlib
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

_ATTEMPTS, _PAUSE, _TIMEOUT = 2, 2.0, 5.0  # the last two in seconds


@contextlib.contextmanager
def offline_if_unreachable() -> Iterator[str | None]:
    """Context in which the hub's client uses only its cache if the hub cannot be reached; yields the reason, or None.

    Without it the client retries for most of a minute before it fails.
    """
    was_offline = constants.HF_HUB_OFFLINE
    reason = None if was_offline else _connection_error()
    constants.HF_HUB_OFFLINE = was_offline or reason is not None
    try:
        yield reason
    finally:
        constants.HF_HUB_OFFLINE = was_offline


def _connection_error() -> str | None:
    """The reason why no connection is possible; None if one is, or if a proxy is configured."""
    if {"http", "https", "all"} & set(getproxies()):
        return None
    hub = urlsplit(constants.ENDPOINT)
    address = (hub.hostname or "", hub.port or (80 if hub.scheme == "http" else 443))
    reason = ""
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE if attempt else 0)
        try:
            socket.create_connection(address, timeout=_TIMEOUT).close()
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return None
    return f"{address[0]} cannot be reached: {reason}"
