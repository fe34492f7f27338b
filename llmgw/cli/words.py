"""What goes wrong between the command and the API, in words for people."""

import re

from llmgw.cli.output import clean

BROKE = "the connection broke"


def no_number(word: str) -> float:
    """What JSON cannot hold, such as NaN, makes it no JSON."""
    raise ValueError(f"{word} is not JSON")


def tls(url: str, words: str) -> str:
    """Why no secure connection comes about, and what to do."""
    if "WRONG_VERSION_NUMBER" in words or "record layer" in words or "HTTP_REQUEST" in words:
        return f"{url} does not speak TLS: is it http:// there?"
    if "mismatch" in words or "doesn't match" in words or "not valid for" in words:
        return f"the certificate of {url} is for another name: use the name that it was made for"
    if "self-signed" in words or "unable to get" in words or "CERTIFICATE_VERIFY_FAILED" in words:
        return (
            f"the certificate of {url} is not signed by an authority that this machine trusts: name yours with "
            "--ca FILE or LLMGW_CA"
        )
    if "No such file" in words or "invalid path" in words or "NO_CERTIFICATE" in words or "PEM" in words:
        return "the file of --ca holds no certificate in PEM"
    return f"no secure connection to {url} comes about ({clean(words)[:200]})"


def reason(error: Exception) -> str:
    """Why there is no answer, as short as it can be said."""
    words = str(error)
    match = re.search(r"\[Errno \d+\] ([A-Za-z ]+)", words)
    if match:
        return match[1].strip().lower()
    if re.search(r"reset|aborted|broken|disconnected|closed", words, re.IGNORECASE):
        return BROKE
    return "no connection"
