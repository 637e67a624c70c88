"""A page is the same whether it is packed record by record or in one piece."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from actors.core.replies import MessagesPage, WaitingMessage
from actors.host.packed_page import FoundPage, pack_page, unpack_page
from eventstore.log.event_log import PublicEvent, PublicEventsPage, SavedEvent, SavedEventsPage
from tests.examples import examples

_TEXTS = st.text(max_size=5)
_TAGS = st.lists(_TEXTS, max_size=2)
_SECONDS = st.integers(0, 2**40) | st.floats(0, 1e12)
_TOTALS = st.integers(0, 2**40)


def _pages() -> st.SearchStrategy[FoundPage]:
    messages = st.builds(WaitingMessage, _TEXTS, _TEXTS, st.binary(max_size=9))
    saved = st.builds(SavedEvent, _TEXTS, _TEXTS, _TAGS, _SECONDS)
    public = st.builds(PublicEvent, _TEXTS, _TEXTS, _TEXTS, _TAGS, _SECONDS, _TEXTS)
    return st.one_of(
        st.builds(MessagesPage, st.lists(messages, max_size=4), _TOTALS),
        st.builds(SavedEventsPage, st.lists(saved, max_size=4), _TOTALS),
        st.builds(PublicEventsPage, st.lists(public, max_size=4), _TOTALS),
    )


@examples(100)
@given(_pages())
def test_a_page_that_is_packed_record_by_record_is_the_page_for_every_reader(
    page: FoundPage,
) -> None:
    packed = pack_page(page)
    # Both ways with those who pack and unpack it in one piece: hosts and edges of other releases.
    assert msgspec.msgpack.decode(packed, type=type(page)) == page
    assert unpack_page(packed) == page
    assert unpack_page(memoryview(msgspec.msgpack.encode(page))) == page
