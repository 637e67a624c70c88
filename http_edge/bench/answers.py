"""What writers heard, and what follows from it: when all were served again, what was lost. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple


class Heard(Enum):
    """What a writer knows about a message."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Answer(NamedTuple):
    """One message of a writer: when it was sent and answered, in seconds of one clock."""

    text: str
    sent_s: float
    answered_s: float
    heard: Heard
    said: str = ""


class Judgement(NamedTuple):
    """What is wrong with what was fetched; all 0 where nothing is."""

    lost: int
    duplicated: int
    unexpected: int


def served_again_s(writers: Iterable[Sequence[Answer]], since_s: float) -> float | None:
    """Seconds from a fault until every writer was served, for good as far as is known.

    For each writer the first accepted message after the last one that was not; sent after the
    fault. None as long as one of them waits for that.
    """
    latest = 0.0
    for answers in writers:
        after = [answer for answer in answers if answer.answered_s >= since_s]
        failed = [at for at, answer in enumerate(after) if answer.heard is not Heard.ACCEPTED]
        rest = after[failed[-1] + 1 :] if failed else after
        served = [answer.answered_s for answer in rest if answer.sent_s >= since_s]
        if not served:
            return None
        latest = max(latest, served[0] - since_s)
    return latest


def judged(answers: Iterable[Answer], fetched: Iterable[str]) -> Judgement:
    """Hold what was fetched against what writers heard.

    Accepted ones are there exactly once; those of unknown outcome once or not at all; refused
    ones, and others, never.
    """
    heard = {answer.text: answer.heard for answer in answers}
    times = Counter(fetched)
    return Judgement(
        lost=sum(how is Heard.ACCEPTED and not times[text] for text, how in heard.items()),
        duplicated=sum(count - 1 for count in times.values()),
        unexpected=sum(heard.get(text, Heard.REFUSED) is Heard.REFUSED for text in times),
    )


def between(writers: Iterable[Sequence[Answer]], since_s: float, until_s: float) -> list[Answer]:
    """The answers to what was sent in this time."""
    return [
        answer for answers in writers for answer in answers if since_s <= answer.sent_s < until_s
    ]


def unaccepted(answers: Iterable[Answer]) -> Mapping[str, int]:
    """How often which answer came that was no success."""
    return Counter(answer.said for answer in answers if answer.heard is not Heard.ACCEPTED)
