"""API keys: who may use the gateway, read from a TOML file that may change while it runs.

[keys.alice]
key = "sk-…"                 # or sha256 = "…", the key's SHA-256 in hexadecimal
cache_salt = "research"      # default: the key's name
max_concurrent_requests = 8  # default: no limit
requests_per_minute = 120    # default: no limit
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from structlog.typing import FilteringBoundLogger

from services.gateway.errors import ApiError

MAX_KEYS = 1000  # each is a metric's label


class KeyEntry(msgspec.Struct, forbid_unknown_fields=True):
    """What the file says of one key."""

    key: Annotated[str, Meta(min_length=16, max_length=512, pattern=r"^[!-~]+$")] | None = None
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")] | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    max_concurrent_requests: Annotated[int, Meta(ge=1)] | None = None
    requests_per_minute: Annotated[int, Meta(ge=1)] | None = None


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    keys: dict[Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")], Any]  # a KeyEntry each


def read_keys(path: Path) -> dict[str, KeyEntry]:
    """The entries by name. Raises ValueError that says what is wrong, without any key in it."""
    try:
        listed = msgspec.toml.decode(path.read_bytes(), type=_KeyFile).keys
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    if len(listed) > MAX_KEYS:
        raise ValueError(f"{path}: {len(listed)} keys, at most {MAX_KEYS} are allowed")
    entries = {}
    for name, fields in listed.items():
        try:
            entries[name] = entry = msgspec.convert(fields, KeyEntry)
        except msgspec.ValidationError as error:
            raise ValueError(f"{path}: keys.{name}: {error}") from None
        if (entry.key is None) == (entry.sha256 is None):
            raise ValueError(f"{path}: keys.{name} needs one of key and sha256")
    digests = {name: _digest_of(entry) for name, entry in entries.items()}
    if len(set(digests.values())) < len(digests):
        raise ValueError(f"{path}: two names have the same key")
    return entries


def _digest_of(entry: KeyEntry) -> bytes:
    return bytes.fromhex(entry.sha256) if entry.key is None and entry.sha256 else _digest(entry.key or "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class ApiKey:
    """One key in use: its limits and how far they are used. Used from one event loop."""

    def __init__(self, name: str, entry: KeyEntry) -> None:
        self.name = name
        self._running = 0
        self._starts = float(entry.requests_per_minute or 0)  # requests that may begin now
        self._counted_at = time.monotonic()
        self.update(entry)

    def update(self, entry: KeyEntry) -> None:
        """Takes what the file says now; what is used stays used."""
        self.digest = _digest_of(entry)
        self._salt = self.name if entry.cache_salt is None else entry.cache_salt
        self._most_running = entry.max_concurrent_requests
        self._per_minute = entry.requests_per_minute

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around a request. Raises ApiError 429 over a limit."""
        if self._most_running is not None and self._running >= self._most_running:
            raise _too_many(f"the key has its {self._most_running} requests running", 1.0)
        if self._per_minute is not None:
            self._count(self._per_minute)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _count(self, per_minute: int) -> None:
        """Requests may begin in a burst of `per_minute`, and then one every 60/per_minute seconds."""
        now = time.monotonic()
        self._starts = min(float(per_minute), self._starts + (now - self._counted_at) * per_minute / 60)
        self._counted_at = now
        if self._starts < 1:
            raise _too_many(
                f"the key has used its {per_minute} requests per minute", (1 - self._starts) * 60 / per_minute
            )
        self._starts -= 1

    def cache_salt(self, given: str | None) -> str:
        """The salt of a request with `given` as its own: no request of another salt's key can have the same."""
        return hashlib.sha256(msgspec.json.encode([self._salt, given or ""])).hexdigest()


class ApiKeys:
    """The keys of one file, read again as soon as it changes."""

    def __init__(self, path: Path, log: FilteringBoundLogger) -> None:
        self._path = path
        self._log = log
        self._version: object = None  # of the file, as it was read last
        self._keys: dict[str, ApiKey] = {}

    def check(self, token: str | None) -> ApiKey:
        """The key that the client sent. Raises ApiError 401."""
        self._refresh()
        if token is None:
            raise _unauthorized("an API key is needed: Authorization: Bearer …, or x-api-key: …")
        digest, found = _digest(token), None
        for key in self._keys.values():  # to the end, so that the time tells nothing
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise _unauthorized("the API key is not known")
        return found

    def _refresh(self) -> None:
        """A file that is unusable changes nothing; the log says so once."""
        version = self._file_version()
        if version == self._version:
            return
        self._version = version
        try:
            entries = read_keys(self._path)
        except ValueError as error:
            self._log.error("API keys not read", cause=str(error))
            return
        kept = self._keys
        self._keys = {name: kept.get(name) or ApiKey(name, entry) for name, entry in entries.items()}
        for name, entry in entries.items():
            self._keys[name].update(entry)
        self._log.info("API keys read", keys=len(entries))

    def _file_version(self) -> object:
        try:
            stat = os.stat(self._path)
        except OSError:
            return "missing"
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key")


def _too_many(message: str, retry_after: float) -> ApiError:
    return ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after=retry_after)
