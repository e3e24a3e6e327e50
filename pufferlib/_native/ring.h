/* The shared words between send and recv: slots that rows are written to, mailboxes that requests lie in, doors that
 * sleepers wait at. Plain C11 without Python, so that ThreadSanitizer can watch it (tests/helpers/ring_harness.c).
 *
 * A block is one batch being filled, a slot one environment's place in it. Blocks are filled and received in order,
 * round and round; a ticket numbers slots without end: ticket t is slot t mod num_slots, in its lap t / num_slots.
 *
 * Slots are filled in one of two ways. Assigned: the parent says which slot with the request (synchronous batches, where
 * the slot is the environment's number, and batches in the order of sending); nobody competes. Claimed: whoever has
 * finished takes the next one (a pool).
 *
 * The word of a slot says FREE(lap) or CLAIMED(lap, env). Its row, once written, makes it FREE(lap + 1): that is what
 * DONE(lap) means, and nothing has to be cleared between laps. That no slot is claimed again while its row is unread
 * needs no check, but counting: num_blocks = ceil(num_envs / block_size) + 2 are two batches with the learner plus one
 * outstanding row of every environment, and an environment gets no request before its last row was received.
 *
 * Memory order. Three things must be ordered, and these orders do it:
 *   a row before its reading       a writer stores the row, then the slot's word (release), then adds to the block's
 *                                  count (seq_cst). The parent loads the count; all adds are read-modify-writes, so the
 *                                  last one it sees continues the release sequences of all before it: when the count
 *                                  is full, every row happens before the reading.
 *   a reading before the next row  the parent reads a block, later posts requests (seq_cst store of a mailbox's tail).
 *                                  A worker loads the tail, steps, claims. The ticket reaches a slot of that block
 *                                  again only after claims that came of such a request. Each claim is an acq_rel
 *                                  compare-exchange on a word, and each step of the ticket (acq_rel) is made by
 *                                  somebody who made that claim or saw it (acquire). So whoever finds the ticket at a
 *                                  slot (acquire) comes after all claims before it, and thus after the reading. This is
 *                                  why a claim must not be relaxed, though it looks as if it only reserved a number.
 *                                  An assigned slot comes with the request itself.
 *   no lost wake-up                who sleeps stores `asleep`, then looks again for what it waits for; who provides it
 *                                  does so, then loads `asleep`. Store-then-load on both sides is what only seq_cst
 *                                  orders, so both pairs are seq_cst.
 *   a count before its mending     whoever is killed between a row's word and the block's count leaves the count short.
 *                                  Each worker says that it owes a count before it stores a word, and that it does not
 *                                  after it has added (release). The parent has seen the words of the block (acquire),
 *                                  so it sees the first, and where it sees the second (acquire), it sees the count too:
 *                                  once no living worker owes anything, what is missing is what the dead have left out.
 *                                  It is added before the block can be claimed again (puf_mend).
 * There are no step_loop-alone fences: ThreadSanitizer does not model them. Futexes are not FUTEX_PRIVATE: the words lie in
 * memory that several processes map.
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

/* Elsewhere 64-bit atomics may be locks that other processes do not see, and a futex's timespec another than libc's. */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(long) == 8, "a 64-bit platform is needed; others run plain Python");

#define PUF_LINE 64 /* words that different processes write lie on lines of their own */
#define PUF_LAP_BITS 44
#define PUF_CLAIM 0xFFFFFFFFu   /* in place of a slot: claim one */
#define PUF_CONTROL 0xFFFFFFFFu /* in place of an environment: read a frame from the socket */
#define PUF_SHARE 0xFFFFFFFEu   /* in place of an environment: all of the worker's, into the block in place of a slot */

enum { PUF_AWAKE, PUF_FOR_BLOCKS, PUF_FOR_ROWS }; /* what wakes who sleeps at a door; a worker is woken by any post */

typedef struct {
    _Atomic uint32_t asleep;
    _Atomic uint32_t bell; /* the futex; only ever counts up */
    _Atomic uint32_t mail; /* at the parent's door: frames in sockets that it should see to at once; only counts up */
    _Atomic uint32_t notes; /* and infos there, which are time enough once their block is full */
    char line[PUF_LINE - 4 * sizeof(uint32_t)];
} puf_door;

typedef struct {
    puf_door door; /* where the worker sleeps */
    _Atomic uint64_t tail; /* words posted; the parent's */
    char tail_line[PUF_LINE - sizeof(uint64_t)];
    _Atomic uint64_t head; /* words taken; the worker's */
    _Atomic uint64_t owes; /* whether it has rows that are written but not counted yet */
    char head_line[PUF_LINE - 2 * sizeof(uint64_t)];
} puf_box;

