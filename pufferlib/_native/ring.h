/* The shared words between send and recv: slots that rows are written to, mailboxes that hold requests, and the futexes
 * that the parent and the workers sleep on. Plain C11 without Python, so that ThreadSanitizer can check it
 * (tests/helpers/ring_harness.c).
 *
 * A block is one batch being filled; a slot is one environment's part of it. Blocks are filled and received in order,
 * in a circle. A ticket numbers slots without end: ticket t is slot t mod num_slots in generation t / num_slots.
 *
 * Slots are filled in one of two ways. Assigned: the request names the slot (synchronous batches, where the slot is the
 * environment's number, and batches in the order of sending); workers do not compete. Claimed: a worker that has
 * finished a step takes the next slot (a pool).
 *
 * The word of a slot is FREE(generation) or CLAIMED(generation, env). Writing its row makes it FREE(generation + 1),
 * which therefore means DONE(generation); nothing has to be cleared between generations. No slot is claimed again while
 * its row is unread. Counting ensures that, without a check: num_blocks = ceil(num_envs / block_size) + 2 are two
 * batches with the learner plus one outstanding row of every environment, and an environment gets no request before its
 * last row was received.
 *
 * Memory order. These orders are needed, and these operations give them:
 *   a row before its reading       a writer stores the row, then the slot's word (release), then adds to the block's
 *                                  count (seq_cst). The parent loads the count; all adds are read-modify-writes, so the
 *                                  last one it sees continues the release sequences of all before it: when the count
 *                                  is full, every row happens before the reading.
 *   a reading before the next row  the parent reads a block, later posts requests (seq_cst store of a mailbox's tail).
 *                                  A worker loads the tail, steps, claims. The ticket reaches a slot of that block
 *                                  again only after claims that follow such a request. Each claim is an acq_rel
 *                                  compare-exchange on a word, and each step of the ticket (acq_rel) is made by a
 *                                  thread that made that claim or saw it (acquire). A thread that loads the ticket at
 *                                  a slot (acquire) therefore comes after all claims before it, and after the reading.
 *                                  This is why a claim must not be relaxed, although it only seems to reserve a number.
 *                                  An assigned slot arrives with the request itself.
 *   no lost wake-up                a sleeper stores `asleep`, then checks its condition again; the other side changes
 *                                  the condition, then loads `asleep`. Only seq_cst orders a store before a later load,
 *                                  so both pairs are seq_cst.
 *   a count before its repair      a worker killed between a row's word and the block's count leaves the count short.
 *                                  Each worker sets `uncounted` before it stores a word, and clears it after the add
 *                                  (release). The parent has seen the words of the block (acquire), so it sees the set
 *                                  flag; where it sees the cleared one (acquire), it sees the count too. Once no living
 *                                  worker has its flag set, the missing rows are those of dead workers. The parent adds
 *                                  them before the block can be claimed again (puf_repair_count).
 * There are no stand-alone fences: ThreadSanitizer does not model them. Futexes are not FUTEX_PRIVATE, because several
 * processes map this memory.
 */
#ifndef PUF_RING_H
#define PUF_RING_H

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* On other platforms 64-bit atomics may be locks private to a process, and futexes may have another timespec. */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(long) == 8, "a 64-bit platform is needed; others run plain Python");

#define PUF_LINE 64 /* words that different processes write lie on separate cache lines */
#define PUF_GENERATION_BITS 44
#define PUF_CLAIM 0xFFFFFFFFu   /* instead of a slot: claim one */
#define PUF_CONTROL 0xFFFFFFFFu /* instead of an environment: read a frame from the socket */
#define PUF_SHARE 0xFFFFFFFEu   /* instead of an environment: the worker's share; the slot is the block's number */

enum { PUF_AWAKE, PUF_FOR_BLOCKS, PUF_FOR_ROWS }; /* what wakes the sleeper; any post wakes a worker */

