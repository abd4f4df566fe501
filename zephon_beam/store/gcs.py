"""Buckets of Google Cloud Storage: creation by generation precondition, retries by the library.

Credentials are found by the library: application default credentials, a service account, the
metadata server; with `STORAGE_EMULATOR_HOST` set, none are used. google-cloud-storage is imported
when the first address is opened.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from zephon_beam.errors import StoreError
from zephon_beam.store import bucket as limits
from zephon_beam.store.bucket import (
    ObjectInfo,
    describe_failure,
    describe_refusal,
    missing_bucket,
    missing_library,
)

_CONNECT_SECS = 10.0
_CONNECTIONS = 64
"""Kept open to the service, for as many threads as use a client at once."""
_INFO_FIELDS = "items(name,size,generation,crc32c),nextPageToken"
_clients: dict[tuple[int, str | None], Any] = {}
_locks: dict[int, Lock] = {}
"""One for each process: a fork must not wait for a thread of its parent."""


class GcsBucket:
    """A bucket of Google Cloud Storage; see `zephon_beam.store.bucket.Bucket`.

    May be used by several threads, and in a process that was forked after it was made: each
    process has a client of its own.
    """

    def __init__(self, name: str) -> None:
        """Name a bucket; nothing is asked of the service yet.

        Raises:
            RecipeError: google-cloud-storage is not installed.
        """
        self.uri = f"gs://{name}"
        self._name = name
        self._is_known = False
        try:
            import google.cloud.storage  # noqa: F401
        except ImportError as error:
            raise missing_library(self.uri, "google-cloud-storage", "gcs") from error

    def create(self, key: str, data: bytes) -> bool:
        """Upload under the precondition that the object has no generation yet."""
        from google.api_core.exceptions import PreconditionFailed

        with self._told(key, "create"):
            try:
                self._upload(key, data, if_generation_match=0)
            except PreconditionFailed:
                return False
        return True

    def write(self, key: str, data: bytes) -> None:
        """Upload, whatever is there."""
        with self._told(key, "write"):
            self._upload(key, data)

    def read(self, key: str, version: str | None = None) -> bytes:
        """Download an object and check it against the checksum that the service sends."""
        with self._told(key, "read"):
            return self._download(key, version, checksum="crc32c")

    def read_range(self, key: str, start: int, length: int, version: str | None = None) -> bytes:
        """Download a stretch of an object."""
        from google.api_core.exceptions import RequestRangeNotSatisfiable

        with self._told(key, "read"):
            try:
                last = start + length - 1
                return self._download(key, version, start=start, end=last, checksum=None)
            except RequestRangeNotSatisfiable:
                return b""

    def stat(self, key: str) -> ObjectInfo | None:
        """Ask for an object's metadata."""
        from google.api_core.exceptions import NotFound

        with self._told(key, "read"):
            blob = self._blob(key)
            try:
                blob.reload(**_options())
            except NotFound:
                self._require_bucket()
                return None
        return _info(blob)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Ask for a page of up to 1000 objects at a time."""
        with self._told(prefix, "list"):
            for blob in _client().list_blobs(
                self._name, prefix=prefix or None, fields=_INFO_FIELDS, **_options()
            ):
                yield _info(blob)
        self._is_known = True

    def list_after(self, key: str, prefix: str) -> Sequence[ObjectInfo]:
        """Ask for one page, which begins with the object itself if it is there."""
        with self._told(prefix, "list"):
            page = next(
                _client()
                .list_blobs(
                    self._name,
                    prefix=prefix,
                    start_offset=key,
                    page_size=limits.AHEAD,
                    fields=_INFO_FIELDS,
                    **_options(),
                )
                .pages
            )
            return [_info(blob) for blob in page if blob.name > key]

    def delete(self, key: str) -> None:
        """Delete an object if it is there."""
        from google.api_core.exceptions import NotFound

        with self._told(key, "delete"):
            try:
                self._blob(key).delete(**_options())
            except NotFound:
                self._require_bucket()

    def _blob(self, key: str, version: str | None = None) -> Any:
        generation = int(version) if version is not None else None
        return _client().bucket(self._name).blob(key, generation=generation)

    def _upload(self, key: str, data: bytes, **precondition: Any) -> None:
        self._blob(key).upload_from_string(
            data,
            content_type="application/octet-stream",
            checksum="crc32c",
            **precondition,
            **_options(),
        )
        self._is_known = True

    def _download(self, key: str, version: str | None, **stretch: Any) -> bytes:
        # Raw: what is stored as gzip is not expanded on the way, which would move every byte.
        content: bytes = self._blob(key, version).download_as_bytes(
            raw_download=True, **stretch, **_options()
        )
        self._is_known = True
        return content

    def _require_bucket(self) -> None:
        """Tell a missing object from a missing bucket, with one request until it is known."""
        from google.api_core.exceptions import Forbidden, NotFound

        if self._is_known:
            return
        try:
            next(iter(_client().list_blobs(self._name, max_results=1, **_options())), None)
        except NotFound:
            raise missing_bucket(self.uri) from None
        except Forbidden:
            # Who may read objects need not be allowed to list them.
            pass
        self._is_known = True

    @contextmanager
    def _told(self, key: str, doing: str) -> Iterator[None]:
        """Turn errors of the library into ours, naming the object; they hold no secret."""
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
        from requests import RequestException
        from urllib3.exceptions import HTTPError

        place = f"{self.uri}/{key}"
        try:
            yield
        except exceptions.NotFound as error:
            self._require_bucket()
            if doing != "read":
                raise missing_bucket(self.uri) from error
            raise FileNotFoundError(2, "No such object", place) from error
        except (exceptions.Forbidden, exceptions.Unauthorized) as error:
            raise StoreError(describe_refusal(place, doing, _reason(error))) from error
        except GoogleAuthError as error:
            raise StoreError(
                f"store must be able to {doing} {place}: no usable credentials were found "
                f"({type(error).__name__}); nothing was read or stored; run `gcloud auth "
                "application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to the key "
                "file of an account"
            ) from error
        except (
            exceptions.GoogleAPIError,
            DataCorruption,
            InvalidResponse,
            RequestException,
            HTTPError,
            ConnectionError,
        ) as error:
            raise StoreError(describe_failure(place, doing, _reason(error))) from error


def _options() -> dict[str, Any]:
    """Return how long a request may take and how it is tried again."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    retry = DEFAULT_RETRY.with_timeout(limits.DEADLINE_SECS).with_delay(
        initial=limits.FIRST_PAUSE_SECS, maximum=limits.LONGEST_PAUSE_SECS, multiplier=2
    )
    return {"timeout": (_CONNECT_SECS, limits.REQUEST_SECS), "retry": retry}


def _client() -> Any:
    """Return the client of this process; connections must not be shared with its parent."""
    place = (os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST"))
    with _locks.setdefault(place[0], Lock()):
        if place not in _clients:
            while _clients:
                _clients.popitem()[1]._http.close()
            _clients[place] = _make_client()
        return _clients[place]


def _make_client() -> Any:
    from google.cloud.storage import Client
    from requests.adapters import HTTPAdapter

    # No project is needed to use a bucket; asking for one could mean to wait for a server.
    client = Client(project=None)
    for scheme in ("https://", "http://"):
        client._http.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    # Newer versions ask for the bucket in threads of their own, for traces that nobody takes here,
    # and do so again after every object that is not there.
    vars(client).pop("_bucket_metadata_cache", None)
    return client


def _info(blob: Any) -> ObjectInfo:
    return ObjectInfo(
        key=blob.name,
        size=int(blob.size),
        version=str(blob.generation),
        checksum=str(blob.crc32c),
    )


def _reason(error: BaseException) -> str:
    """Describe an error in a line: the service's own words, or what broke."""
    inner = getattr(error, "cause", None) or error
    code = getattr(inner, "code", None)
    name = type(inner).__name__
    return f"{name} ({int(code)})" if code is not None else name
