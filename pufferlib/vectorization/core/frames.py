"""Frames: messages as bytes.

A frame consists of the length of its payload, its kind, and the payload. The payload of a Step, and of a Done without
infos, is a sequence of 32-bit words; any other payload is a pickle.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pufferlib.util.annotations import Info
from pufferlib.vectorization.core.messages import Call, Done, Failed, InfosMessage, Message, Reply, Reset

__all__ = [
    "STEP",
    "Frame",
    "complete_frames",
    "done_frame",
    "infos_messages",
    "infos_payload",
    "messages_of",
    "pickled_frame",
    "sealed_frame",
    "step_frame",
    "steps_of",
]

PICKLE, STEP, DONE = range(3)
_HEADER = struct.Struct("=IB")
_MAX_NBYTES = 0xFFFFFFFF


class Frame(NamedTuple):
    """A message in a byte stream."""

    kind: int
    payload: bytes


def pickled_frame(message: object) -> bytes:
    """Pickle a message into a frame, with cloudpickle if pickle refuses it (lambdas, local classes).

    Raises ValueError for a message that is too large for a frame. Errors raised by cloudpickle propagate.
    """
    payload = _pickled(message)
    if len(payload) > _MAX_NBYTES:
        raise ValueError(f"a message of {len(payload)} bytes is more than the {_MAX_NBYTES} that fit into a frame")
    return _HEADER.pack(len(payload), PICKLE) + payload


def _pickled(message: object, *, by_value: bool = False) -> bytes:
    if not by_value:
        with contextlib.suppress(Exception):
            return pickle.dumps(message, protocol=5)
    import cloudpickle

    return bytes(cloudpickle.dumps(message))


class UserPickle(NamedTuple):
    """A pickled message that contains users' objects, which the receiver may fail to unpickle.

    ticket: the ticket of a Call or Reply; if unpickling fails, the receiver gets a failed Reply with this ticket
    instead. env_ids: the environments of any other message, whose ticket is None; if unpickling fails, the receiver
    gets a Failed for each of them instead.
    """

    payload: bytes
    env_ids: list[int]
    ticket: int | None


def sealed_frame(message: Reset | Call | Done | InfosMessage | Reply, *, by_value: bool = False) -> bytes:
    """Return the frame of a message that contains users' objects, which the receiver may fail to unpickle.

    by_value: pickle objects defined in ``__main__`` by value, for a receiver whose ``__main__`` is different.
    """
    env_ids: list[int] = []
    if isinstance(message, Reset):
        env_ids = [order.env_id for order in message.orders]
    elif isinstance(message, (Done, InfosMessage)):
        env_ids = message.env_ids
    ticket = message.ticket if isinstance(message, (Call, Reply)) else None
    return pickled_frame(UserPickle(_pickled(message, by_value=by_value), env_ids, ticket))


def step_frame(env_ids: Sequence[int], slots: Sequence[int]) -> bytes:
    """Return the frame of a Step: environment ``env_ids[i]`` writes its rows to slot ``slots[i]``."""
    words = [*env_ids, *slots]
    return _HEADER.pack(4 * len(words), STEP) + struct.pack(f"={len(words)}I", *words)


def steps_of(frame: Frame) -> tuple[list[int], list[int]]:
    """Return the env ids and slots of a step frame."""
    words = list(struct.unpack(f"={len(frame.payload) // 4}I", frame.payload))
    return words[: len(words) // 2], words[len(words) // 2 :]


def done_frame(message: Done) -> bytes:
    """Return the frame of a Done: 32-bit words, or a pickle if it has infos."""
    if message.infos:
        return sealed_frame(message)
    words = [env_id * 2 + over for env_id, over in zip(message.env_ids, message.overs, strict=True)]
    return _HEADER.pack(4 * len(words), DONE) + struct.pack(f"={len(words)}I", *words)


def infos_payload(infos: list[Info]) -> bytes:
    """Serialize infos that are sent through shared memory with their rows."""
    return _pickled(infos)


def infos_messages(payloads: Iterable[tuple[int, int, bytes]]) -> list[InfosMessage | Failed]:
    """Return an InfosMessage for each payload, or a Failed for one that cannot be unpickled.

    payloads: the infos that came with rows, as (worker, env_id, payload) tuples.
    """
    messages: list[InfosMessage | Failed] = []
    for worker, env_id, payload in payloads:
        try:
            messages.append(InfosMessage([env_id], pickle.loads(payload)))
        except Exception as error:  # any error of the user's object
            messages.append(Failed.of(env_id, worker, "unpickling", error))
    return messages


def messages_of(frame: Frame, worker: int) -> list[Message]:
    """Return the messages in a frame of any kind except STEP.

    If a UserPickle cannot be unpickled, returns a failed Reply if the message has a ticket, otherwise a Failed for
    each of its environments. worker: the worker's number, for these failures.
    """
    if frame.kind == DONE:
        words = struct.unpack(f"={len(frame.payload) // 4}I", frame.payload)
        return [Done([word >> 1 for word in words], [bool(word & 1) for word in words], [])]
    message = pickle.loads(frame.payload)
    if not isinstance(message, UserPickle):
        return [message]
    try:
        return [pickle.loads(message.payload)]
    except Exception as error:  # any error of the user's object
        if message.ticket is not None:
            return [Reply(message.ticket, worker, [], Failed.of(None, worker, "unpickling", error))]
        return [Failed.of(env_id, worker, "unpickling", error) for env_id in message.env_ids]


def complete_frames(incoming: bytearray) -> Iterator[Frame]:
    """Yield the complete frames at the start of a buffer and remove them from it."""
    while len(incoming) >= _HEADER.size:
        nbytes, kind = _HEADER.unpack_from(incoming)
        stop = _HEADER.size + nbytes
        if len(incoming) < stop:
            return
        payload = bytes(incoming[_HEADER.size : stop])
        del incoming[:stop]
        yield Frame(kind, payload)
