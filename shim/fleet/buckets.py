"""Creates, reads and writes the buckets of a fleet's registry.

Entries are read with direct gets, whose permissions can be limited, and whose answers need no
consumer on the server.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from shim.core.errors import ShimError
from shim.core.fleet.registry import LEASE_TTL_S
from shim.core.fleet.subjects import (
    MACHINES_BUCKET,
    SESSIONS_BUCKET,
    get_bucket_stream,
    parse_entry_subject,
)
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict, get_text

REQUEST_TIMEOUT_S = 5.0  # for the server to answer a request
NANOSECONDS = 1_000_000_000
# How long the server remembers that a lease has ended.
MARKER_TTL_S = 30 * 86_400
# The server refuses to read more entries, or marks of deleted ones, with one request.
MAX_READ_ENTRIES = 1024
MAX_BUCKET_BYTES = 256 * 1024 * 1024
NO_RESPONDERS_STATUS = "503"  # the server's answer if nobody receives a request
MISSING_STREAM = 10059  # the error code of a stream that does not exist
WRONG_SEQUENCE = 10071  # the error code of an entry that was changed by another process
NO_HEADERS: Mapping[str, str] = {}
# The mark of a deleted entry ends soon, because a read returns marks, too.
DELETED = {"KV-Operation": "DEL", "Nats-TTL": "60s"}

LEASES_CONFIG = {
    "max_age": round(LEASE_TTL_S * NANOSECONDS),
    "subject_delete_marker_ttl": MARKER_TTL_S * NANOSECONDS,
}


class BucketError(ShimError):
    """Raised if the server does not answer, or refuses a request. `code` is its error code, or 0."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(f"the server of the fleet: {text}")
        self.code = code


class StoredEntry(NamedTuple):
    """An entry of a bucket. An entry that was deleted, or does not exist, has no data.

    sequence   its number in the stream, or 0
    stored_ms  the time at which it was stored or deleted, in milliseconds since 1970, or 0 if the
               server does not name the time
    """

    subject: str
    data: bytes
    sequence: int = 0
    stored_ms: int = 0


async def create_buckets(client: Client) -> None:
    """Create the buckets if they are missing. Raise BucketError if that is not possible."""
    for bucket, config in ((MACHINES_BUCKET, LEASES_CONFIG), (SESSIONS_BUCKET, {})):
        await create_stream(
            client,
            get_bucket_stream(bucket),
            {
                "subjects": [f"$KV.{bucket}.>"],
                "max_msgs_per_subject": 1,
                "max_bytes": MAX_BUCKET_BYTES,
                "discard": "new",
                "allow_msg_ttl": True,
                **config,
            },
        )


async def create_stream(client: Client, name: str, config: Mapping[str, Any]) -> None:
    """Create a stream if it is missing. Raise BucketError if that is not possible.

    A request to create an existing stream would need its storage once more.
    """
    try:
        await request_json(client, f"$JS.API.STREAM.INFO.{name}", b"")
    except BucketError as error:
        if error.code != MISSING_STREAM:
            raise
    else:
        return
    defaults = {"name": name, "storage": "file", "allow_direct": True, "allow_rollup_hdrs": True}
    await request_json(client, f"$JS.API.STREAM.CREATE.{name}", dump_json({**defaults, **config}))


async def delete_entry(
    client: Client, subject: str, *, expected_sequence: int | None = None
) -> None:
    """Delete an entry. `expected_sequence` is the number of the entry, or None for any. Raise
    BucketError if the server does not confirm it.
    """
    await store_message(client, subject, b"", DELETED, expected_sequence=expected_sequence)


async def store_message(
    client: Client,
    subject: str,
    data: bytes,
    headers: Mapping[str, str] = NO_HEADERS,
    *,
    expected_sequence: int | None = None,
) -> int:
    """Store a message, such as an entry, and return its sequence number. `expected_sequence` is the
    number of the last message with the subject, or None for any. Raise BucketError if the server does
    not confirm it.
    """
    headers = dict(headers)
    if expected_sequence is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(expected_sequence)
    answer = await request_json(client, subject, data, headers or None)
    sequence = answer.get("seq")
    return sequence if isinstance(sequence, int) else 0


async def read_entry(client: Client, subject: str) -> StoredEntry:
    """Return the entry of a subject, or the last one if the subject has wildcards. Raise BucketError if
    the server does not answer.
    """
    message = await read_last_message(client, _get_entry_stream(subject), subject)
    if message is None:
        return StoredEntry(subject, b"")
    return _parse_stored_entry(message)


