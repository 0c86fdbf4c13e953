"""Redaction of strings, of values, of streams in any chunks, of stderr and of command lines."""

import itertools

import pytest
from fake_secrets import INNOCENT, SECRETS, generate_secret
from hypothesis import given
from hypothesis import strategies as st
from sweeps import limit_examples, loop_over_rows

from shim.core.reading.head_and_tail import HEAD_BYTES
from shim.core.secrets.redactor import (
    ARGUMENT_PLACEHOLDER,
    CUT_PLACEHOLDER,
    MAX_BUFFERED_CHARS,
    MAX_HARMLESS_FRAGMENTS,
    MAX_KEY_CHARS,
    RedactedHeadTailBuffer,
    Redactor,
    StreamRedactor,
    add_placeholder_counts,
    describe_redactions,
    redact_argv,
)

GITHUB = f"ghp_{generate_secret(36)}"
# The starts of secrets, the text around them, and unrelated text.
PIECES = st.one_of(
    st.sampled_from([f"{before}{secret}{suffix}" for _, before, secret, suffix in SECRETS]),
    st.sampled_from(
        [
            f"{before}{secret}"[:length]
            for _, before, secret, _ in SECRETS
            for length in (3, 7, 12, 25)
        ]
    ),
    st.sampled_from(INNOCENT),
    st.sampled_from(
        [
            " ",
            "\n",
            '"',
            "'",
            "=",
            ": ",
            "://",
            "@",
            "-",
            ".",
            "\\",
            "é",
            "İ",
            "\ud83d",
            "token",
            "password",
        ]
    ),
    st.text(max_size=12),
)


def cut(text: str, at: list[int]) -> list[str]:
    """Return a text in non-empty chunks."""
    places = [0, *sorted({position % (len(text) + 1) for position in at}), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places) if end > start]


def redact_stream(pieces: list[str]) -> str:
    stream = StreamRedactor({})
    return "".join(stream.feed(piece) for piece in pieces) + stream.flush()


# -- streams ---------------------------------------------------------------------------------------


@limit_examples(250, shrink=True)
@given(parts=st.lists(PIECES, max_size=6), at=st.lists(st.integers(0, 2000), max_size=20))
def test_stream_output_equals_full_text_redaction_for_any_split(parts, at):
    text = "".join(parts)
    assert redact_stream(cut(text, at)) == Redactor().redact_text(text) if len(text) >= 8 else True


@loop_over_rows(("kind", "before", "secret", "suffix"), SECRETS)
@pytest.mark.parametrize("size", [1, 3, 20])
def test_secret_in_small_chunks_is_redacted(kind, before, secret, suffix, size):
    text = f"so: {before}{secret}{suffix} and on"
    counts: dict[str, int] = {}
    stream = StreamRedactor(counts)
    parts = [stream.feed(text[start : start + size]) for start in range(0, len(text), size)]
    parts.append(stream.flush())
    assert "".join(parts) == f"so: {before}[REDACTED:{kind}]{suffix} and on"
    assert counts == {kind: 1}


@limit_examples(100)
@given(
    text=st.text(alphabet="abcdefghijklmnopqrstuvwxyz ,.\n", max_size=200),
    at=st.lists(st.integers(0, 200), max_size=9),
)
def test_prose_is_unchanged(text, at):
    assert redact_stream(cut(text, at)) == text


def test_only_possible_secret_prefixes_are_buffered():
    stream = StreamRedactor({})
    for fragment in (
        "Hello",
        " world",
        " files",
        " the token",
        " is",
        " a password",
        "-",
        "x",
        " risk.",
        "\n",
    ):
        passed_text = stream.feed(fragment)
        assert len(fragment) - len(passed_text) <= 1 or passed_text == "-x"
    assert stream.flush() == ""
    assert stream.feed("gh") == ""
    assert stream.feed("ost") == "ghost"
    assert stream.feed(" ghp_abc") == " "
    assert stream.feed(" and") == "ghp_abc and"


@loop_over_rows(("kind", "before", "secret", "suffix"), SECRETS)
def test_buffered_text_never_exceeds_its_limit(kind, before, secret, suffix):
    stream = StreamRedactor({})
    for character in (before + secret + suffix + "x" * 300 + "==" + "1" * 300) * 2:
        stream.feed(character)
        assert len(stream._pending_text) - stream._decided_chars <= MAX_BUFFERED_CHARS


def test_flush_returns_the_buffered_text():
    stream = StreamRedactor({})
    assert stream.feed("a sk") == "a "
    assert stream.flush() == "sk"
    assert stream.feed("-" + generate_secret(48)) == "-" + generate_secret(48), (
        "the next text begins anew"
    )


def test_long_token_is_dropped_while_streaming():
    stream = StreamRedactor({})
    assert stream.feed("key: sk-" + generate_secret(30)) == "key: [REDACTED:api-key]"
    assert [stream.feed(generate_secret(50)) for _ in range(100)] == [""] * 100
    assert stream.feed("aB3 done") == " done"


def test_private_key_over_many_deltas_is_a_single_placeholder():
    stream = StreamRedactor({})
    assert stream.feed("see\n-----BEGIN RSA PRIV") == "see\n"
    assert stream.feed("ATE KEY-----\nMII") == "[REDACTED:private-key]"
    for _ in range(50):
        assert stream.feed(generate_secret(64) + "\n") == ""
    assert stream.feed("-----END RSA PRI") == ""
    assert stream.feed("VATE KEY-----\nbye") == "\nbye"


