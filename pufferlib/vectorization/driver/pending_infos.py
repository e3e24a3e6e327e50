"""PendingInfos: the infos of rows that have not been received yet.

Infos that the compiled path packs into records, instead of pickling them, stay in the Ring until their rows are
received.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pufferlib.util.annotations import Info
from pufferlib.vectorization.core.frames import infos_messages
from pufferlib.vectorization.core.messages import InfosMessage, Message

if TYPE_CHECKING:
    from pufferlib._native.ring import Ring

__all__ = ["PendingInfos"]


class PendingInfos:
    """The infos of rows that have not been received yet.

    ring: the Ring of the compiled path, through which pickled infos and records arrive; None on the portable path.
    by_env: the infos that have arrived, by env id. failures: a Failed message for each payload that could not be
    unpickled; the dispatcher takes them.
    """

    def __init__(self, ring: Ring | None) -> None:
        self._ring = ring
        self.by_env: dict[object, list[Info]] = {}
        self.failures: list[Message] = []

    def add(self, infos: Iterable[Info]) -> None:
        """Store infos, each of which names its environment under "env_id"."""
        for info in infos:
            self.by_env.setdefault(info["env_id"], []).append(info)

    def replace(self, env_id: int, info: Info) -> None:
        """Discard an environment's infos, and store another info in their place."""
        self.drop([env_id])
        self.by_env[env_id] = [info]

    def collect(self, pickled: list[tuple[int, int, bytes]] | None = None) -> bool:
        """Collect the pickled infos that arrived with rows; return False if some cannot be unpickled.

        pickled: infos that have already been taken from the ring, as (worker, env_id, payload) tuples; by default, this
        call takes them from the ring.
        """
        assert self._ring is not None, "on the portable path infos arrive in messages"
        readable = True
        for message in infos_messages(self._ring.take_infos() if pickled is None else pickled):
            if isinstance(message, InfosMessage):
                self.add(message.infos)
            else:
                self.failures.append(message)
                readable = False
        return readable

    def take(self, env_ids: Sequence[int]) -> list[Info]:
        """Remove and return the infos of these environments' rows, in the order of env_ids."""
        if not self.by_env:
            return []
        return [info for env_id in env_ids for info in self.by_env.pop(env_id, ())]

    def drop(self, env_ids: Iterable[int]) -> None:
        """Discard these environments' infos, including records, because their rows will never be received."""
        for env_id in env_ids:
            self.by_env.pop(env_id, None)
            if self._ring is not None:
                self._ring.drop_infos(env_id)

    def clear(self) -> None:
        """Discard all infos, including records, because their rows are discarded as well."""
        self.by_env.clear()
        if self._ring is not None:
            self._ring.drop_infos()
