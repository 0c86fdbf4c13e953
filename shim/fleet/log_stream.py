"""The stream of the fleet's server with the copies of session lines."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import suppress

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from shim.core.fleet.subjects import LOG_STREAM, build_log_subject
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict
from shim.fleet.buckets import (
    NANOSECONDS,
    REQUEST_TIMEOUT_S,
    BucketError,
    create_stream,
    get_status,
    parse_server_time,
    request_json,
    store_message,
    unsubscribe,
)
from shim.fleet.connection import FleetUnavailableError

# The limits of the copies. The oldest lines are removed first.
MAX_LINES_PER_SESSION = 50_000
MAX_STREAM_BYTES = 2 * 1024**3
# The limits of a batch. The client library drops messages if more than 128 MiB are waiting.
READ_BATCH_LINES = 500
READ_BATCH_BYTES = 16 * 1024**2
# A stream with this part of its bytes is full: the server removes old lines, or will soon.
FULL_STREAM_PART = 0.9
# The server removes the consumer of a reader that has gone.
CONSUMER_TTL_S = 30
# Readers of all logs at the same time. Any member may create consumers, which need memory.
MAX_CONSUMERS = 1000
CONSUMER_NAME_BYTES = 16  # the name is a secret between the reader and the server
# Removes all earlier messages of the subject, and then itself.
REMOVAL_HEADERS = {"Nats-Rollup": "sub", "Nats-TTL": "60s"}
# The statuses that end a batch: there are no further messages, or the next one exceeds the bytes.
NO_MESSAGES_STATUS = "404"
EXCEEDED_BYTES_STATUS = "409 Message Size Exceeds MaxBytes"


async def create_log_stream(client: Client, fleet: str) -> None:
    """Create the stream if it is missing. Raise BucketError if that is not possible."""
    await create_stream(
        client,
        LOG_STREAM,
        {
            "subjects": [f"shim.{fleet}.*.log.*"],
            "max_msgs_per_subject": MAX_LINES_PER_SESSION,
            "max_bytes": MAX_STREAM_BYTES,
            "discard": "old",
            "allow_msg_ttl": True,
            "max_consumers": MAX_CONSUMERS,
            "consumer_limits": {"inactive_threshold": CONSUMER_TTL_S * NANOSECONDS},
        },
    )


async def list_stored_sessions(client: Client, fleet: str, machine: str) -> set[str]:
    """Return the UUIDs of a machine's sessions that the stream has lines of. Raise BucketError if the
    server does not answer.
    """
    pattern = build_log_subject(fleet, machine, "*")
    info = await request_json(
        client, f"$JS.API.STREAM.INFO.{LOG_STREAM}", dump_json({"subjects_filter": pattern})
    )
    subjects = as_dict(as_dict(info.get("state")).get("subjects"))
    return {str(subject).rpartition(".")[2] for subject in subjects}


async def is_age_evicted(client: Client, age_s: float) -> bool:
    """Return whether the stream is full, and its oldest line is newer than a session that ended
    `age_s` seconds ago. Raise BucketError if the server does not answer.
    """
    info = await request_json(client, f"$JS.API.STREAM.INFO.{LOG_STREAM}", b"")
    state = as_dict(info.get("state"))
    try:
        is_full = state["bytes"] >= FULL_STREAM_PART * as_dict(info["config"])["max_bytes"]
        oldest_age_s = parse_server_time(info["ts"]) - parse_server_time(state["first_ts"])
    except (KeyError, TypeError):
        raise BucketError("the state of the log stream is not valid") from None
    return is_full and age_s > oldest_age_s


async def remove_log_messages(client: Client, subject: str) -> int:
    """Remove the lines of a session. Return the sequence number of the message that has removed them.
    Raise BucketError if the server does not confirm it.
    """
    return await store_message(client, subject, b"", REMOVAL_HEADERS)


async def read_log_messages(client: Client, subject: str) -> AsyncGenerator[Msg, None]:
    """Yield all messages of a subject. Raise BucketError if the server does not answer, and
    FleetUnavailableError if the connection is lost.
    """
    name = secrets.token_hex(CONSUMER_NAME_BYTES)
    config = {
        "name": name,
        "filter_subject": subject,
        "deliver_policy": "all",
        "ack_policy": "none",
        "mem_storage": True,
        "inactive_threshold": CONSUMER_TTL_S * NANOSECONDS,
    }
    body = {"stream_name": LOG_STREAM, "config": config, "action": "create"}
    await request_json(
        client, f"$JS.API.CONSUMER.CREATE.{LOG_STREAM}.{name}.{subject}", dump_json(body)
    )
    try:
        count = 1
        while count:
            count = 0
            async for message in _pull_batch(client, name):
                count += 1
                yield message
    finally:
        with suppress(FleetUnavailableError):  # the server removes it after CONSUMER_TTL_S
            await client.publish(f"$JS.API.CONSUMER.DELETE.{LOG_STREAM}.{name}", b"")


async def _pull_batch(client: Client, name: str) -> AsyncGenerator[Msg, None]:
    """Yield the next messages of a consumer, or nothing at the end of the log. Raise BucketError if
    the server does not answer, or no longer has the consumer, and FleetUnavailableError if the
    connection is lost.
    """
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    try:
        body = dump_json(
            {"batch": READ_BATCH_LINES, "max_bytes": READ_BATCH_BYTES, "no_wait": True}
        )
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{LOG_STREAM}.{name}", body, reply=inbox)
        for _ in range(READ_BATCH_LINES):
            message = await subscription.next_msg(REQUEST_TIMEOUT_S)
            status = get_status(message)
            if status:
                _check_end_of_batch(status, message)
                return
            yield message
    except (nats.errors.Error, TimeoutError) as error:
        raise BucketError(f"the log is not complete: {error}") from None
    finally:
        await unsubscribe(subscription)


def _check_end_of_batch(status: str, message: Msg) -> None:
    """Raise BucketError if a status does not end a batch. For example, the server removes the consumer
    of a reader that has paused for CONSUMER_TTL_S.
    """
    description = f"{status} {(message.headers or {}).get('Description', '')}".strip()
    if status != NO_MESSAGES_STATUS and description != EXCEEDED_BYTES_STATUS:
        raise BucketError(f"the log is not complete: status {description}")