typedef struct {
    _Atomic uint32_t asleep;
    _Atomic uint32_t bell; /* the futex; only counts up */
    _Atomic uint32_t mail;  /* of the parent: frames in sockets that it should read at once; only counts up */
    _Atomic uint32_t notes; /* of the parent: infos in sockets, which can wait until their block is full */
    char line[PUF_LINE - 4 * sizeof(uint32_t)];
} puf_waiter;

typedef struct {
    puf_waiter waiter; /* the worker sleeps on this */
    _Atomic uint64_t tail; /* words posted; written by the parent */
    uint64_t seen_head; /* the head when the parent last read it, and so never more than it is */
    char tail_line[PUF_LINE - 2 * sizeof(uint64_t)];
    _Atomic uint64_t head; /* words taken; written by the worker */
    _Atomic uint64_t uncounted; /* whether the worker has rows that are written but not counted yet */
    char head_line[PUF_LINE - 2 * sizeof(uint64_t)];
} puf_box;

typedef struct {
    _Atomic uint64_t count; /* environments whose rows were written to this block, over all generations */
    _Atomic int64_t begun_ns; /* when the first of the current generation was sent or claimed */
    _Atomic int64_t full_ns; /* when the last one was written */
    char line[PUF_LINE - 3 * sizeof(uint64_t)];
} puf_block;

/* Infos that a worker sends with rows, as records: environment, length, bytes. */
typedef struct {
    _Atomic uint64_t tail; /* bytes put; written by the worker */
    char tail_line[PUF_LINE - sizeof(uint64_t)];
    _Atomic uint64_t head; /* bytes taken; written by the parent */
    char head_line[PUF_LINE - sizeof(uint64_t)];
} puf_pipe;

/* The addresses of all parts in one process, computed from the same numbers in each. */
typedef struct {
    uint64_t num_blocks, block_size, num_slots;
    uint32_t num_workers, box_size, pipe_size; /* words a mailbox holds, bytes a pipe holds: powers of two */
    puf_waiter *waiter; /* the parent sleeps on this */
    _Atomic uint64_t *ticket;
    puf_block *blocks;
    _Atomic uint64_t *words; /* one per slot */
    unsigned char *flags; /* one per slot: PUF_OVER and so on; part of the row */
    puf_box *boxes;
    _Atomic uint64_t *posts; /* num_workers times box_size */
    puf_pipe *pipes;
    char *bytes; /* num_workers times pipe_size */
} puf_ring;

enum {
    PUF_OVER = 1, /* the episode is over */
    PUF_INFO = 2, /* infos came with the row, through a pipe or socket */
    PUF_EPISODE = 4, /* the only info is the episode's statistics, which lie in the slab */
    PUF_HELD = 8, /* an info lies in this process, in Ring.infos */
};

/* ------------------------------------------------------------------------------------------------- the memory */

static inline size_t puf_lines(size_t nbytes) { return (nbytes + PUF_LINE - 1) / PUF_LINE * PUF_LINE; }

/* Compute the addresses in memory that is zeroed and aligned to PUF_LINE; return its size, also for a NULL base. */
static inline size_t puf_ring_layout(puf_ring *ring, char *base, uint64_t num_blocks, uint64_t block_size,
                                  uint32_t num_workers, uint32_t box_size, uint32_t pipe_size)
{
    size_t offset = 0;
    ring->num_blocks = num_blocks;
    ring->block_size = block_size;
    ring->num_slots = num_blocks * block_size;
    ring->num_workers = num_workers;
    ring->box_size = box_size;
    ring->pipe_size = pipe_size;
    ring->waiter = (puf_waiter *)(base + offset);
    offset += sizeof(puf_waiter);
    ring->ticket = (_Atomic uint64_t *)(base + offset);
    offset += PUF_LINE;
    ring->blocks = (puf_block *)(base + offset);
    offset += num_blocks * sizeof(puf_block);
    ring->words = (_Atomic uint64_t *)(base + offset);
    offset += puf_lines(ring->num_slots * sizeof(uint64_t));
    ring->flags = (unsigned char *)(base + offset);
    offset += puf_lines(ring->num_slots);
    ring->boxes = (puf_box *)(base + offset);
    offset += num_workers * sizeof(puf_box);
    ring->posts = (_Atomic uint64_t *)(base + offset);
    offset += puf_lines((size_t)num_workers * box_size * sizeof(uint64_t));
    ring->pipes = (puf_pipe *)(base + offset);
    offset += num_workers * sizeof(puf_pipe);
    ring->bytes = base + offset;
    offset += puf_lines((size_t)num_workers * pipe_size);
    return offset;
}

