"""Secrets that nobody has: shaped like each kind of the table, made of a fixed alphabet."""

ALPHABET = "aB3dE5gH7jK9mN2pQ4sT6vW8xY1zC0fL"
HEX = "0123456789abcdef"


def random(length: int, characters: str = ALPHABET) -> str:
    """So many characters that look like chance, the same ones each time."""
    return "".join(
        characters[(7 * position + position // len(characters)) % len(characters)]
        for position in range(length)
    )


KEY = f"-----BEGIN {{0}}PRIVATE KEY-----\n{random(64)}\n{random(64)}\n{random(20)}==\n-----END {{0}}PRIVATE KEY-----"

# Kind → secrets that stand for themselves: all of them goes.
BARE = {
    "anthropic-key": [f"sk-ant-api03-{random(80)}-{random(10)}AA"],
    "openai-key": [
        f"sk-proj-{random(60)}_{random(20)}",
        f"sk-svcacct-{random(40)}",
        f"sk-admin-{random(40)}",
    ],
    "api-key": [f"sk-{random(48)}"],
    "github-token": [
        *(f"gh{letter}_{random(36)}" for letter in "pousr"),
        f"github_pat_{random(22)}_{random(59)}",
    ],
    "gitlab-token": [f"glpat-{random(20)}"],
    "google-key": [f"AIza{random(35)}"],
    "google-oauth": [f"ya29.{random(60)}", f"GOCSPX-{random(28)}", f"1//0{random(40)}"],
    "aws-key-id": ["AKIA" + random(16).upper(), "ASIA" + random(16).upper()],
    "npm-token": [f"npm_{random(36)}"],
    "pypi-token": [f"pypi-AgE{random(80)}"],
    "huggingface-token": [f"hf_{random(34)}"],
    "slack-token": [
        f"xoxb-123456789012-{random(24)}",
        f"xoxp-{random(40)}",
        f"xapp-1-{random(40)}",
    ],
    "stripe-key": [f"sk_live_{random(24)}", f"rk_test_{random(24)}", f"whsec_{random(32)}"],
    "sendgrid-key": [f"SG.{random(22)}.{random(43)}"],
    "twilio-key": [f"SK{random(32, HEX)}"],
    "digitalocean-token": [f"dop_v1_{random(64, HEX)}"],
    "databricks-token": [f"dapi{random(32, HEX)}"],
    "shopify-token": [f"shpat_{random(32, HEX)}"],
    "vault-token": [f"hvs.{random(90)}"],
    "docker-token": [f"dckr_pat_{random(27)}"],
    "atlassian-token": [f"ATATT3{random(180)}"],
    "groq-key": [f"gsk_{random(52)}"],
    "xai-key": [f"xai-{random(80)}"],
    "perplexity-key": [f"pplx-{random(48)}"],
    "replicate-token": [f"r8_{random(37)}"],
    "linear-key": [f"lin_api_{random(40)}"],
    "notion-token": [f"ntn_{random(46)}"],
    "figma-token": [f"figd_{random(40)}"],
    "grafana-token": [f"glsa_{random(32)}_{random(8, HEX)}"],
    "newrelic-key": ["NRAK-" + random(27).upper()],
    "sentry-token": [f"sntrys_{random(80)}"],
    "supabase-token": [f"sbp_{random(40, HEX)}"],
    "planetscale-token": [f"pscale_tkn_{random(43)}"],
    "postman-key": [f"PMAK-{random(24, HEX)}-{random(34, HEX)}"],
    "rubygems-key": [f"rubygems_{random(48, HEX)}"],
    "square-token": [f"sq0atp-{random(22)}"],
    "mailgun-key": [f"key-{random(32, HEX)}"],
    "doppler-token": [f"dp.pt.{random(43)}"],
    "age-key": ["AGE-SECRET-KEY-1" + random(58).upper()],
    "alibaba-key-id": [f"LTAI{random(20)}"],
    "jwt": [f"eyJ{random(33)}.eyJ{random(70)}.{random(43)}"],
    "private-key": [
        KEY.format(""),
        KEY.format("RSA "),
        KEY.format("OPENSSH "),
        KEY.format("").replace("\n", "\\n"),
        KEY.format("").replace("\n", " "),
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2.0.22 (GNU/Linux)\n\n"
        f"{random(64)}\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----",
    ],
}

# Kind → what stands before a secret, the secret, what stands behind it: only the secret goes.
SAID = {
    "url-password": [
        ("mongodb+srv://admin:", random(12), "@cluster0.example.net/db"),
        ("postgres://app:", "hunter2", "@localhost:5432/app"),
        ("mysql://root:", "p@ss:word", "@db"),
        ("redis://:", random(20), "@cache:6379/0"),
        ("https://user:", random(16), "@example.com/path"),
    ],
    "authorization": [
        ("Authorization: Basic ", "dXNlcjpwYXNzd29yZDE=", ""),
        ("authorization: bearer ", random(40), "\n"),
        ('{"Authorization": "Token ', random(40), '"}'),
        ("-H 'Authorization: Bearer ", f"{random(20)}.{random(20)}", "' https://example.com"),
    ],
    "bearer-token": [("sent as Bearer ", random(32), " with it"), ("bearer ", random(40), "")],
    "assigned-secret": [
        ("password=", "hunter2", ""),
        ('password: "', "hunter2.x", '"'),
        ("DB_PASSWORD=", "correcthorse", "\n"),
        ("export GITHUB_TOKEN=", "correct-horse.battery", "\n"),
        ("api_key = '", "abc123def456", "'"),
        ("apiKey: `", random(24), "`"),
        ('"client_secret": "', random(24), '",'),
        ('\\"password\\": \\"', "hunter2", '\\"'),
        ("aws_secret_access_key = ", f"{random(20)}/{random(10)}+{random(9)}", "\n"),
        ("x-api-key: ", random(20), "\r\n"),
        ("?token=", random(16), "&page=2"),
        ("AccountKey=", f"{random(86)}==", ";EndpointSuffix=core.windows.net"),
        ("config['password'] = '", "s3cr3t-value", "'"),
        ("token => ", random(12), ","),
        ("<password>", random(12), "</password>"),
        ("--password ", "hunter2x", " --user me"),
        ("--token=", random(16), ""),
        ("secret: '", "supersecretword", "'"),
        ("?user=me&password=", "supersecretword", "&page=2"),
        ("private_key=", random(300), " next"),
        ('passphrase = "', "opensesame", '"'),
        ("The password: ", "hunter2", ". Keep it."),
    ],
    "webhook": [
        (
            "https://hooks.slack.com/services/",
            f"T{random(8).upper()}/B{random(8).upper()}/{random(24)}",
            "",
        ),
        ("https://discord.com/api/webhooks/", f"123456789012345678/{random(60)}", ""),
    ],
    "signature": [
        ("https://x.blob.core.windows.net/c?sv=1&sig=", f"{random(40)}%3D", ""),
        ("X-Amz-Signature=", random(64, HEX), ""),
    ],
}

SECRETS = [(kind, "", secret, "") for kind, secrets in BARE.items() for secret in secrets] + [
    (kind, *said) for kind, several in SAID.items() for said in several
]

# The first secret of each kind, for slow tests. The tests of the patterns use all secrets.
ONE_OF_EACH_KIND = list({secret[0]: secret for secret in reversed(SECRETS)}.values())

# What no pattern may touch.
INNOCENT = [
    "9b4941c3f1f6d2a0b7a0d1f0c2b3a4958677f0e1",
    "550e8400-e29b-41d4-a716-446655440000",
    "token = getToken()",
    "token = get_token2()",
    "password: string",
    "connect(user=name, password=somevariable)",
    "password=required",
    "password=somebody.password",
    "password: string;",
    "password?: string",
    "const password = req.body.password;",
    "password = config.db1.password",
    "api_key = os.environ['OPENAI_API_KEY']",
    "apiKey: process.env.API_KEY1,",
    "password=${DB_PASSWORD1}",
    "password=$DB_PASSWORD1",
    "password: {{ vault_password1 }}",
    "TOKEN=$(cat /run/token1)",
    "Authorization: Bearer <token>",
    "Authorization: Bearer $TOKEN",
    "Authorization: required",
    "Bearer authentication is used",
    "max_tokens: 4096, input_tokens=120",
    "max_token=4096",
    "the next token: 12345678",
    "token: 'identifier'",
    '"type": "password", "label": "Password"',
    '"password": "Passwort"',
    '<input type="password" name="password" id="password1">',
    "secret: uint256",
    "password: Uint8Array1",
    "task-runner-with-a-long-name-1234567890",
    "disk-usage-of-all-the-volumes-in-2024",
    ".sk-folding-cube .sk-cube1 { -webkit-animation: sk-foldCubeAngle 2.4s; }",
    "sk-dummy",
    "sk-circle-fade-dot-animation-delay",
    "ghp_short",
    "npm_config_registry_and_some_other_setting_of_npm",
    "hf_transfer",
    "eyJhbGciOiJIUzI1NiJ9",
    "AKIAshort",
    "SKELETON and skating",
    "SKU0123456789",
    "https://example.com:8080/path@2x.png",
    "https://medium.com/@somebody/a-story-1234567890ab",
    "git@github.com:owner/repository.git",
    "postgres://localhost:5432/app",
    "postgres://$USER:$PASSWORD@localhost/app",
    "redis://cache:6379/0",
    "http://[::1]:8080/",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END CERTIFICATE-----",
    'if "-----BEGIN PRIVATE KEY-----" in text:',
    "a file that starts with -----BEGIN PRIVATE KEY----- and ends so",
    "key-value stores and key-0 to key-9",
    "PWD=/home/somebody/work1/project",
    "pwd: /usr/local/lib/python3.11",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==",
    "sha512-" + random(86) + "==",
    "integrity sha1-" + random(27) + "=",
    "color: #3a5f7c; margin: 0 auto !important;",
    "x = y1 if secret == y2 else z",
    "secret => hash(secret)",
    "Signed-off-by: Somebody <somebody@example.com>",
    "3 secrets were found, 12 tokens: fine",
    "Rate limit: 5000 tokens/min",
    "SG.short",
    "ya29 is no token",
    "İstanbul'da token yok",
    "[REDACTED:assigned-secret]",
    "password=[REDACTED:assigned-secret]",
    "https://user:[REDACTED:url-password]@example.com",
    "Bearer [REDACTED:bearer-token]",
]
