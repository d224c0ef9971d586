"""A hub on loopback: it has configurations, at the addresses of huggingface.co, and refuses to give weights."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GATED = "somebody/gated"


@dataclass
class Hub:
    """`asked`: the path of each request, in order."""

    models: Mapping[str, Mapping[str, Any]]  # the configuration of each model
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def environ(self, cache: Any) -> dict[str, str]:
        """The variables with which a command uses this hub, with a cache of its own."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}


@contextmanager
def serving(models: Mapping[str, Mapping[str, Any]]) -> Iterator[Hub]:
    hub = Hub(models)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            hub.asked.append(self.path)
            name, _, rest = self.path[1:].partition("/resolve/")
            revision, _, file = rest.partition("/")
            if name == GATED:
                return self._refuse(403, "GatedRepo")
            if name not in hub.models:
                return self._refuse(404, "RepoNotFound")
            if revision not in ("main", COMMIT):
                return self._refuse(404, "RevisionNotFound")
            if file != "config.json":
                return self._refuse(403, "Forbidden")
            content = json.dumps(hub.models[name]).encode()
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD

        def _refuse(self, code: int, why: str) -> None:
            self.send_response(code)
            self.send_header("X-Error-Code", why)
            self.send_header("X-Error-Message", why)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