typedef struct {
    _Atomic uint64_t count; /* rows' environments written to this block, over all laps */
    _Atomic int64_t begun_ns; /* when the first was sent or claimed, of the current lap */
    _Atomic int64_t full_ns; /* when the last was written */
    char line[PUF_LINE - 3 * sizeof(uint64_t)];
} puf_block;

/* Infos that a worker sends along with rows, as records of bytes: environment, length, bytes. */
typedef struct {
    _Atomic uint64_t tail; /* bytes put; the worker's */
    char tail_line[PUF_LINE - sizeof(uint64_t)];
    _Atomic uint64_t head; /* bytes taken; the parent's */
    char head_line[PUF_LINE - sizeof(uint64_t)];
} puf_pipe;

/* Where everything lies; each process makes its own from the same numbers. */
typedef struct {
    uint64_t num_blocks, block_size, num_slots;
    uint32_t num_workers, box_size, pipe_size; /* words a mailbox holds, bytes a pipe holds: powers of two */
    puf_door *door; /* the parent's */
    _Atomic uint64_t *ticket;
    puf_block *blocks;
    _Atomic uint64_t *words; /* one a slot */
    unsigned char *flags; /* one a slot: PUF_OVER and so on; part of the row */
    puf_box *boxes;
    _Atomic uint64_t *posts; /* num_workers times box_size */
    puf_pipe *pipes;
    char *bytes; /* num_workers times pipe_size */
} puf_ring;

enum {
    PUF_OVER = 1, /* the episode is over */
    PUF_INFO = 2, /* infos came with the row, through a pipe or socket */
    PUF_EPISODE = 4, /* and with nothing else to tell than the episode's statistics, these lie in the slab */
    PUF_HELD = 8, /* an info lies in this process, in Ring.infos */
};

/* ------------------------------------------------------------------------------------------------- the memory */

static inline size_t puf_lines(size_t nbytes) { return (nbytes + PUF_LINE - 1) / PUF_LINE * PUF_LINE; }

/* Lay the ring out in memory (zeroed, aligned to PUF_LINE) and return its size; base may be NULL to ask for that. */
static inline size_t puf_ring_lay(puf_ring *ring, char *base, uint64_t num_blocks, uint64_t block_size,
                                  uint32_t num_workers, uint32_t box_size, uint32_t pipe_size)
{
    size_t at = 0;
    ring->num_blocks = num_blocks;
    ring->block_size = block_size;
    ring->num_slots = num_blocks * block_size;
    ring->num_workers = num_workers;
    ring->box_size = box_size;
    ring->pipe_size = pipe_size;
    ring->door = (puf_door *)(base + at);
    at += sizeof(puf_door);
    ring->ticket = (_Atomic uint64_t *)(base + at);
    at += PUF_LINE;
    ring->blocks = (puf_block *)(base + at);
    at += num_blocks * sizeof(puf_block);
    ring->words = (_Atomic uint64_t *)(base + at);
    at += puf_lines(ring->num_slots * sizeof(uint64_t));
    ring->flags = (unsigned char *)(base + at);
    at += puf_lines(ring->num_slots);
    ring->boxes = (puf_box *)(base + at);
    at += num_workers * sizeof(puf_box);
    ring->posts = (_Atomic uint64_t *)(base + at);
    at += puf_lines((size_t)num_workers * box_size * sizeof(uint64_t));
    ring->pipes = (puf_pipe *)(base + at);
    at += num_workers * sizeof(puf_pipe);
    ring->bytes = base + at;
    at += puf_lines((size_t)num_workers * pipe_size);
    return at;
}

static inline uint64_t puf_free(uint64_t lap) { return lap << 1; }
static inline uint64_t puf_claimed(uint64_t lap, uint64_t env) { return (env + 1) << PUF_LAP_BITS | lap << 1 | 1; }

/* Forget all rows from block number `head` (counted without end) on. Only while no worker is at work, nor has rows that
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

/* Store what others may look at without waiting for it. */
static inline void puf_say(int64_t *word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

/* As puf_now_ns, at a quarter of its price, to a few milliseconds. */
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

/* Say that one is about to sleep; look again for what one waits for, then puf_sleep or puf_rise. */
static inline uint32_t puf_lie_down(puf_door *door, uint32_t why)
{
    uint32_t bell = atomic_load(&door->bell);
    atomic_store(&door->asleep, why);
    return bell;
}

static inline void puf_rise(puf_door *door) { atomic_store(&door->asleep, PUF_AWAKE); }

/* Sleep until the door's bell rings after puf_lie_down, a signal comes, or the time is over. */
static inline void puf_sleep(puf_door *door, uint32_t bell, int64_t timeout_ns)
{
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, &door->bell, FUTEX_WAIT, bell, timeout_ns < 0 ? NULL : &timeout, NULL, 0);
    puf_rise(door);
}