def _get_entry_stream(subject: str) -> str:
    return get_bucket_stream(parse_entry_subject(subject).bucket)


async def read_last_message(client: Client, stream: str, subject: str) -> Msg | None:
    """Return the last message of a subject in a stream, or None if there is none. Raise BucketError
    if the server does not answer.
    """
    try:
        message = await client.request(
            f"$JS.API.DIRECT.GET.{stream}.{subject}", timeout=REQUEST_TIMEOUT_S
        )
    except nats.errors.NoRespondersError:
        return None  # the stream does not exist yet
    except (nats.errors.Error, TimeoutError) as error:
        raise BucketError(_explain(error)) from None
    if get_status(message):
        return None
    return message


async def read_entries(client: Client, pattern: str) -> Sequence[StoredEntry]:
    """Return all entries of one bucket whose subject matches a pattern. Raise BucketError if the
    server does not answer, or if there are more than MAX_READ_ENTRIES.
    """
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    body = dump_json({"multi_last": [pattern]})
    entries = list[StoredEntry]()
    try:
        stream = _get_entry_stream(pattern)
        await client.publish(f"$JS.API.DIRECT.GET.{stream}", body, reply=inbox)
        while True:
            message = await subscription.next_msg(REQUEST_TIMEOUT_S)
            status = get_status(message)
            if status in (NO_RESPONDERS_STATUS, "404", "204"):  # no bucket, no entry, or the end
                return entries
            if status:
                raise BucketError(f"status {status}")
            entries.append(_parse_stored_entry(message))
    except (nats.errors.Error, TimeoutError) as error:
        raise BucketError(_explain(error)) from None
    finally:
        await unsubscribe(subscription)


async def unsubscribe(subscription: Any) -> None:
    """End a subscription, unless the connection has ended."""
    try:
        await subscription.unsubscribe()
    except nats.errors.Error:
        pass


def get_status(message: Msg) -> str:
    """Return the status of an answer without content, or "" for an entry."""
    return str((message.headers or {}).get("Status", ""))


def is_deletion(headers: Mapping[str, str] | None) -> bool:
    """Return whether a message in a bucket deletes its entry."""
    fields = headers or {}
    return "KV-Operation" in fields or "Nats-Marker-Reason" in fields


def _parse_stored_entry(message: Msg) -> StoredEntry:
    headers = message.headers or {}
    data = message.data
    if is_deletion(headers):
        data = b""
    stored_ms = round(1000 * parse_server_time(headers.get("Nats-Time-Stamp", "")))
    return StoredEntry(headers.get("Nats-Subject", ""), data, get_sequence(message), stored_ms)


def parse_server_time(text: str) -> float:
    """Return a time that the server has written, in seconds since 1970, or 0.0 if it is not valid.
    The fraction of the second is ignored, because it has nanoseconds.
    """
    try:
        return datetime.datetime.fromisoformat(f"{text[:19]}+00:00").timestamp()
    except ValueError:
        return 0.0


def get_sequence(message: Msg) -> int:
    """Return the sequence number of a stored message, or 0 if the server does not name one."""
    text = (message.headers or {}).get("Nats-Sequence", "")
    return int(text) if text.isdecimal() else 0


async def request_json(
    client: Client, subject: str, data: bytes, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Send a request, and return the fields of its answer. Raise BucketError if the server does not
    answer, or answers with an error.
    """
    try:
        message = await client.request(subject, data, REQUEST_TIMEOUT_S, headers=headers)
        answer = as_dict(orjson.loads(message.data))
    except orjson.JSONDecodeError:
        raise BucketError("an answer is not JSON") from None
    except nats.errors.NoRespondersError:
        raise BucketError("JetStream does not answer, or the bucket does not exist") from None
    except (nats.errors.Error, TimeoutError) as error:
        raise BucketError(_explain(error)) from None
    if "error" in answer:
        error_fields = as_dict(answer["error"])
        code = error_fields.get("err_code")
        raise BucketError(
            get_text(error_fields, "description"), code if isinstance(code, int) else 0
        )
    return answer


def _explain(error: Exception) -> str:
    if isinstance(error, TimeoutError | nats.errors.TimeoutError):
        return f"no answer within {REQUEST_TIMEOUT_S:g} s"
    return str(error).removeprefix("nats: ")
