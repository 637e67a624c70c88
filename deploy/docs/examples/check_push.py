"""How a webhook checks that a notification comes from its mediator, and only now."""

import hmac
import time


def is_from_mediator(key: bytes, signature: str, body: bytes, now_s: float | None = None) -> bool:
    """Check ``Poste-Signature`` for the body as received; one of five minutes ago is refused."""
    try:
        parts = dict(part.split("=", 1) for part in signature.split(","))
        age_s = abs((time.time() if now_s is None else now_s) - int(parts["t"]))
        wanted = hmac.new(key, parts["t"].encode() + b"." + body, "sha256").hexdigest()
        return hmac.compare_digest(wanted.encode(), parts["v1"].encode()) and age_s < 300  # noqa: PLR2004
    except (KeyError, ValueError):
        return False