static inline uint64_t puf_free(uint64_t generation) { return generation << 1; }
static inline uint64_t puf_claimed(uint64_t generation, uint64_t env)
{
    return (env + 1) << PUF_GENERATION_BITS | generation << 1 | 1;
}

/* Forget all rows from block number `head` (counted without end) on. Call it only while no worker runs or has rows that
 * are written but not counted yet. */
static inline void puf_rewind(puf_ring *ring, uint64_t head)
{
    uint64_t first = head * ring->block_size;
    for (uint64_t ticket = first; ticket < first + ring->num_slots; ticket++)
        atomic_store(&ring->words[ticket % ring->num_slots], puf_free(ticket / ring->num_slots));
    for (uint64_t block = head; block < head + ring->num_blocks; block++)
        atomic_store(&ring->blocks[block % ring->num_blocks].count, block / ring->num_blocks * ring->block_size);
    atomic_store(ring->ticket, first);
}

/* ---------------------------------------------------------------------------------------------------- waiting */

/* Store a value that other threads may read but do not wait for. */
static inline void puf_store_relaxed(int64_t *word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

/* Return puf_now_ns to within a few milliseconds, at a quarter of its cost. */
static inline int64_t puf_about_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t puf_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Announce a sleep and return the bell. Then check the condition again, and call puf_sleep or puf_cancel_sleep. */
static inline uint32_t puf_prepare_sleep(puf_waiter *waiter, uint32_t reason)
{
    uint32_t bell = atomic_load(&waiter->bell);
    atomic_store(&waiter->asleep, reason);
    return bell;
}

static inline void puf_cancel_sleep(puf_waiter *waiter) { atomic_store(&waiter->asleep, PUF_AWAKE); }

/* Sleep until the bell rings after puf_prepare_sleep, a signal arrives, or the time is over. */
static inline void puf_sleep(puf_waiter *waiter, uint32_t bell, int64_t timeout_ns)
{
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, &waiter->bell, FUTEX_WAIT, bell, timeout_ns < 0 ? NULL : &timeout, NULL, 0);
    puf_cancel_sleep(waiter);
}

