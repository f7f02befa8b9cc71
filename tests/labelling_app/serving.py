"""A real server in a thread, and how to ask it."""

import http.client
import json
import threading
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from promptcal.app.hub import Hub
from promptcal.app.server import bound_server


class Client:
    """Sends requests to a server; with its token and origin, unless a test says otherwise."""

    def __init__(self, link):
        parts = urlsplit(link)
        self.link, self.host, self.port, self.page = link, parts.hostname, parts.port, parts.path
        self.token = parse_qs(parts.query)["token"][0]
        self.address = f"{self.host}:{self.port}"

    def headers(self, **changes):
        found = {
            "Host": self.address, "Origin": f"http://{self.address}", "Cookie": f"promptcal-{self.port}={self.token}",
            **{name.replace("_", "-"): value for name, value in changes.items()},
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def ask(self, method, path, body=None, **headers):
        """Status, headers and content of the answer; the path is sent as it is."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers(**headers).items():
            connection.putheader(name, value)
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.headers, content

    def get(self, path):
        status, _, content = self.ask("GET", f"{self.page}{path}")
        assert status == 200, content
        return json.loads(content)

    def post(self, path, body=None, status=200):
        found, _, content = self.ask("POST", f"{self.page}{path}", body)
        assert found == status, content
        return json.loads(content)

    def act(self, kind, **values):
        return self.post("api/action", {"kind": kind, **values})


@contextmanager
def served(shown):
    """``shown`` is a run, a folder of runs, or a hub."""
    hub = shown if isinstance(shown, Hub) else Hub(shown)
    with bound_server(hub, port=0) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield Client(server.link)
        finally:
            server.stop()
            thread.join(20)
            hub.close()
