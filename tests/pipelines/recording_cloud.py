"""A loopback server that stands for Cloud Storage and Dataflow and records what it is given.

Whoever has set `execute` also gets every job run, the way a service would: from what was staged;
and with an error of a worker the job fails, and the error is among its messages.
"""

import base64
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import google_crc32c


class RecordingCloud(ThreadingHTTPServer):
    """Takes uploads and jobs; a job has ended when its submission is answered."""

    daemon_threads = True

    def __init__(self) -> None:
        """Listen on a free port."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.jobs: list[dict[str, Any]] = []
        self.execute: Callable[[dict[str, Any]], None] = lambda _job: None
        self.objects: dict[str, bytes] = {}
        self.failure: str | None = None
        """What the last job has failed with."""
        self.address = f"http://localhost:{self.server_address[1]}"

    def staged(self, name: str) -> bytes:
        """Return the one object whose name ends so."""
        (found,) = [data for full, data in self.objects.items() if full.endswith(f"/{name}")]
        return found


class _Handler(BaseHTTPRequestHandler):
    server: RecordingCloud
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Tell nothing."""

    def do_GET(self) -> None:
        """Say that buckets exist and objects do not, and that jobs are done."""
        path = urlsplit(self.path).path
        if "/jobs/" in path:
            failure = self.server.failure
            messages = [_message(failure)] if failure else []
            ended = _job("FAILED" if failure else "DONE")
            self._answer({"jobMessages": messages} if path.endswith("messages") else ended)
        elif "/o/" in path:
            self._answer({"error": {"code": 404}}, 404)
        else:
            self._answer({"name": "bucket", "location": "US"})

    def do_POST(self) -> None:
        """Take a job, or begin an upload."""
        body, address = self._body(), urlsplit(self.path)
        if address.path.endswith("/jobs"):
            self.server.jobs.append(json.loads(body))
            try:
                self.server.execute(self.server.jobs[-1])
            except Exception:  # noqa: BLE001 - as in a worker, whose traceback the service shows
                self.server.failure = traceback.format_exc()
            # What has failed would not be asked about again.
            self._answer(_job("PENDING" if self.server.failure else "DONE"))
        else:
            name = json.loads(body)["name"]
            place = f"{self.server.address}{address.path}?upload_id=1&name={name}"
            self._answer({}, location=place)

    def do_PUT(self) -> None:
        """End an upload."""
        body = self._body()
        (name,) = parse_qs(urlsplit(self.path).query)["name"]
        self.server.objects[name] = body
        digest = base64.b64encode(google_crc32c.Checksum(body).digest()).decode()
        self._answer({"name": name, "bucket": "bucket", "generation": "1", "crc32c": digest})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, content: Any, status: int = 200, location: str | None = None) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if location is not None:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(data)


def _job(state: str) -> dict[str, str]:
    return {
        "id": "job-1",
        "projectId": "p",
        "location": "r",
        "currentState": f"JOB_STATE_{state}",
    }


def _message(text: str) -> dict[str, str]:
    return {
        "id": "message-1",
        "time": "2026-01-01T00:00:00Z",
        "messageText": text,
        "messageImportance": "JOB_MESSAGE_ERROR",
    }


@contextmanager
def recording_cloud() -> Iterator[RecordingCloud]:
    """Serve while the block runs."""
    with RecordingCloud() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
