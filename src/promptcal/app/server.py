"""Start the server of the app: one process, one address, one token."""

import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from promptcal.app.first_fit import FirstFitRequest
from promptcal.app.hub import Hub, find_runs
from promptcal.data.image_files import find_images
from promptcal.errors import ConfigError, LabelError, MissingPackageError, RunError
from promptcal.run.directory import RunDirectory

DEFAULT_HOST, FIRST_PORT = "127.0.0.1", 8765
_TRIED_PORTS = 50
_LOCAL = ("127.0.0.1", "localhost", "::1")


def bind(host: str, port: int | None) -> socket.socket:
    """A socket at this port, or at the first free one from 8765 on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = range(FIRST_PORT, FIRST_PORT + _TRIED_PORTS) if port is None else [port]
    reason = ""
    for candidate in ports:
        found = socket.socket(family)
        try:
            if sys.platform != "win32":  # there it would allow two servers at one port
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host, candidate))
            found.listen(128)
            return found
        except (OSError, OverflowError, TypeError, ValueError) as error:  # the last two: of a host that is no name
            found.close()
            reason = getattr(error, "strerror", None) or str(error)
    what = f"port {port}" if port is not None else f"any port from {FIRST_PORT} to {FIRST_PORT + _TRIED_PORTS - 1}"
    raise ConfigError(f"{what} of {host} cannot be used ({reason}); choose another with --port")


@dataclass(frozen=True)
class BoundServer:
    """A server that has its port: the link to open, and what starts and ends it. ``run`` returns when it has ended."""

    link: str
    run: Callable[[], None]
    stop: Callable[[], None]


@contextmanager
def bound_server(hub: Hub, host: str = DEFAULT_HOST, port: int | None = None) -> Iterator[BoundServer]:
    try:
        import uvicorn

        from promptcal.app.access import Access
        from promptcal.app.routes import Routes
    except ImportError as error:
        raise MissingPackageError(f"the app needs {error.name}; pip install 'promptcal[app]'") from error
    with bind(host, port) as listening:
        number = listening.getsockname()[1]
        token = secrets.token_urlsafe(24)
        app = Access(Routes(hub).app(), token=token, host=host, port=number)
        config = uvicorn.Config(
            app,
            log_level="critical",  # a page that listens to events is cut off at the end, which is no error
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        server = uvicorn.Server(config)
        name = f"[{host}]" if ":" in host else host
        keys = hub.keys()
        page = "/" if hub.has_home or len(keys) != 1 else f"/r/{quote(keys[0])}/"

        def stop() -> None:
            server.should_exit = True

        yield BoundServer(f"http://{name}:{number}{page}?token={token}", lambda: server.run(sockets=[listening]), stop)


def hub_of(path: Path, labels: Path | None, n_classes: Any, output: Path | None, settings: tuple[str, ...]) -> Hub:
    """What a path shows: a run, the runs in a folder, or the first fit of a folder of images."""
    if not path.is_dir():
        raise RunError(f"{path} is not a folder; give a run directory, a folder of runs or a folder of images")
    given = {"--labels": labels, "--n-classes": n_classes, "--output": output, "--set": settings}
    named = [option for option, value in given.items() if value]
    is_run = RunDirectory(path).exists()
    if is_run or (find_runs(path) and not named):
        if named:
            raise ConfigError(f"{path} is a run, and {', '.join(named)} is for a folder of images; leave it out")
        return Hub(path)
    if not find_images(path):
        raise RunError(
            f"{path} is not a run directory, has none in it and no images; give the --output of a fit, or the images"
        )
    if labels is not None and not labels.is_file():
        raise LabelError(f"the label file {labels} does not exist; check the path, or leave --labels out")
    place = path.absolute()
    output = place.with_name(f"{place.name}-run") if output is None else output
    if output.absolute().is_relative_to(place):
        raise RunError(f"the output {output} lies in the image folder; choose another --output")
    return Hub(
        path, FirstFitRequest(path.absolute(), labels and labels.absolute(), n_classes, output.absolute(), settings)
    )


def serve(
    path: Path,
    *,
    labels: Path | None = None,
    n_classes: int | str | None = None,
    output: Path | None = None,
    settings: tuple[str, ...] = (),
    host: str = DEFAULT_HOST,
    port: int | None = None,
    open_browser: bool = False,
    on_ready: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Serve a run, a folder of runs, or the first fit of a folder of images, until Ctrl-C."""
    hub = hub_of(path, labels, n_classes, output, settings)
    try:
        if not hub.has_home:
            hub.workspace(hub.keys()[0])  # says what is wrong before a browser opens
        with bound_server(hub, host, port) as server:
            if host not in _LOCAL:
                warn(
                    f"the app can be reached from other machines at {host}, without encryption: whoever reads the link "
                    "or listens to the network can see the images and change the labels"
                )
            on_ready(server.link)
            if open_browser:
                webbrowser.open(server.link)
            server.run()
    except KeyboardInterrupt:  # the usual end
        pass
    finally:
        hub.close()
