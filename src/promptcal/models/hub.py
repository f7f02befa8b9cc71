"""The hub that pretrained weights are fetched from, and what is done where it cannot be reached."""

import contextlib
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

_TRIES, _PAUSE, _TIMEOUT = 2, 2.0, 5.0  # seconds


@contextlib.contextmanager
def offline_if_unreachable() -> Iterator[str | None]:
    """Within it the hub's client goes by its cache alone if the hub is out of reach; gives the reason, if so.

    The client itself would try and wait for most of a minute before it says so.
    """
    reason = None if constants.HF_HUB_OFFLINE else _out_of_reach()
    if reason is None:
        yield None
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield reason
    finally:
        constants.HF_HUB_OFFLINE = False


def _out_of_reach() -> str | None:
    """Why no connection can be made; None where one can, or where a proxy makes it."""
    if {"http", "https", "all"} & set(getproxies()):
        return None
    hub = urlsplit(constants.ENDPOINT)
    place = (hub.hostname or "", hub.port or (80 if hub.scheme == "http" else 443))
    fault = ""
    for attempt in range(_TRIES):
        time.sleep(_PAUSE if attempt else 0)
        try:
            socket.create_connection(place, timeout=_TIMEOUT).close()
        except OSError as error:
            fault = error.strerror or str(error)
        else:
            return None
    return f"{place[0]} cannot be reached: {fault}"
