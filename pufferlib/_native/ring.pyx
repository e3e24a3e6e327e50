"""The ring of ring.h as a Python class."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from pufferlib._native.arrays cimport puf_data
from pufferlib._native.infos cimport KEYS, RECORDS, InfoStore

__all__ = ["CLAIM", "CONTROL", "Ring"]

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef enum:
    YIELDS = 100

CLAIM = PUF_CLAIM
CONTROL = PUF_CONTROL


@cython.final
cdef class Ring:
    """The shared words of ring.h, in an array of memory: uint8, (``nbytes(…)``,), initially zero.

    All processes must pass the same numbers. box_size: words in each worker's mailbox; pipe_size: bytes in the pipe for
    each worker's infos. Both are powers of two.
    """

    def __init__(
        self, memory, uint64_t num_blocks, uint64_t block_size, uint32_t num_workers, uint32_t box_size,
        uint32_t pipe_size
    ):
        self.memory = memory
        puf_ring_layout(&self.c, puf_data(memory), num_blocks, block_size, num_workers, box_size, pipe_size)
        self.store = InfoStore(num_workers)

    @staticmethod
    def nbytes(
        uint64_t num_blocks, uint64_t block_size, uint32_t num_workers, uint32_t box_size, uint32_t pipe_size
    ):
        """Return the size of a ring in bytes."""
        cdef puf_ring ring
        return puf_ring_layout(&ring, NULL, num_blocks, block_size, num_workers, box_size, pipe_size)

    def hold_infos(self):
        """Keep infos as objects, one entry per slot, since the workers run in this process."""
        self.infos = [None] * self.c.num_slots

    def rewind(self, uint64_t head):
        """Discard all rows from block number ``head`` on. Call this only while no worker runs.

        Block numbers grow without end.
        """
        puf_rewind(&self.c, head)
        if self.infos is not None:
            self.hold_infos()

    def empty_box(self, uint32_t worker):
        """Empty the mailbox and pipe of a worker that has ended."""
        puf_empty_box(&self.c, worker)
        self.store.forget_worker(worker)

    def request(self, uint32_t worker, env_ids, slots):
        """Post requests to step environments into slots (or CLAIM); return False, posting none, if not all fit."""
        cdef uint64_t count = 0
        if not puf_has_room(&self.c, worker, len(env_ids)):
            return False
        for env_id, slot in zip(env_ids, slots):
            puf_stage(&self.c, worker, count, puf_request(env_id, slot))
            count += 1
        puf_post(&self.c, worker, count)
        return True

    def claim(self, uint64_t env_id):
        """Claim the next slot for an environment on behalf of its worker, and return the slot."""
        return puf_claim(&self.c, env_id) % self.c.num_slots

    def commit(self, uint64_t slot, bint over, bint has_info=False):
        """Commit and count the rows of a slot that the parent itself has written."""
        self.c.flags[slot] = (PUF_OVER if over else 0) | (PUF_INFO if has_info else 0)
        puf_commit(&self.c, slot)
        puf_count(&self.c, slot // self.c.block_size, 1)

    def repair_count(self, uint64_t head):
        """Repair the count of block number ``head``, the last received; return False while a worker may add to it."""
        cdef int yields
        for yields in range(YIELDS):  # takes nanoseconds unless a worker is stopped at that moment
            if puf_repair_count(&self.c, head):
                return True
            sched_yield()
        return False

    def revoke(self, uint64_t slot):
        """Revoke the rows of an assigned slot whose block is not full; call it only while no worker writes there."""
        puf_revoke(&self.c, slot)

    def put_info(self, uint32_t worker, uint32_t env_id, bytes payload):
        """Send bytes with the rows that an environment is about to commit; return False if they do not fit."""
        return puf_put_info(&self.c, worker, env_id, payload, <uint64_t>len(payload))

    cpdef list take_infos(self):
        """Store the records that have arrived; return pickled infos as a list of (worker, env_id, payload)."""
        cdef uint32_t worker, env_id = 0, nbytes = 0
        cdef unsigned char first = 0
        cdef bytes payload
        cdef list pickled = []
        for worker in range(self.c.num_workers):
            while puf_peek_info(&self.c, worker, &env_id, &nbytes, &first):
                if first == RECORDS:
                    puf_take_info(&self.c, worker, self.store.reserve(env_id, nbytes), nbytes)
                    self.store.resolve_schemas(worker, env_id)
                    continue
                payload = PyBytes_FromStringAndSize(NULL, nbytes)
                puf_take_info(&self.c, worker, PyBytes_AS_STRING(payload), nbytes)
                if first == KEYS:
                    self.store.add_schema(worker, payload)
                else:
                    pickled.append((worker, env_id, payload))
        return pickled

    def drop_infos(self, env_id=None):
        """Discard the records that have arrived for an environment's next row, or by default for all environments'."""
        if env_id is None:
            self.store.clear()
        else:
            self.store.drop(env_id)

    def announce(self, bint urgent):
        """Make the parent read its sockets: at once if urgent, else when the block of the message is full."""
        if urgent:
            puf_announce_mail(&self.c)
        else:
            puf_announce_note(&self.c)
