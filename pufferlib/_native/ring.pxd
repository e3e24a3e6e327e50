"""The declarations of ring.h for Cython, and the class that both ends of the ring use."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from pufferlib._native.infos cimport InfoStore

cdef extern from "ring.h" nogil:
    const uint32_t PUF_CLAIM, PUF_CONTROL, PUF_SHARE
    enum: PUF_OVER, PUF_INFO, PUF_EPISODE, PUF_HELD
    ctypedef struct puf_waiter:
        pass
    ctypedef struct puf_ring:
        uint64_t num_blocks, block_size, num_slots
        uint32_t num_workers, box_size, pipe_size
        puf_waiter *waiter
        unsigned char *flags
    size_t puf_ring_layout(puf_ring *, char *, uint64_t, uint64_t, uint32_t, uint32_t, uint32_t)
    bint puf_put_info(puf_ring *, uint32_t, uint32_t, const char *, uint64_t)
    bint puf_has_room_for_info(puf_ring *, uint32_t, uint64_t)
    bint puf_peek_info(puf_ring *, uint32_t, uint32_t *, uint32_t *, unsigned char *)
    void puf_take_info(puf_ring *, uint32_t, char *, uint32_t)
    void puf_rewind(puf_ring *, uint64_t)
    void puf_announce_mail(puf_ring *)
    void puf_announce_note(puf_ring *)
    uint32_t puf_mail(puf_ring *)
    uint32_t puf_notes(puf_ring *)
    uint64_t puf_request(uint32_t, uint32_t)
    bint puf_has_room(puf_ring *, uint32_t, uint64_t)
    void puf_stage(puf_ring *, uint32_t, uint64_t, uint64_t)
    void puf_post(puf_ring *, uint32_t, uint64_t)
    bint puf_take(puf_ring *, uint32_t, uint64_t *)
    bint puf_await_post(puf_ring *, uint32_t, uint64_t *, int, int64_t)
    bint puf_has_untaken(puf_ring *, uint32_t, uint64_t *)
    void puf_empty_box(puf_ring *, uint32_t)
    uint64_t puf_claim(puf_ring *, uint64_t)
    void puf_commit(puf_ring *, uint64_t)
    void puf_mark_uncounted(puf_ring *, uint32_t, uint64_t)
    void puf_count(puf_ring *, uint64_t, uint64_t)
    bint puf_repair_count(puf_ring *, uint64_t)
    void puf_revoke(puf_ring *, uint64_t)
    void puf_begin(puf_ring *, uint64_t, int64_t)
    int64_t puf_filled_in_ns(puf_ring *, uint64_t)
    bint puf_is_full(puf_ring *, uint64_t)
    bint puf_is_done(puf_ring *, uint64_t)
    bint puf_is_stuck(puf_ring *, uint64_t, uint64_t)
    bint puf_is_done_block(puf_ring *, uint64_t)
    uint64_t puf_total(puf_ring *)
    uint64_t puf_counted(puf_ring *, uint64_t)
    bint puf_is_asleep(puf_ring *, uint32_t)
    bint puf_await_block(puf_ring *, uint64_t, uint32_t, int, int64_t)
    void puf_await_row(puf_ring *, uint64_t, uint32_t, int64_t)
    int64_t puf_now_ns()
    int64_t puf_about_now_ns()
    void puf_store_relaxed(int64_t *, int64_t)


cdef class Ring:
    cdef puf_ring c
    cdef object memory
    cdef list infos  # the infos of each slot's rows where workers run in this process, else None
    cdef readonly InfoStore store  # the infos that other processes have sent

    cpdef list take_infos(self)
