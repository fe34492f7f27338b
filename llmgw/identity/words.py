"""Why a connection between the parts does not come about, in words with the remedy."""

import ssl

from llmgw.identity.names import IdentityError

JOIN = "join it anew (llmgw join), or renew it with llmgw ctl cert renew"

_VERIFICATION = {
    2: "the other side's certificate is not signed by an authority that we trust{foreign}",
    7: "the signature of the other side's certificate is wrong: is it damaged?",
    9: "the other side's certificate is not valid yet: are the clocks of both machines right?",
    10: f"the other side's certificate has expired: {JOIN}; or the clock of this machine is wrong",
    18: "the other side's certificate is signed by itself, not by an authority that we trust{foreign}",
    19: "the other side's certificate is of an authority that we do not trust{foreign}",
    20: "the other side's certificate is of an authority that we do not trust{foreign}",
    21: "the other side's certificate is of an authority that we do not trust{foreign}",
    22: "the other side's chain of certificates is too long",
    24: "the other side's certificate is signed by what is no authority",
    25: "the other side's certificate is signed by an authority that may not sign it",
    26: "the other side's certificate is for another purpose: it is a node's or a router's where a control plane's "
    "should be; is the address right?",
}
_FOREIGN = ": it belongs to another installation, or authorities.pem is old on either side"
_UNVERIFIED = "the other side's certificate cannot be verified"

_ALERTS = {
    "CERTIFICATE_REQUIRED": "the other side demands a certificate, and we showed none",
    "CERTIFICATE_EXPIRED": f"the other side says that our certificate has expired: {JOIN}; or its clock is wrong",
    "CERTIFICATE_REVOKED": f"the other side says that our certificate is revoked: {JOIN}",
    "UNKNOWN_CA": "the other side does not trust the authority of our certificate: it belongs to another "
    "installation, or authorities.pem is old on either side",
    "BAD_CERTIFICATE": "the other side refuses our certificate: it may not be valid yet there (are the clocks right?) "
    "or be damaged",
    "UNSUPPORTED_CERTIFICATE": "the other side refuses our certificate: it is for another purpose, such as a node's "
    "where a control plane's should be",
    "CERTIFICATE_UNKNOWN": "the other side cannot verify our certificate",
    "DECRYPT_ERROR": "the other side says that our signature is wrong: do key.pem and certificate.pem belong together?",
    "DECRYPTION_FAILED": "what the other side got was damaged on the way",
    "ACCESS_DENIED": "the other side refuses our certificate",
    "PROTOCOL_VERSION": "the other side does not speak our version of TLS: TLS 1.3 is needed",
    "HANDSHAKE_FAILURE": "the other side could not agree on how to encrypt: TLS 1.3 is needed",
    "INTERNAL_ERROR": "the other side had an error of its own: its log has more",
    "UNRECOGNIZED_NAME": "the other side does not know the name that it was asked for",
}
"""By what follows ``ALERT_`` in OpenSSL's reason."""

_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other side showed no certificate: it must be a node's or a router's; "
    "make one with llmgw join",
    "WRONG_VERSION_NUMBER": "the other side does not speak TLS there: is the address right?",
    "HTTP_REQUEST": "the other side spoke HTTP without TLS: https is needed here",
    "UNSUPPORTED_PROTOCOL": "the other side does not speak our version of TLS: TLS 1.3 is needed",
    "VERSION_TOO_LOW": "the other side does not speak our version of TLS: TLS 1.3 is needed",
    "NO_SHARED_CIPHER": "there is no way to encrypt that both sides know: TLS 1.3 is needed",
    "EXCESSIVE_MESSAGE_SIZE": "the other side sent more than a handshake can hold",
    "PACKET_LENGTH_TOO_LONG": "the other side sent what is no TLS: is the address right?",
    "RECORD_LAYER_FAILURE": "what came was damaged on the way, or is no TLS",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "what came was damaged on the way",
    "KEY_VALUES_MISMATCH": "key.pem is not the key of certificate.pem",
    "UNEXPECTED_EOF_WHILE_READING": "the other side closed the connection in the middle",
}


def explain(error: BaseException | None) -> str:
    """What a failed handshake or a broken secure connection means: who found what wrong,
    and what to do. One line; never a traceback, nothing secret."""
    if isinstance(error, IdentityError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        words = _VERIFICATION.get(error.verify_code)
        return words.format(foreign=_FOREIGN) if words else f"{_UNVERIFIED} ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return _secure(error)
    if isinstance(error, TimeoutError):
        return "the other side did not answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: is it running, and is the address right?"
    if isinstance(error, ConnectionError):
        # Our own refusals carry their words without an errno.
        return str(error) if error.errno is None and str(error) else "the other side closed the connection"
    if isinstance(error, OSError):
        return error.strerror or str(error) or "the connection failed"
    return str(error)


def _secure(error: ssl.SSLError) -> str:
    reason = getattr(error, "reason", None) or ""  # absent if Python made it
    _, alert, name = reason.partition("ALERT_")
    if alert:
        return _ALERTS.get(name, f"the other side ended the handshake ({name.replace('_', ' ').lower()})")
    if reason in _REASONS:
        return _REASONS[reason]
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the other side closed the connection"
    return f"no secure connection comes about ({(reason or str(error)).replace('_', ' ').lower()[:200]})"
