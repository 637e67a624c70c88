"""Devices to notify, and the secrets that no log line may have."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from actors.core.commands import PushDevice
from http_edge.didcomm.push.service import Notification

TOKEN: Final = "a-device-token-that-no-log-has"
ANDROID: Final = Notification(PushDevice("fcm", TOKEN, "Android"), 3)
IPHONE: Final = Notification(PushDevice("apns", TOKEN, "iOS"), 1)
KEY: Final = b"0123456789abcdef0123456789abcdef"


def private(path: Path, content: bytes) -> Path:
    """Write a file for its owner alone."""
    path.write_bytes(content)
    path.chmod(0o600)
    return path
