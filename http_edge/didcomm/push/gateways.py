"""The gateways to push services, one of which the operator may have set."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from actors.host.clock import Clock, system_clock
from http_edge.crypto.private_files import KeyFileRefused
from http_edge.settings.settings import Push

if TYPE_CHECKING:
    from http_edge.didcomm.push.fcm import Fcm
    from http_edge.didcomm.push.webhook import Webhook

PushGateway: TypeAlias = "Fcm | Webhook"
"""The way to a push service; whatever the service does is an outcome, never an exception."""


def open_gateway(settings: Push, *, clock: Clock = system_clock) -> PushGateway | None:
    """Open the gateway; None if no push service is set. It connects only when it sends.

    Raises:
        KeyFileRefused: a file of keys cannot be used as it is; says what to do about it.
        OSError: a file of keys cannot be read.
    """
    # Imported here, with all of aiohttp: the main process opens one, and mostly there is none.
    if settings.webhook_url is not None:
        from http_edge.didcomm.push.webhook import Webhook  # noqa: PLC0415

        return Webhook(settings.webhook_url, settings, clock)
    if settings.webhook_key_file is not None:
        # Refused here and not as settings: in a container every command has the file in its
        # environment, and only the mediator has the URL.
        raise KeyFileRefused(
            f"{settings.webhook_key_file} signs nothing: set push.webhook_url, or remove"
            " push.webhook_key_file"
        )
    if settings.fcm_credentials_file is not None:
        from http_edge.didcomm.push.fcm import Fcm  # noqa: PLC0415

        return Fcm(settings.fcm_credentials_file, settings, clock)
    return None