def test_unterminated_private_key_ends_at_its_limit():
    stream = StreamRedactor({})
    stream.feed("-----BEGIN PRIVATE KEY-----\n")
    output = "".join(stream.feed("abcdefgh" * 8) for _ in range(2 * MAX_KEY_CHARS // 64))
    assert len(output) == 2 * MAX_KEY_CHARS - MAX_KEY_CHARS


def test_harmless_fragments_are_cached_up_to_a_limit():
    stream = StreamRedactor({})
    for number in range(MAX_HARMLESS_FRAGMENTS + 10):
        stream.feed(f" w{number}")
    assert 0 < len(stream.harmless_fragments) <= MAX_HARMLESS_FRAGMENTS
    assert stream.feed(" w1") == " w1"


# -- values ----------------------------------------------------------------------------------------


def test_value_without_secrets_is_returned_as_the_same_object():
    value = {"a": [1, "text", {"b": None}], "c": ("x", 2.5)}
    assert Redactor().redact_value(value) is value


def test_nested_strings_and_keys_are_redacted():
    value = {"a": [1, GITHUB, {"b": f"x {GITHUB}"}], GITHUB: (GITHUB, True)}
    placeholder = "[REDACTED:github-token]"
    redactor = Redactor()
    assert redactor.redact_value(value) == {
        "a": [1, placeholder, {"b": f"x {placeholder}"}],
        placeholder: [placeholder, True],
    }
    assert redactor.counts == {"github-token": 4}


def test_value_under_a_secret_key_name_is_redacted():
    redactor = Redactor()
    value = {
        "password": "hunter2",
        "apiKey": "abc123def",
        "token": "identifier",
        "name": "hunter2",
        "secret": 7,
    }
    placeholder = "[REDACTED:assigned-secret]"
    assert redactor.redact_value(value) == value | {"password": placeholder, "apiKey": placeholder}
    assert redactor.counts == {"assigned-secret": 2}


def test_secret_prefix_at_the_end_of_a_cut_text_is_redacted():
    redactor = Redactor(cut_chars=20)
    assert redactor.redact_text(f"the key is {GITHUB}"[:20]) == "the key is " + CUT_PLACEHOLDER
    assert redactor.redact_text("the key is none at z") == "the key is none at z"
    assert redactor.redact_text(f"the key is {GITHUB}") == "the key is [REDACTED:github-token]"


# -- stderr ----------------------------------------------------------------------------------------


def test_stderr_is_redacted_before_its_middle_is_omitted():
    tail = RedactedHeadTailBuffer()
    tail.add(b"x" * (HEAD_BYTES - 20) + b"\n")
    for start in range(0, len(GITHUB), 5):
        tail.add(GITHUB[start : start + 5].encode())
    tail.add(b" then\n-----BEGIN PRIVATE KEY-----\n")
    for _ in range(400):
        tail.add(generate_secret(64).encode() + b"\n")
    tail.add("-----END PRIVATE KEY-----\né".encode()[:-1])
    tail.add("é".encode()[-1:] + b" ghp_half")
    tail_text = tail.to_text()
    assert generate_secret(20) not in tail_text and GITHUB[:10] not in tail_text
    assert tail_text.endswith("é ghp_half")


def test_existing_placeholders_are_counted():
    counts = {"jwt": 1}
    add_placeholder_counts("a [REDACTED:jwt] b [REDACTED:api-key] [REDACTED:]", counts)
    assert counts == {"jwt": 2, "api-key": 1}


# -- command lines ---------------------------------------------------------------------------------


@loop_over_rows(
    ("argv", "expected"),
    [
        (
            ["--settings", '{"env":{"A":"b"}}', "-p", "hi"],
            ["--settings", ARGUMENT_PLACEHOLDER, "-p", "hi"],
        ),
        (["--settings={}", "hi"], [f"--settings={ARGUMENT_PLACEHOLDER}", "hi"]),
        (
            ["--mcp-config", "a.json", "{}", "--model", "x"],
            ["--mcp-config", ARGUMENT_PLACEHOLDER, ARGUMENT_PLACEHOLDER, "--model", "x"],
        ),
        (["--api-key", "abc", "x"], ["--api-key", ARGUMENT_PLACEHOLDER, "x"]),
        (["--openai-api-key", "-abc", "x"], ["--openai-api-key", ARGUMENT_PLACEHOLDER, "x"]),
        (
            ["-H", "X: y", "-HX: y", "--header", "X: y"],
            [
                "-H",
                ARGUMENT_PLACEHOLDER,
                f"-H{ARGUMENT_PLACEHOLDER}",
                "--header",
                ARGUMENT_PLACEHOLDER,
            ],
        ),
        (["--auth-token", "t"], ["--auth-token", ARGUMENT_PLACEHOLDER]),
        (["-p", f"use {GITHUB}"], ["-p", "use [REDACTED:github-token]"]),
        (["--help", "--header"], ["--help", "--header"]),
    ],
)
def test_values_of_secret_options_are_redacted(argv, expected):
    assert redact_argv(argv) == expected


def test_redaction_counts_are_described_in_a_sentence():
    assert describe_redactions({}) == ""
    assert describe_redactions({"jwt": 1}) == "1 secret was redacted: 1 jwt"
    assert (
        describe_redactions({"jwt": 1, "api-key": 2}) == "3 secrets were redacted: 2 api-key, 1 jwt"
    )
