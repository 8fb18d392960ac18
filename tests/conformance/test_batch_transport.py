from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.flow.arena import Arena
from feedd.serve.instructions import Send
from feedd.serve.transport import InlineTransport, SlotTransport
from feedd.values import BatchReady, Cursor, Produced, Region, SlotRef
from feedd.wire import feedd_pb2 as pb

if TYPE_CHECKING:
    from feedd.serve.transport import BatchTransport

SLOT_BYTES = 16 * 1024


class Reader:
    """Understands what either transport writes, as a client would."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.messages: list[pb.StreamResponse] = []
        self.batches: list[tuple[pb.Batch, bytes]] = []

    async def write(self, message: bytes) -> None:
        """Take one message; a lease is read before the next one comes."""
        assert isinstance(message, bytes)
        response = pb.StreamResponse.FromString(message)
        self.messages.append(response)
        for batch in response.batches:
            payload = b""
            if not batch.inline:
                slot = SlotRef(batch.slot, batch.generation)
                payload = bytes(self._arena.view(slot)[: batch.size_bytes])
            self.batches.append((batch, payload))
        if response.HasField("chunk"):
            batch, payload = self.batches[-1]
            assert batch.inline
            assert response.chunk.seq == batch.seq
            assert response.chunk.offset == len(payload), "chunks must come in order, without gaps"
            self.batches[-1] = (batch, payload + response.chunk.data)


class Make(Protocol):
    """Builds one transport."""

    def __call__(self, reader: Reader, arena: Arena) -> BatchTransport:
        """Return it."""


def make_slot(reader: Reader, arena: Arena) -> BatchTransport:
    """Leases."""
    return SlotTransport(reader.write)


def make_inline(reader: Reader, arena: Arena) -> BatchTransport:
    """Chunks small enough that a batch takes several."""
    return InlineTransport(reader.write, arena.view, 1000)


TRANSPORTS = {"slot": make_slot, "inline": make_inline}
BOTH = pytest.mark.parametrize("name", TRANSPORTS)


async def _transfer(make: Make, payloads: list[bytes]) -> tuple[Reader, list[bool]]:
    with Arena(max(1, len(payloads)), SLOT_BYTES) as arena:
        reader = Reader(arena)
        transport = make(reader, arena)
        held = []
        for seq, payload in enumerate(payloads):
            slot = arena.take()
            assert slot is not None
            arena.view(slot)[: len(payload)] = payload
            batch = BatchReady(
                Cursor(1, seq * 2, ((seq, 3),)),
                4,
                (Region(0, len(payload)), Region(1, 2, 3, 4, (5, 6))),
                len(payload),
                bad_samples=seq,
                filtered=seq + 1,
            )
            held.append(await transport.send(seq, batch, slot))
        return reader, held


@BOTH
def test_the_name_is_the_metric_label(name: str) -> None:
    """A transport is called what the metrics call it."""
    with Arena(1, 1) as arena:
        assert TRANSPORTS[name](Reader(arena), arena).name == name


@BOTH
async def test_a_reader_gets_the_batch_whole(name: str) -> None:
    """Bytes, cursor, rows, regions and counts arrive, in order, for empty, small and multi-chunk batches."""
    payloads = [b"", b"x", bytes(range(250)) * 4, b"y" * 1001, bytes(SLOT_BYTES)]
    reader, _ = await _transfer(TRANSPORTS[name], payloads)
    assert [payload for _, payload in reader.batches] == payloads
    for seq, (batch, payload) in enumerate(reader.batches):
        assert (batch.seq, batch.rows, batch.size_bytes, batch.bad_samples) == (seq, 4, len(payload), seq)
        assert batch.filtered == seq + 1
        assert batch.cursor == pb.Cursor(epoch=1, step=2 * seq, anchor_window=seq, anchor_sample=3)
        assert batch.regions[0].values_bytes == len(payload)
        told = [getattr(batch.regions[1], f.name) for f in pb.FieldRegion.DESCRIPTOR.fields]
        assert told == [1, 2, 3, 4, [5, 6]]


@given(payloads=st.lists(st.binary(max_size=3000), max_size=5))
async def test_both_give_identical_batches(payloads: list[bytes]) -> None:
    """Whatever the batches hold, a reader cannot tell from their content how they came."""
    results = []
    for make in TRANSPORTS.values():
        reader, _ = await _transfer(make, payloads)
        for batch, _ in reader.batches:
            batch.ClearField("inline")
            batch.ClearField("slot")
            batch.ClearField("generation")
        results.append(reader.batches)
    assert results[0] == results[1]
    assert [payload for _, payload in results[0]] == payloads


async def test_who_holds_the_slot_afterwards() -> None:
    """A lease is the client's until it releases it; an inline batch leaves its slot free."""
    assert (await _transfer(make_slot, [b"a", b"b"]))[1] == [True, True]
    assert (await _transfer(make_inline, [b"a", b"b"]))[1] == [False, False]


async def test_leases_carry_slot_and_generation_and_no_bytes() -> None:
    """A lease says where to read; its message stays small however large the batch is."""
    reader, _ = await _transfer(make_slot, [bytes(SLOT_BYTES)] * 2)
    assert {(b.slot, b.generation) for b, _ in reader.batches} == {(0, 1), (1, 1)}
    assert all(message.ByteSize() < 100 for message in reader.messages)


async def test_several_leases_in_one_message() -> None:
    """Leases that are ready together travel together, in order."""
    with Arena(3, SLOT_BYTES) as arena:
        reader = Reader(arena)
        sends = []
        for seq in range(3):
            slot = arena.take()
            assert slot is not None
            sends.append(Send(seq, Produced(BatchReady(Cursor(0, seq), 1, (), 0), slot)))
        await SlotTransport(reader.write).send_many(sends)
        assert len(reader.messages) == 1
        assert [batch.cursor.step for batch, _ in reader.batches] == [0, 1, 2]


async def test_chunks_have_the_size_asked_for() -> None:
    """Every chunk but the last is full; an empty batch has none."""
    reader, _ = await _transfer(make_inline, [b"z" * 2500, b""])
    sizes = [len(message.chunk.data) for message in reader.messages if message.HasField("chunk")]
    assert sizes == [1000, 1000, 500]


async def test_an_oversize_batch_is_read_from_its_own_buffer() -> None:
    """What did not fit into the slot comes from the private buffer, the slot's bytes do not show."""
    with Arena(1, SLOT_BYTES) as arena:
        reader = Reader(arena)
        slot = arena.take()
        assert slot is not None
        private = memoryview(b"p" * (SLOT_BYTES + 5))
        batch = BatchReady(Cursor(), 1, (), private.nbytes, oversize=private)
        held = await InlineTransport(reader.write, arena.view, 4096).send(0, batch, slot)
        assert not held
        assert reader.batches[0][1] == private
