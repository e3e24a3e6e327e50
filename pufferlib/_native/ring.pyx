"""The shared words of ring.h, as one process sees them."""

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
    """The shared words of ring.h in a piece of memory: a uint8 array of ``nbytes(…)``, zeroed at first.

    All processes pass the same numbers. box_size: words that each worker's mailbox holds; pipe_size: bytes that the pipe
    for each worker's infos holds; both powers of two.
    """

    def __init__(
        self, memory, uint64_t num_blocks, uint64_t block_size, uint32_t num_workers, uint32_t box_size,
        uint32_t pipe_size
    ):
        self.memory = memory
        puf_ring_lay(&self.c, puf_data(memory), num_blocks, block_size, num_workers, box_size, pipe_size)
        self.store = InfoStore(num_workers)

    @staticmethod
    def nbytes(
        uint64_t num_blocks, uint64_t block_size, uint32_t num_workers, uint32_t box_size, uint32_t pipe_size
    ):
        """Return how many bytes a ring takes."""
        cdef puf_ring ring
        return puf_ring_lay(&ring, NULL, num_blocks, block_size, num_workers, box_size, pipe_size)

    def hold_infos(self):
        """Keep infos as objects extra_leaves the rows, since workers and parent are one process."""
        self.infos = [None] * self.c.num_slots

    def rewind(self, uint64_t head):
        """Forget all rows from block number ``head`` on, counted without end; only while no worker is at work."""
        puf_rewind(&self.c, head)
        if self.infos is not None:
            self.hold_infos()

    def empty_box(self, uint32_t worker):
        """Empty the mailbox of a worker that is gone."""
        puf_empty_box(&self.c, worker)
        self.store.forget_worker(worker)

    def request(self, uint32_t worker, env_ids, slots):
        """Post requests to step environments into slots (or CLAIM); False, and nothing is posted, if there is no room."""
        cdef uint64_t count = 0
        if puf_room(&self.c, worker) < <uint64_t>len(env_ids):
            return False
        for env_id, slot in zip(env_ids, slots):
            puf_lay(&self.c, worker, count, puf_request(env_id, slot))
            count += 1
        puf_post(&self.c, worker, count)
        return True

    def claim(self, uint64_t env_id):
        """Claim the next slot for an environment, in place of its worker, and return it."""
        return puf_claim(&self.c, env_id) % self.c.num_slots

    def commit(self, uint64_t slot, bint over, bint has_info=False):
        """Hand over the rows of a slot that the parent itself has written."""
        self.c.flags[slot] = (PUF_OVER if over else 0) | (PUF_INFO if has_info else 0)
        puf_commit(&self.c, slot)
        puf_count(&self.c, slot // self.c.block_size, 1)

    def repair_count(self, uint64_t head):
        """Set right the count of block number ``head``, the last to be received; False while a worker may add to it."""
        cdef int yields
        for yields in range(YIELDS):  # it is a matter of nanoseconds, unless a worker is stopped just then
            if puf_mend(&self.c, head):
                return True
            sched_yield()
        return False

    def revoke(self, uint64_t slot):
        """Take back the rows of an assigned slot of the block that is not full yet; only where nobody else writes."""
        puf_revoke(&self.c, slot)

    def put_info(self, uint32_t worker, uint32_t env_id, bytes payload):
        """Send bytes with the rows that an environment is about to commit; False if there is no room."""
        return puf_put_info(&self.c, worker, env_id, payload, <uint64_t>len(payload))

    cpdef list take_infos(self):
        """Keep the records that have come, and return what else has, pickled, as (worker, env_id, payload)."""
        cdef uint32_t worker, env_id = 0, nbytes = 0
        cdef unsigned char first = 0
        cdef bytes payload
        cdef list taken = []
        for worker in range(self.c.num_workers):
            while puf_peek_info(&self.c, worker, &env_id, &nbytes, &first):
                if first == RECORDS:
                    puf_take_info(&self.c, worker, self.store.room(env_id, nbytes), nbytes)
                    self.store.arrive(worker, env_id)
                    continue
                payload = PyBytes_FromStringAndSize(NULL, nbytes)
                puf_take_info(&self.c, worker, PyBytes_AS_STRING(payload), nbytes)
                if first == KEYS:
                    self.store.learn(worker, payload)
                else:
                    taken.append((worker, env_id, payload))
        return taken

    def drop_infos(self, env_id=None):
        """Forget the records that have come for an environment's next row; None: of all."""
        if env_id is None:
            self.store.clear()
        else:
            self.store.drop(env_id)

    def announce(self, bint urgent):
        """Have the parent look at its sockets: at once, or once the block is full that the news belongs to."""
        if urgent:
            puf_announce_mail(&self.c)
        else:
            puf_announce_note(&self.c)
