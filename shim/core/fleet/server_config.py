"""The configuration of a fleet's NATS server."""

from typing import NamedTuple

# The server acknowledges a message after it is on the disk. JetStream would otherwise lose up to two
# minutes of messages when the machine loses power.
SYNC_INTERVAL = "always"
# A connection whose peer is silent is closed after (PING_MAX + 1) × PING_INTERVAL: 6 s.
PING_INTERVAL = "2s"
PING_MAX = 2
MAX_FILE_STORE = "4GB"

CONFIG_TEXT = """\
# The server of the fleet {fleet}. `shim fleet init` and `shim fleet revoke` write this file.
# Start it with `shim fleet server`, or with `nats-server -c FILE`.
listen: "{listen}"
operator: "{operator_jwt}"
# JetStream needs a system account. Nobody has a key for it.
system_account: {system_key}
resolver: MEMORY
resolver_preload: {{
  {system_key}: "{system_jwt}"
  {issuer}: "{issuer_jwt}"
  {storage_key}: "{storage_jwt}"
}}
tls {{
  cert_file: "{folder}/server.pem"
  key_file: "{folder}/server-key.pem"
}}
jetstream {{
  store_dir: "{folder}/jetstream"
  max_file_store: {MAX_FILE_STORE}
  max_memory_store: 0
  sync_interval: {SYNC_INTERVAL}
}}
ping_interval: "{PING_INTERVAL}"
ping_max: {PING_MAX}
"""


class ServerSettings(NamedTuple):
    """The settings of a fleet's server. `listen` is HOST:PORT, and `folder` is the absolute path of
    the folder with its certificate and its data.
    """

    fleet: str
    listen: str
    folder: str
    operator_jwt: str
    system_key: str
    system_jwt: str
    issuer: str
    issuer_jwt: str
    storage_key: str
    storage_jwt: str


def format_server_config(settings: ServerSettings) -> str:
    """Return the text of server.conf."""
    folder = settings.folder.replace("\\", "\\\\").replace('"', '\\"')
    return CONFIG_TEXT.format(
        **settings._replace(folder=folder)._asdict(),
        MAX_FILE_STORE=MAX_FILE_STORE,
        SYNC_INTERVAL=SYNC_INTERVAL,
        PING_INTERVAL=PING_INTERVAL,
        PING_MAX=PING_MAX,
    )
