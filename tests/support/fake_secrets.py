"""Fake secrets that look like each kind in the table, made from a fixed alphabet."""

ALPHABET = "aB3dE5gH7jK9mN2pQ4sT6vW8xY1zC0fL"
HEX = "0123456789abcdef"


def generate_secret(length: int, characters: str = ALPHABET) -> str:
    """Return this number of characters that look random but are the same every time."""
    return "".join(
        characters[(7 * position + position // len(characters)) % len(characters)]
        for position in range(length)
    )


KEY = (
    "-----BEGIN {0}PRIVATE KEY-----\n"
    f"{generate_secret(64)}\n{generate_secret(64)}\n{generate_secret(20)}==\n"
    "-----END {0}PRIVATE KEY-----"
)

# Kind → secrets that are recognized without context. The complete text is redacted.
BARE = {
    "anthropic-key": [f"sk-ant-api03-{generate_secret(80)}-{generate_secret(10)}AA"],
    "openai-key": [
        f"sk-proj-{generate_secret(60)}_{generate_secret(20)}",
        f"sk-svcacct-{generate_secret(40)}",
        f"sk-admin-{generate_secret(40)}",
    ],
    "api-key": [f"sk-{generate_secret(48)}"],
    "github-token": [
        *(f"gh{letter}_{generate_secret(36)}" for letter in "pousr"),
        f"github_pat_{generate_secret(22)}_{generate_secret(59)}",
    ],
    "gitlab-token": [f"glpat-{generate_secret(20)}"],
    "google-key": [f"AIza{generate_secret(35)}"],
    "google-oauth": [
        f"ya29.{generate_secret(60)}",
        f"GOCSPX-{generate_secret(28)}",
        f"1//0{generate_secret(40)}",
    ],
    "aws-key-id": ["AKIA" + generate_secret(16).upper(), "ASIA" + generate_secret(16).upper()],
    "npm-token": [f"npm_{generate_secret(36)}"],
    "pypi-token": [f"pypi-AgE{generate_secret(80)}"],
    "huggingface-token": [f"hf_{generate_secret(34)}"],
    "slack-token": [
        f"xoxb-123456789012-{generate_secret(24)}",
        f"xoxp-{generate_secret(40)}",
        f"xapp-1-{generate_secret(40)}",
    ],
    "stripe-key": [
        f"sk_live_{generate_secret(24)}",
        f"rk_test_{generate_secret(24)}",
        f"whsec_{generate_secret(32)}",
    ],
    "sendgrid-key": [f"SG.{generate_secret(22)}.{generate_secret(43)}"],
    "twilio-key": [f"SK{generate_secret(32, HEX)}"],
    "digitalocean-token": [f"dop_v1_{generate_secret(64, HEX)}"],
    "databricks-token": [f"dapi{generate_secret(32, HEX)}"],
    "shopify-token": [f"shpat_{generate_secret(32, HEX)}"],
    "vault-token": [f"hvs.{generate_secret(90)}"],
    "docker-token": [f"dckr_pat_{generate_secret(27)}"],
    "atlassian-token": [f"ATATT3{generate_secret(180)}"],
    "groq-key": [f"gsk_{generate_secret(52)}"],
    "xai-key": [f"xai-{generate_secret(80)}"],
    "perplexity-key": [f"pplx-{generate_secret(48)}"],
    "replicate-token": [f"r8_{generate_secret(37)}"],
    "linear-key": [f"lin_api_{generate_secret(40)}"],
    "notion-token": [f"ntn_{generate_secret(46)}"],
    "figma-token": [f"figd_{generate_secret(40)}"],
    "grafana-token": [f"glsa_{generate_secret(32)}_{generate_secret(8, HEX)}"],
    "newrelic-key": ["NRAK-" + generate_secret(27).upper()],
    "sentry-token": [f"sntrys_{generate_secret(80)}"],
    "supabase-token": [f"sbp_{generate_secret(40, HEX)}"],
    "planetscale-token": [f"pscale_tkn_{generate_secret(43)}"],
    "postman-key": [f"PMAK-{generate_secret(24, HEX)}-{generate_secret(34, HEX)}"],
    "rubygems-key": [f"rubygems_{generate_secret(48, HEX)}"],
    "square-token": [f"sq0atp-{generate_secret(22)}"],
    "mailgun-key": [f"key-{generate_secret(32, HEX)}"],
    "doppler-token": [f"dp.pt.{generate_secret(43)}"],
    "age-key": ["AGE-SECRET-KEY-1" + generate_secret(58).upper()],
    "alibaba-key-id": [f"LTAI{generate_secret(20)}"],
    "jwt": [f"eyJ{generate_secret(33)}.eyJ{generate_secret(70)}.{generate_secret(43)}"],
    "private-key": [
        KEY.format(""),
        KEY.format("RSA "),
        KEY.format("OPENSSH "),
        KEY.format("").replace("\n", "\\n"),
        KEY.format("").replace("\n", " "),
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2.0.22 (GNU/Linux)\n\n"
        f"{generate_secret(64)}\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----",
    ],
}

# Kind → (text before a secret, secret, text after it). Only the secret is redacted.
SECRETS_IN_CONTEXT = {
    "url-password": [
        ("mongodb+srv://admin:", generate_secret(12), "@cluster0.example.net/db"),
        ("postgres://app:", "hunter2", "@localhost:5432/app"),
        ("mysql://root:", "p@ss:word", "@db"),
        ("redis://:", generate_secret(20), "@cache:6379/0"),
        ("https://user:", generate_secret(16), "@example.com/path"),
    ],
    "authorization": [
        ("Authorization: Basic ", "dXNlcjpwYXNzd29yZDE=", ""),
        ("authorization: bearer ", generate_secret(40), "\n"),
        ('{"Authorization": "Token ', generate_secret(40), '"}'),
        (
            "-H 'Authorization: Bearer ",
            f"{generate_secret(20)}.{generate_secret(20)}",
            "' https://example.com",
        ),
    ],
    "bearer-token": [
        ("sent as Bearer ", generate_secret(32), " with it"),
        ("bearer ", generate_secret(40), ""),
    ],
    "assigned-secret": [
        ("password=", "hunter2", ""),
        ('password: "', "hunter2.x", '"'),
        ("DB_PASSWORD=", "correcthorse", "\n"),
        ("export GITHUB_TOKEN=", "correct-horse.battery", "\n"),
        ("api_key = '", "abc123def456", "'"),
        ("apiKey: `", generate_secret(24), "`"),
        ('"client_secret": "', generate_secret(24), '",'),
        ('\\"password\\": \\"', "hunter2", '\\"'),
        (
            "aws_secret_access_key = ",
            f"{generate_secret(20)}/{generate_secret(10)}+{generate_secret(9)}",
            "\n",
        ),
        ("x-api-key: ", generate_secret(20), "\r\n"),
        ("?token=", generate_secret(16), "&page=2"),
        ("AccountKey=", f"{generate_secret(86)}==", ";EndpointSuffix=core.windows.net"),
        ("config['password'] = '", "s3cr3t-value", "'"),
        ("token => ", generate_secret(12), ","),
        ("<password>", generate_secret(12), "</password>"),
        ("--password ", "hunter2x", " --user me"),
        ("--token=", generate_secret(16), ""),
        ("secret: '", "supersecretword", "'"),
        ("?user=me&password=", "supersecretword", "&page=2"),
        ("private_key=", generate_secret(300), " next"),
        ('passphrase = "', "opensesame", '"'),
        ("The password: ", "hunter2", ". Keep it."),
    ],
    "webhook": [
        (
            "https://hooks.slack.com/services/",
            f"T{generate_secret(8).upper()}/B{generate_secret(8).upper()}/{generate_secret(24)}",
            "",
        ),
        ("https://discord.com/api/webhooks/", f"123456789012345678/{generate_secret(60)}", ""),
    ],
    "signature": [
        ("https://x.blob.core.windows.net/c?sv=1&sig=", f"{generate_secret(40)}%3D", ""),
        ("X-Amz-Signature=", generate_secret(64, HEX), ""),
    ],
}

SECRETS = [(kind, "", secret, "") for kind, secrets in BARE.items() for secret in secrets] + [
    (kind, *parts) for kind, several in SECRETS_IN_CONTEXT.items() for parts in several
]

# The first secret of each kind, for slow tests. The tests of the patterns use all secrets.
FIRST_SECRETS = list({secret[0]: secret for secret in reversed(SECRETS)}.values())

# Texts that no pattern may match.
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
    "sha512-" + generate_secret(86) + "==",
    "integrity sha1-" + generate_secret(27) + "=",
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