/* Wake the sleeper if it waits for `least` or more; the event it waits for must be stored (seq_cst) before. */
static inline void puf_ring_bell(puf_waiter *waiter, uint32_t least)
{
    uint32_t reason = atomic_load(&waiter->asleep);
    /* Of many threads that see a sleeper, one wakes it: a system call costs microseconds. */
    if (reason >= least && atomic_compare_exchange_strong(&waiter->asleep, &reason, PUF_AWAKE)) {
        atomic_fetch_add(&waiter->bell, 1);
        syscall(SYS_futex, &waiter->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

static inline uint32_t puf_mail(puf_ring *ring) { return atomic_load(&ring->waiter->mail); }
static inline uint32_t puf_notes(puf_ring *ring) { return atomic_load(&ring->waiter->notes); }
static inline void puf_announce_note(puf_ring *ring) { atomic_fetch_add(&ring->waiter->notes, 1); }

/* Make the parent read its sockets. */
static inline void puf_announce_mail(puf_ring *ring)
{
    atomic_fetch_add(&ring->waiter->mail, 1);
    puf_ring_bell(ring->waiter, PUF_FOR_BLOCKS);
}

/* -------------------------------------------------------------------------------------------------- mailboxes */

static inline uint64_t puf_request(uint32_t env, uint32_t slot) { return (uint64_t)slot << 32 | env; }

/* Return whether a worker's mailbox has room for num_words words. For the parent, which reads the head, a cache line of
 * the worker's, only if there would be no room after the last head that it has seen. */
static inline int puf_has_room(puf_ring *ring, uint32_t worker, uint64_t num_words)
{
    puf_box *box = &ring->boxes[worker];
    uint64_t needed = atomic_load_explicit(&box->tail, memory_order_relaxed) + num_words - ring->box_size;
    if ((int64_t)(needed - box->seen_head) <= 0) return 1;
    box->seen_head = atomic_load(&box->head);
    return (int64_t)(needed - box->seen_head) <= 0;
}

/* Return whether a worker has words left to take; store the first's number, counted without end. For the parent. */
static inline int puf_has_untaken(puf_ring *ring, uint32_t worker, uint64_t *number)
{
    puf_box *box = &ring->boxes[worker];
    *number = atomic_load(&box->head);
    return *number != atomic_load_explicit(&box->tail, memory_order_relaxed);
}

/* Write a word at `ahead` beyond the tail; the worker cannot see it before puf_post. For the parent. */
static inline void puf_stage(puf_ring *ring, uint32_t worker, uint64_t ahead, uint64_t word)
{
    uint64_t tail = atomic_load_explicit(&ring->boxes[worker].tail, memory_order_relaxed) + ahead;
    atomic_store_explicit(&ring->posts[(uint64_t)worker * ring->box_size + (tail & (ring->box_size - 1))], word,
                          memory_order_relaxed);
}

static inline void puf_post(puf_ring *ring, uint32_t worker, uint64_t count)
{
    puf_box *box = &ring->boxes[worker];
    atomic_store(&box->tail, atomic_load_explicit(&box->tail, memory_order_relaxed) + count);
    puf_ring_bell(&box->waiter, PUF_FOR_BLOCKS);
}

/* Take the next word; return 0 if there is none. For the worker. */
static inline int puf_take(puf_ring *ring, uint32_t worker, uint64_t *word)
{
    puf_box *box = &ring->boxes[worker];
    uint64_t head = atomic_load_explicit(&box->head, memory_order_relaxed);
    if (head == atomic_load(&box->tail)) return 0;
    *word = atomic_load_explicit(&ring->posts[(uint64_t)worker * ring->box_size + (head & (ring->box_size - 1))],
                                 memory_order_relaxed);
    atomic_store_explicit(&box->head, head + 1, memory_order_release);
    return 1;
}

/* Wait for a word: yield the core `spin` times, then sleep. Return 0 if a signal or the time came first. */
static inline int puf_await_post(puf_ring *ring, uint32_t worker, uint64_t *word, int spin, int64_t timeout_ns)
{
    puf_waiter *waiter = &ring->boxes[worker].waiter;
    for (int i = 0; i < spin; i++) {
        if (puf_take(ring, worker, word)) return 1;
        sched_yield();
    }
    uint32_t bell = puf_prepare_sleep(waiter, PUF_FOR_BLOCKS);
    if (puf_take(ring, worker, word)) {
        puf_cancel_sleep(waiter);
        return 1;
    }
    puf_sleep(waiter, bell, timeout_ns);
    return puf_take(ring, worker, word);
}

/* Empty the mailbox and the pipe of a worker that is gone. For the parent. */
static inline void puf_empty_box(puf_ring *ring, uint32_t worker)
{
    puf_box *box = &ring->boxes[worker];
    atomic_store(&ring->pipes[worker].head, atomic_load(&ring->pipes[worker].tail));
    atomic_store(&box->head, atomic_load(&box->tail));
    atomic_store(&box->uncounted, 0);
    atomic_store(&box->waiter.asleep, PUF_AWAKE);
}

/* ------------------------------------------------------------------------------------------------------ infos */

enum { PUF_RECORD = 2 * sizeof(uint32_t) }; /* bytes of a record's header */

/* Copy into or out of a pipe, from position `position` on, which wraps around. */
static inline void puf_pipe_copy(puf_ring *ring, uint32_t worker, uint64_t position, char *bytes, uint64_t nbytes, int put)
{
    char *base = ring->bytes + (uint64_t)worker * ring->pipe_size;
    while (nbytes) {
        uint64_t offset = position & (ring->pipe_size - 1), part = ring->pipe_size - offset;
        if (part > nbytes) part = nbytes;
        if (put)
            memcpy(base + offset, bytes, part);
        else
            memcpy(bytes, base + offset, part);
        position += part;
        bytes += part;
        nbytes -= part;
    }
}

/* Return whether a record of nbytes bytes fits, which stays true until one is put. For the worker. */
static inline int puf_has_room_for_info(puf_ring *ring, uint32_t worker, uint64_t nbytes)
{
    puf_pipe *pipe = &ring->pipes[worker];
    uint64_t tail = atomic_load_explicit(&pipe->tail, memory_order_relaxed);
    uint64_t used = tail - atomic_load_explicit(&pipe->head, memory_order_acquire);
    return nbytes <= ring->pipe_size && used + PUF_RECORD + nbytes <= ring->pipe_size;
}

/* Send bytes with the row that an environment is about to commit; return 0 if there is no room. For the worker. */
static inline int puf_put_info(puf_ring *ring, uint32_t worker, uint32_t env, const char *bytes, uint64_t nbytes)
{
    puf_pipe *pipe = &ring->pipes[worker];
    uint64_t tail = atomic_load_explicit(&pipe->tail, memory_order_relaxed);
    uint32_t record[2] = {env, (uint32_t)nbytes};
    if (!puf_has_room_for_info(ring, worker, nbytes)) return 0;
    puf_pipe_copy(ring, worker, tail, (char *)record, PUF_RECORD, 1);
    puf_pipe_copy(ring, worker, tail + PUF_RECORD, (char *)bytes, nbytes, 1);
    atomic_store_explicit(&pipe->tail, tail + PUF_RECORD + nbytes, memory_order_release);
    return 1;
}

/* Return whether a worker's pipe holds a record; read its environment, length and first byte. For the parent. */
static inline int puf_peek_info(puf_ring *ring, uint32_t worker, uint32_t *env, uint32_t *nbytes, unsigned char *first)
{
    puf_pipe *pipe = &ring->pipes[worker];
    uint64_t head = atomic_load_explicit(&pipe->head, memory_order_relaxed);
    uint32_t record[2];
    if (head == atomic_load_explicit(&pipe->tail, memory_order_acquire)) return 0;
    puf_pipe_copy(ring, worker, head, (char *)record, PUF_RECORD, 0);
    *env = record[0];
    *nbytes = record[1];
    puf_pipe_copy(ring, worker, head + PUF_RECORD, (char *)first, 1, 0);
    return 1;
}

/* Take the record that puf_peek_info has read. For the parent. */
static inline void puf_take_info(puf_ring *ring, uint32_t worker, char *bytes, uint32_t nbytes)
{
    puf_pipe *pipe = &ring->pipes[worker];
    uint64_t head = atomic_load_explicit(&pipe->head, memory_order_relaxed) + PUF_RECORD;
    puf_pipe_copy(ring, worker, head, bytes, nbytes, 0);
    atomic_store_explicit(&pipe->head, head + nbytes, memory_order_release);
}

/* ------------------------------------------------------------------------------------------------------ slots */

/* Claim the next slot for an environment and return its ticket; then write its row and puf_commit. */
static inline uint64_t puf_claim(puf_ring *ring, uint64_t env)
{
    uint64_t ticket = atomic_load_explicit(ring->ticket, memory_order_acquire);
    for (;;) {
        uint64_t generation = ticket / ring->num_slots, word = puf_free(generation);
        int is_claimed = atomic_compare_exchange_strong_explicit(&ring->words[ticket % ring->num_slots], &word,
                                                                 puf_claimed(generation, env), memory_order_acq_rel,
                                                                 memory_order_acquire);
        uint64_t next = ticket;
        /* A thread that sees the slot taken advances the ticket: the claimant may have been killed before it could. */
        int is_moved = atomic_compare_exchange_strong_explicit(ring->ticket, &next, ticket + 1, memory_order_acq_rel,
                                                               memory_order_acquire);
        if (is_claimed) return ticket;
        ticket = is_moved ? ticket + 1 : next;
    }
}

/* Mark the row of a slot as written; the next puf_count counts it. */
static inline void puf_commit(puf_ring *ring, uint64_t slot)
{
    uint64_t word = atomic_load_explicit(&ring->words[slot], memory_order_relaxed);
    uint64_t generation = (word & ((UINT64_C(1) << PUF_GENERATION_BITS) - 1)) >> 1;
    atomic_store_explicit(&ring->words[slot], puf_free(generation + 1), memory_order_release);
}

/* Record when the first row of a block was sent or claimed. */
static inline void puf_begin(puf_ring *ring, uint64_t block, int64_t now_ns)
{
    atomic_store_explicit(&ring->blocks[block].begun_ns, now_ns, memory_order_relaxed);
}

/* Return the time from puf_begin until the block was full; less than 0 if unknown. */
static inline int64_t puf_filled_in_ns(puf_ring *ring, uint64_t block)
{
    return atomic_load_explicit(&ring->blocks[block].full_ns, memory_order_relaxed) -
           atomic_load_explicit(&ring->blocks[block].begun_ns, memory_order_relaxed);
}

/* Record whether rows are, or are about to be, committed and not counted yet. For the worker. */
static inline void puf_mark_uncounted(puf_ring *ring, uint32_t worker, uint64_t uncounted)
{
    atomic_store_explicit(&ring->boxes[worker].uncounted, uncounted, memory_order_release);
}

/* Count rows that were committed to a block, and wake the parent if it waits for them. */
static inline void puf_count(puf_ring *ring, uint64_t block, uint64_t rows)
{
    puf_block *counter = &ring->blocks[block];
    uint64_t count = atomic_fetch_add(&counter->count, rows) + rows;
    int full = count % ring->block_size == 0;
    if (full) atomic_store_explicit(&counter->full_ns, puf_now_ns(), memory_order_relaxed);
    puf_ring_bell(ring->waiter, full ? PUF_FOR_BLOCKS : PUF_FOR_ROWS);
}

/* Revoke the row of an assigned slot whose environment is idle. For the parent. */
static inline void puf_revoke(puf_ring *ring, uint64_t slot)
{
    atomic_store(&ring->words[slot], atomic_load(&ring->words[slot]) - puf_free(1));
    atomic_fetch_sub(&ring->blocks[slot / ring->block_size].count, 1);
}

static inline uint64_t puf_full(puf_ring *ring, uint64_t head) { return (head / ring->num_blocks + 1) * ring->block_size; }

/* Return whether all rows of block number `head` (counted without end) are counted. For the parent. */
static inline int puf_is_full(puf_ring *ring, uint64_t head)
{
    return atomic_load(&ring->blocks[head % ring->num_blocks].count) == puf_full(ring, head);
}

/* Return whether the row at a ticket is written. For the parent. */
static inline int puf_is_done(puf_ring *ring, uint64_t ticket)
{
    return atomic_load(&ring->words[ticket % ring->num_slots]) == puf_free(ticket / ring->num_slots + 1);
}

/* Return whether an environment has claimed the slot at a ticket and not written its row. For the parent. */
static inline int puf_is_stuck(puf_ring *ring, uint64_t ticket, uint64_t env)
{
    return atomic_load(&ring->words[ticket % ring->num_slots]) == puf_claimed(ticket / ring->num_slots, env);
}

/* Return whether a block is full by its words, which are always right: a worker killed between word and count leaves
 * the count short. The count must not be repaired here, since other workers may still add rows to it. */
static inline int puf_is_done_block(puf_ring *ring, uint64_t head)
{
    uint64_t first = head * ring->block_size;
    for (uint64_t i = 0; i < ring->block_size; i++)
        if (!puf_is_done(ring, first + i)) return 0;
    return 1;
}

/* Repair the count of block number `head`, the last one received, from its words. Return 0 if a worker has uncounted
 * rows, which may be of this block. For the parent, which has emptied the mailboxes of dead workers. */
static inline int puf_repair_count(puf_ring *ring, uint64_t head)
{
    for (uint32_t worker = 0; worker < ring->num_workers; worker++)
        if (atomic_load(&ring->boxes[worker].uncounted)) return 0;
    puf_block *counter = &ring->blocks[head % ring->num_blocks];
    /* The block is leased, so no worker adds to it: see the number of blocks above. */
    atomic_fetch_add(&counter->count, puf_full(ring, head) - atomic_load(&counter->count));
    return 1;
}

/* Return the number of environments' rows counted so far. */
static inline uint64_t puf_total(puf_ring *ring)
{
    uint64_t total = 0;
    for (uint64_t block = 0; block < ring->num_blocks; block++) total += atomic_load(&ring->blocks[block].count);
    return total;
}

/* Return the number of environments' rows counted in the blocks from number `head` on, none of which was received. */
static inline uint64_t puf_counted(puf_ring *ring, uint64_t head)
{
    uint64_t counted = 0;
    for (uint64_t block = head; block < head + ring->num_blocks; block++)
        counted += atomic_load(&ring->blocks[block % ring->num_blocks].count) -
                   block / ring->num_blocks * ring->block_size;
    return counted;
}

/* Return whether a worker sleeps, and so has counted all its rows. For the parent, while it has posted nothing. */
static inline int puf_is_asleep(puf_ring *ring, uint32_t worker)
{
    return atomic_load(&ring->boxes[worker].waiter.asleep) != PUF_AWAKE;
}

/* Wait until block number `head` is full or there is new mail; return whether either is the case.
 * mail: the counter's value that the parent has read. */
static inline int puf_await_block(puf_ring *ring, uint64_t head, uint32_t mail, int spin, int64_t timeout_ns)
{
    puf_waiter *waiter = ring->waiter;
    for (int i = 0; i < spin; i++) {
        if (puf_is_full(ring, head) || atomic_load(&waiter->mail) != mail) return 1;
        sched_yield();
    }
    uint32_t bell = puf_prepare_sleep(waiter, PUF_FOR_BLOCKS);
    if (puf_is_full(ring, head) || atomic_load(&waiter->mail) != mail) {
        puf_cancel_sleep(waiter);
        return 1;
    }
    puf_sleep(waiter, bell, timeout_ns);
    return puf_is_full(ring, head) || atomic_load(&waiter->mail) != mail;
}

/* Sleep until any row beyond `total` is counted or there is new mail. */
static inline void puf_await_row(puf_ring *ring, uint64_t total, uint32_t mail, int64_t timeout_ns)
{
    puf_waiter *waiter = ring->waiter;
    uint32_t bell = puf_prepare_sleep(waiter, PUF_FOR_ROWS);
    if (puf_total(ring) != total || atomic_load(&waiter->mail) != mail)
        puf_cancel_sleep(waiter);
    else
        puf_sleep(waiter, bell, timeout_ns);
}

#endif
