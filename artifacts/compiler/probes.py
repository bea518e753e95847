"""Texts that every graph is tried on: what real columns hold, good and bad."""

from __future__ import annotations

_SHORT = (
    "ok",
    "I loved it.",
    "Worst purchase of my life, never again!",
    "The delivery came two days late but the product is fine.",
    "a body of water that flows into a larger one",
    "Please find attached the invoice for October.",
    "CONGRATULATIONS!!! You have WON a FREE prize, click here NOW",
    "re: re: fwd: meeting moved to 3pm",
    "not bad, not good, just average",
    "It depends.",
    "the act of changing from one state to another",
    "small nocturnal mammal with large ears",
)
_NUMBERS = (
    "0",
    "3.14159",
    "+1 (555) 010-9999",
    "2026-12-01T03:00:00Z",
    "Total: $1,299.00 (incl. 19 % VAT)",
    "192.168.0.1:8080/path?x=1&y=2",
)
_UNICODE = (
    "Für Köln über Zürich: naïve façade, coöperate",
    "これは日本語の文章です。",
    "Это предложение на русском языке",
    "هذه جملة باللغة العربية",
    "यह हिंदी में एक वाक्य है",
    "🙂🙃🚀 emoji 👩\u200d👩\u200d👧 joined",
    "zero\u200bwidth and\u00a0no-break",
    "e\u0301 against \u00e9",
)
_ODD = (
    " ",
    ".",
    "\n\n\t",
    "???!!!",
    "<html><body><p>Hello&nbsp;there</p></body></html>",
    '{"key": [1, 2, null], "text": "a \\"quoted\\" value"}',
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "line one\nline two\r\nline three",
    "[CLS] [SEP] [MASK] <s> </s>",
)
_SENTENCE = (
    "The channel brings water from the lake to the turbines and nobody has measured how much of it is lost on the way"
)


def probe_texts(max_length: int) -> list[str]:
    """A few dozen texts; the last ones reach just below, up to and well beyond ``max_length`` tokens."""
    words = _SENTENCE.split()
    lengths = (max_length // 4, max_length // 2, max(1, max_length - 2), 2 * max_length)
    long = [" ".join(words[index % len(words)] for index in range(length)) for length in lengths]
    return [*_SHORT, *_NUMBERS, *_UNICODE, *_ODD, *long]
