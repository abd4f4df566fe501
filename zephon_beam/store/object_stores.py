"""Buckets of S3 and of Azure Blob Storage, by obstore (the extra `object-stores`).

Credentials and endpoints are found by the library, from the environment (`AWS_…`, `AZURE_…`) and
from the machine's own account. obstore is imported when the first address is opened.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from zephon_beam.errors import RecipeError, StoreError
from zephon_beam.store import bucket as limits
from zephon_beam.store.bucket import (
    ObjectInfo,
    describe_failure,
    describe_refusal,
    missing_bucket,
    missing_library,
)

_STATUS = re.compile(r"status code: (\d{3}[ A-Za-z]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_REFUSED = ("401", "403")
_BROKEN = "error sending request"
_METADATA = "://169.254."
"""Where a machine of a cloud finds its account; asked when the environment names none."""
_NO_SUCH_RANGE = re.compile(r"status code: 416|StartTooLarge")
_T = TypeVar("_T")


class ObstoreBucket:
    """A bucket of S3 or a container of Azure; see `zephon_beam.store.bucket.Bucket`.

    May be used by several threads, not in a process that was forked after a first use.
    """

    def __init__(self, scheme: str, name: str) -> None:
        """Name a bucket; nothing is asked of the service yet.

        Raises:
            RecipeError: obstore is not installed, or its settings in the environment are wrong.
        """
        self.uri = f"{scheme}://{name}"
        try:
            import obstore
            from obstore.store import AzureStore, S3Store
        except ImportError as error:
            raise missing_library(self.uri, "obstore", "object-stores") from error
        self._obstore = obstore
        kind: Any = S3Store if scheme == "s3" else AzureStore
        try:
            self._store = kind(
                name,
                # Among `client_options` it would hide what the environment says of the client.
                config={"timeout": f"{round(2000 * limits.REQUEST_SECS)}ms"},
                retry_config={
                    "max_retries": 1000,
                    "retry_timeout": timedelta(seconds=limits.DEADLINE_SECS),
                    "backoff": {
                        "init_backoff": timedelta(seconds=limits.FIRST_PAUSE_SECS),
                        "max_backoff": timedelta(seconds=limits.LONGEST_PAUSE_SECS),
                        "base": 2,
                    },
                },
            )
        except (obstore.exceptions.BaseError, ValueError) as error:
            variables = "AWS" if scheme == "s3" else "AZURE_STORAGE"
            raise RecipeError(
                f"{self.uri} must be usable with the settings in the environment, got "
                f"{type(error).__name__}; nothing can be stored or read there; correct the "
                f"variables {variables}_…"
            ) from None

    def create(self, key: str, data: bytes) -> bool:
        """Put an object on condition that there is none."""

        def put() -> bool:
            try:
                self._obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                return False
            return True

        return self._ask(key, "create", put)

    def write(self, key: str, data: bytes) -> None:
        """Put an object, whatever is there."""
        self._ask(
            key, "write", lambda: self._obstore.put(self._store, key, data, use_multipart=False)
        )

    def read(self, key: str, version: str | None = None) -> bytes:
        """Get an object."""
        return self._ask(key, "read", lambda: self._get(key, version))

    def read_range(self, key: str, start: int, length: int, version: str | None = None) -> bytes:
        """Get a stretch of an object."""

        def get() -> bytes:
            try:
                return self._get(key, version, range=(start, start + length))
            except self._obstore.exceptions.BaseError as error:
                if _NO_SUCH_RANGE.search(str(error)):
                    return b""
                raise

        return self._ask(key, "read", get)

    def stat(self, key: str) -> ObjectInfo | None:
        """Ask for an object's metadata."""
        try:
            return _info(self._ask(key, "read", lambda: self._obstore.head(self._store, key)))
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Ask for a page of up to 1000 objects at a time."""
        folder, _, start = prefix.rpartition("/")
        pages = self._obstore.list(self._store, folder or None, chunk_size=1000)
        while True:
            page = self._ask(prefix, "list", lambda: next(pages, None))
            if page is None:
                return
            for entry in page:
                if entry["path"].startswith(f"{folder}/{start}" if folder else start):
                    yield _info(entry)

    def list_after(self, key: str, prefix: str) -> Sequence[ObjectInfo]:
        """Ask for one page; of Azure nothing, which lists from the beginning only."""
        if self.uri.startswith("az://"):
            return []
        folder = prefix.rstrip("/") or None

        def ask() -> Any:
            # A page of the service holds up to 1000 names; no second one is asked for.
            pages = self._obstore.list(self._store, folder, offset=key, chunk_size=limits.AHEAD)
            return next(pages, [])

        return [_info(entry) for entry in self._ask(prefix, "list", ask)]

    def delete(self, key: str) -> None:
        """Delete an object if it is there."""
        try:
            self._ask(key, "delete", lambda: self._obstore.delete(self._store, key))
        except FileNotFoundError:
            return

    def _get(self, key: str, version: str | None, **options: Any) -> bytes:
        if version is not None:
            options["if_match"] = version
        given: Any = options or None
        content = self._obstore.get(self._store, key, options=given).bytes()
        return bytes(content)

    def _ask(self, key: str, doing: str, request: Callable[[], _T]) -> _T:
        """Make a request, and turn errors of the library into ours.

        The library repeats what failed, but not what a broken connection may have done already,
        to create or delete an object. To do either twice is harmless here.
        """
        _refuse_fork(self.uri)
        place = f"{self.uri}/{key}"
        began, pause = time.monotonic(), limits.FIRST_PAUSE_SECS
        while True:
            try:
                return request()
            except FileNotFoundError as error:
                if _code(error) in _NO_BUCKET or doing in ("create", "write"):
                    raise missing_bucket(self.uri) from None
                raise FileNotFoundError(2, "No such object", place) from None
            except self._obstore.exceptions.PreconditionError:
                raise FileNotFoundError(2, "No such version of the object", place) from None
            except (self._obstore.exceptions.BaseError, OSError) as error:
                # Its text may hold a signed address, so only what is known to be plain is told.
                status, code = _status(error), _code(error)
                reason = " ".join(filter(None, (status, code))) or type(error).__name__
                if code in _NO_BUCKET:
                    raise missing_bucket(self.uri) from None
                if status.startswith(_REFUSED) or isinstance(error, self._refusals):
                    raise StoreError(describe_refusal(place, doing, reason)) from None
                if _METADATA in str(error):
                    raise StoreError(_no_credentials(place, doing, self.uri)) from None
                is_late = time.monotonic() - began + pause > limits.DEADLINE_SECS
                if is_late or _BROKEN not in str(error):
                    raise StoreError(describe_failure(place, doing, reason)) from None
            time.sleep(pause)
            pause = min(2 * pause, limits.LONGEST_PAUSE_SECS)

    @property
    def _refusals(self) -> tuple[type[Exception], ...]:
        known = self._obstore.exceptions
        return known.PermissionDeniedError, known.UnauthenticatedError


def _no_credentials(place: str, doing: str, uri: str) -> str:
    variables = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION"
    if uri.startswith("az://"):
        variables = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
    return (
        f"store must be able to {doing} {place}: no credentials were found; nothing was read or "
        f"stored; set {variables}, or run on a machine that has an account"
    )


_used_by: list[int] = []


def _refuse_fork(uri: str) -> None:
    """Refuse to use obstore in a fork of a process that used it.

    Its threads are not there any more, so a request would wait for ever.
    """
    if not _used_by:
        _used_by.append(os.getpid())
    if _used_by[0] != os.getpid():
        scheme = uri.partition("://")[0]
        raise StoreError(
            f"{scheme}:// must not be used in a process that was forked from one that used it, got "
            f"{uri!r}; requests would never be answered; start worker processes by spawn or "
            "forkserver, or open the stream in them only"
        )


def _info(entry: Any) -> ObjectInfo:
    version = str(entry["e_tag"])
    return ObjectInfo(key=entry["path"], size=int(entry["size"]), version=version, checksum=version)


def _status(error: BaseException) -> str:
    """Return e.g. `503 Service Unavailable`, empty if there was no answer."""
    found = _STATUS.search(str(error))
    return found.group(1).strip() if found else ""


def _code(error: BaseException) -> str:
    found = _CODE.search(str(error))
    return found.group(1) if found else ""