/* Wake who sleeps at a door, unless it is `least` or more that would wake it; the news is stored (seq_cst) already. */
static inline void puf_ring_bell(puf_door *door, uint32_t least)
{
    uint32_t why = atomic_load(&door->asleep);
    /* Of many that find a sleeper one takes it upon itself: a system call costs microseconds. */
    if (why >= least && atomic_compare_exchange_strong(&door->asleep, &why, PUF_AWAKE)) {
        atomic_fetch_add(&door->bell, 1);
        syscall(SYS_futex, &door->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

static inline uint32_t puf_mail(puf_ring *ring) { return atomic_load(&ring->door->mail); }
static inline uint32_t puf_notes(puf_ring *ring) { return atomic_load(&ring->door->notes); }
static inline void puf_announce_note(puf_ring *ring) { atomic_fetch_add(&ring->door->notes, 1); }

/* Have the parent look at its sockets. */
static inline void puf_announce_mail(puf_ring *ring)
{
    atomic_fetch_add(&ring->door->mail, 1);
    puf_ring_bell(ring->door, PUF_FOR_BLOCKS);
}

/* -------------------------------------------------------------------------------------------------- mailboxes */

static inline uint64_t puf_request(uint32_t env, uint32_t slot) { return (uint64_t)slot << 32 | env; }

/* How many more words a worker's mailbox takes. For the parent. */
static inline uint64_t puf_room(puf_ring *ring, uint32_t worker)
{
    puf_box *box = &ring->boxes[worker];
    return ring->box_size - (atomic_load_explicit(&box->tail, memory_order_relaxed) - atomic_load(&box->head));
}

/* Whether there are words that a worker has not taken, and the number of the first, counted without end. For the parent. */
static inline int puf_is_asked(puf_ring *ring, uint32_t worker, uint64_t *number)
{
    puf_box *box = &ring->boxes[worker];
    *number = atomic_load(&box->head);
    return *number != atomic_load_explicit(&box->tail, memory_order_relaxed);
}

/* Lay a word at `ahead` beyond the tail; nobody sees it before puf_post. For the parent. */
static inline void puf_lay(puf_ring *ring, uint32_t worker, uint64_t ahead, uint64_t word)
{
    uint64_t tail = atomic_load_explicit(&ring->boxes[worker].tail, memory_order_relaxed) + ahead;
    atomic_store_explicit(&ring->posts[(uint64_t)worker * ring->box_size + (tail & (ring->box_size - 1))], word,
                          memory_order_relaxed);
}

static inline void puf_post(puf_ring *ring, uint32_t worker, uint64_t count)
{
    puf_box *box = &ring->boxes[worker];
    atomic_store(&box->tail, atomic_load_explicit(&box->tail, memory_order_relaxed) + count);
    puf_ring_bell(&box->door, PUF_FOR_BLOCKS);
}

/* Whether a word lies there, and take it. For the worker. */
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

/* Wait for a word, taking turns with others `spin` times before sleeping; 0 if a signal or the time came first. */
static inline int puf_await_post(puf_ring *ring, uint32_t worker, uint64_t *word, int spin, int64_t timeout_ns)
{
    puf_door *door = &ring->boxes[worker].door;
    for (int i = 0; i < spin; i++) {
        if (puf_take(ring, worker, word)) return 1;
        sched_yield();
    }
    uint32_t bell = puf_lie_down(door, PUF_FOR_BLOCKS);
    if (puf_take(ring, worker, word)) {
        puf_rise(door);
        return 1;
    }
    puf_sleep(door, bell, timeout_ns);
    return puf_take(ring, worker, word);
}

/* Empty the mailbox and the pipe of a worker that is gone. For the parent. */
static inline void puf_empty_box(puf_ring *ring, uint32_t worker)
{
    puf_box *box = &ring->boxes[worker];
    atomic_store(&ring->pipes[worker].head, atomic_load(&ring->pipes[worker].tail));
    atomic_store(&box->head, atomic_load(&box->tail));
    atomic_store(&box->owes, 0);
    atomic_store(&box->door.asleep, PUF_AWAKE);
}

/* ------------------------------------------------------------------------------------------------------ infos */

enum { PUF_RECORD = 2 * sizeof(uint32_t) }; /* what precedes the bytes of a record */

/* Copy into or out of a pipe, from position `at` on, which wraps round. */
static inline void puf_pipe_copy(puf_ring *ring, uint32_t worker, uint64_t at, char *bytes, uint64_t nbytes, int put)
{
    char *base = ring->bytes + (uint64_t)worker * ring->pipe_size;
    while (nbytes) {
        uint64_t place = at & (ring->pipe_size - 1), part = ring->pipe_size - place;
        if (part > nbytes) part = nbytes;
        if (put)
            memcpy(base + place, bytes, part);
        else
            memcpy(bytes, base + place, part);
        at += part;
        bytes += part;
        nbytes -= part;
    }
}

/* Whether a record of so many bytes can be put, which stays so until one is. For the worker. */
static inline int puf_has_room_for_info(puf_ring *ring, uint32_t worker, uint64_t nbytes)
{
    puf_pipe *pipe = &ring->pipes[worker];
    uint64_t tail = atomic_load_explicit(&pipe->tail, memory_order_relaxed);
    uint64_t used = tail - atomic_load_explicit(&pipe->head, memory_order_acquire);
    return nbytes <= ring->pipe_size && used + PUF_RECORD + nbytes <= ring->pipe_size;
}

/* Send bytes that belong to the row that an environment is about to commit; 0 if there is no room. For the worker. */
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

/* Whether a record lies in a worker's pipe: its environment, its length, and its first byte. For the parent. */
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

/* Take the record that was peeked at. For the parent. */
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
        uint64_t lap = ticket / ring->num_slots, word = puf_free(lap);
        int mine = atomic_compare_exchange_strong_explicit(&ring->words[ticket % ring->num_slots], &word,
                                                           puf_claimed(lap, env), memory_order_acq_rel,
                                                           memory_order_acquire);
        uint64_t next = ticket;
        /* Whoever finds a slot taken helps the ticket on: its claimant may have been killed before it could. */
        int moved = atomic_compare_exchange_strong_explicit(ring->ticket, &next, ticket + 1, memory_order_acq_rel,
                                                            memory_order_acquire);
        if (mine) return ticket;
        ticket = moved ? ticket + 1 : next;
    }
}

/* Mark the row of a slot as written; it counts with the next puf_count. */
static inline void puf_commit(puf_ring *ring, uint64_t slot)
{
    uint64_t word = atomic_load_explicit(&ring->words[slot], memory_order_relaxed);
    uint64_t lap = (word & ((UINT64_C(1) << PUF_LAP_BITS) - 1)) >> 1;
    atomic_store_explicit(&ring->words[slot], puf_free(lap + 1), memory_order_release);
}

/* Note when the first row of a block was sent or claimed, and how long it then took to fill; less than 0 if unknown. */
static inline void puf_begin(puf_ring *ring, uint64_t block, int64_t now_ns)
{
    atomic_store_explicit(&ring->blocks[block].begun_ns, now_ns, memory_order_relaxed);
}

static inline int64_t puf_filled_in_ns(puf_ring *ring, uint64_t block)
{
    return atomic_load_explicit(&ring->blocks[block].full_ns, memory_order_relaxed) -
           atomic_load_explicit(&ring->blocks[block].begun_ns, memory_order_relaxed);
}

/* Say whether rows are about to be, or have been, committed that are not counted yet. For the worker. */
static inline void puf_owe(puf_ring *ring, uint32_t worker, uint64_t owes)
{
    atomic_store_explicit(&ring->boxes[worker].owes, owes, memory_order_release);
}

/* Count rows that were committed to a block, and wake the parent if it waits for that. */
static inline void puf_count(puf_ring *ring, uint64_t block, uint64_t rows)
{
    puf_block *its = &ring->blocks[block];
    uint64_t count = atomic_fetch_add(&its->count, rows) + rows;
    int full = count % ring->block_size == 0;
    if (full) atomic_store_explicit(&its->full_ns, puf_now_ns(), memory_order_relaxed);
    puf_ring_bell(ring->door, full ? PUF_FOR_BLOCKS : PUF_FOR_ROWS);
}

/* Take back the row of an assigned slot, whose environment is idle. For the parent. */
static inline void puf_revoke(puf_ring *ring, uint64_t slot)
{
    atomic_store(&ring->words[slot], atomic_load(&ring->words[slot]) - puf_free(1));
    atomic_fetch_sub(&ring->blocks[slot / ring->block_size].count, 1);
}

static inline uint64_t puf_full(puf_ring *ring, uint64_t head) { return (head / ring->num_blocks + 1) * ring->block_size; }

/* Whether all rows of block number `head` (counted without end) are there. For the parent. */
static inline int puf_is_full(puf_ring *ring, uint64_t head)
{
    return atomic_load(&ring->blocks[head % ring->num_blocks].count) == puf_full(ring, head);
}

/* Whether the row at a ticket is there. For the parent. */
static inline int puf_is_done(puf_ring *ring, uint64_t ticket)
{
    return atomic_load(&ring->words[ticket % ring->num_slots]) == puf_free(ticket / ring->num_slots + 1);
}

/* Whether an environment has claimed the slot at a ticket and not written its row. For the parent. */
static inline int puf_is_stuck(puf_ring *ring, uint64_t ticket, uint64_t env)
{
    return atomic_load(&ring->words[ticket % ring->num_slots]) == puf_claimed(ticket / ring->num_slots, env);
}

/* The same as puf_is_full, told by the words, which are the truth: who was killed between word and count left the count
 * short. The count must not be mended here, for others may have rows that they will yet count. */
static inline int puf_is_done_block(puf_ring *ring, uint64_t head)
{
    uint64_t first = head * ring->block_size;
    for (uint64_t i = 0; i < ring->block_size; i++)
        if (!puf_is_done(ring, first + i)) return 0;
    return 1;
}

/* Set right the count of block number `head`, which was the last to be received, by its words. 0 if a worker still owes
 * a count, which may be of this block. For the parent, which has emptied the mailboxes of the dead. */
static inline int puf_mend(puf_ring *ring, uint64_t head)
{
    for (uint32_t worker = 0; worker < ring->num_workers; worker++)
        if (atomic_load(&ring->boxes[worker].owes)) return 0;
    puf_block *its = &ring->blocks[head % ring->num_blocks];
    /* The block is leased, so nobody adds to it: see the number of blocks above. */
    atomic_fetch_add(&its->count, puf_full(ring, head) - atomic_load(&its->count));
    return 1;
}

/* How many rows' environments were ever counted. */
static inline uint64_t puf_total(puf_ring *ring)
{
    uint64_t total = 0;
    for (uint64_t block = 0; block < ring->num_blocks; block++) total += atomic_load(&ring->blocks[block].count);
    return total;
}

/* How many rows' environments are counted in the blocks from number `head` on, none of which has been received. */
static inline uint64_t puf_counted(puf_ring *ring, uint64_t head)
{
    uint64_t counted = 0;
    for (uint64_t block = head; block < head + ring->num_blocks; block++)
        counted += atomic_load(&ring->blocks[block % ring->num_blocks].count) -
                   block / ring->num_blocks * ring->block_size;
    return counted;
}

/* Whether a worker sleeps, and so has nothing left to count. For the parent, while it has posted nothing. */
static inline int puf_is_asleep(puf_ring *ring, uint32_t worker)
{
    return atomic_load(&ring->boxes[worker].door.asleep) != PUF_AWAKE;
}

/* Wait until block number `head` is full or there is new mail. Return whether either is so.
 * mail: what the parent has seen of the counter. */
static inline int puf_await_block(puf_ring *ring, uint64_t head, uint32_t mail, int spin, int64_t timeout_ns)
{
    puf_door *door = ring->door;
    for (int i = 0; i < spin; i++) {
        if (puf_is_full(ring, head) || atomic_load(&door->mail) != mail) return 1;
        sched_yield();
    }
    uint32_t bell = puf_lie_down(door, PUF_FOR_BLOCKS);
    if (puf_is_full(ring, head) || atomic_load(&door->mail) != mail) {
        puf_rise(door);
        return 1;
    }
    puf_sleep(door, bell, timeout_ns);
    return puf_is_full(ring, head) || atomic_load(&door->mail) != mail;
}

/* Sleep until any row is counted beyond `total`, or there is new mail. */
static inline void puf_await_row(puf_ring *ring, uint64_t total, uint32_t mail, int64_t timeout_ns)
{
    puf_door *door = ring->door;
    uint32_t bell = puf_lie_down(door, PUF_FOR_ROWS);
    if (puf_total(ring) != total || atomic_load(&door->mail) != mail)
        puf_rise(door);
    else
        puf_sleep(door, bell, timeout_ns);
}

#endif
