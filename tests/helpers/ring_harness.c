/* Threads in place of processes at the ring of ring.h, so that ThreadSanitizer sees every ordering that is missing.
 * test_ring.py compiles this and runs it:
 *
 *   ring_harness MODE ENVS WORKERS BATCH BATCHES SPIN SEED PATIENCE
 *
 * MODE is synchronous (BATCH = ENVS), ordered or claimed. Rows, actions and letters are plain memory. The parent checks
 * that each row is the right one, neither lost nor doubled nor torn, in its turn, and still what it was when the second
 * batch after it is received. All sleeps are without end: if nothing moves for PATIENCE seconds, a wake-up was lost.
 * Prints what occurred how often, as JSON; exits with 1, and says why, when a rule is broken.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ring.h"

enum { SYNCHRONOUS, ORDERED, CLAIMED };
enum { WAITING, FLYING };
enum { MOST_ENVS = 256, MOST_WORKERS = 16, BOX_SIZE = 2, PIPE_SIZE = 64, MOST_INFO = 48 };
#define COUNT(what) atomic_fetch_add_explicit(&what, 1, memory_order_relaxed)

typedef struct {
    uint64_t env, tick;
    uint64_t received; /* how many batches the parent had when this slot was claimed */
    uint64_t has_note, has_info;
    uint64_t filling[4];
    uint64_t checksum;
} Row;

typedef struct {
    pthread_t thread;
    uint32_t index, first, end; /* its share of the environments */
    uint64_t random, played[MOST_ENVS];
    uint64_t block, uncounted;
    uint64_t letter; /* plain; the turn says whose it is, as a socket would */
    _Atomic int letter_lies_there;
} Worker;

static int mode, most_spins;
static uint64_t num_envs, num_workers, batch_size, num_batches;
static double patience_s;
static puf_ring ring;
static Row *rows;
static uint64_t actions[MOST_ENVS]; /* the tick that each environment is to play */
static Worker workers[MOST_WORKERS];
static _Atomic uint64_t moves, received; /* for the watchdog, for fairness; relaxed, so that they order nothing */

static _Atomic uint64_t deaths, letters, full_boxes, full_pipes;
static uint64_t drains, revokes, uncounted_batches, block_waits, row_waits, mended;

_Noreturn static void fail(const char *what, uint64_t a, uint64_t b, uint64_t c)
{
    fprintf(stderr, "violation: %s (%llu, %llu, %llu)\n", what, (unsigned long long)a, (unsigned long long)b,
            (unsigned long long)c);
    fflush(stderr);
    _exit(1);
}

#define REQUIRE(truth, what, a, b, c) \
    do { \
        if (!(truth)) fail(what, a, b, c); \
    } while (0)

/* ---------------------------------------------------------------------------------------------------- chance */

static uint64_t draw(uint64_t *random, uint64_t bound) /* xorshift64* */
{
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    return (*random * UINT64_C(2685821657736338717) >> 32) % bound;
}

/* Lose the core for a while, or not, wherever another order of events may follow from it. */
static void dawdle(uint64_t *random)
{
    uint64_t kind = draw(random, 64);
    if (kind < 8) sched_yield();
    if (kind == 63) {
        struct timespec pause = {0, (long)draw(random, 100000)};
        nanosleep(&pause, NULL);
    }
}

static int spins(uint64_t *random) { return (int)draw(random, (uint64_t)most_spins + 1); }

static uint64_t mixed(uint64_t env, uint64_t tick, uint64_t place)
{
    return (env * 0x9E3779B97F4A7C15u ^ tick * 0xD1B54A32D192ED03u) + place * 0x8CB92BA72F3D8DD7u;
}

static uint64_t checksum(const Row *row)
{
    uint64_t sum = mixed(row->env, row->tick, row->received) ^ row->has_note << 1 ^ row->has_info;
    for (int i = 0; i < 4; i++) sum = sum * 31 + row->filling[i];
    return sum;
}

/* --------------------------------------------------------------------------------------------------- workers */

static void flush(Worker *self)
{
    if (!self->uncounted) return;
    if (draw(&self->random, 1024)) {
        puf_count(&ring, self->block, self->uncounted);
    } else { /* as if killed between word and count, and replaced */
        COUNT(deaths);
        puf_announce_mail(&ring);
    }
    puf_mark_uncounted(&ring, self->index, 0); /* for one that was killed, the parent says so */
    self->uncounted = 0;
}

static void turn_to(Worker *self, uint64_t slot)
{
    if (slot / batch_size == self->block) return;
    flush(self);
    self->block = slot / batch_size;
}

/* Send the parent a letter, and go on only once it has read it, though it may be asleep. */
static void write_letter(Worker *self, uint64_t letter)
{
    self->letter = letter;
    atomic_store_explicit(&self->letter_lies_there, 1, memory_order_release);
    puf_announce_mail(&ring);
    COUNT(letters);
    while (atomic_load_explicit(&self->letter_lies_there, memory_order_acquire)) sched_yield();
}

static int put_info(Worker *self, uint64_t env, uint64_t tick)
{
    char bytes[MOST_INFO];
    uint64_t nbytes = sizeof tick + draw(&self->random, MOST_INFO - sizeof tick + 1);
    memcpy(bytes, &tick, sizeof tick);
    memset(bytes + sizeof tick, (int)(env + tick) & 0x7F, nbytes - sizeof tick);
    int has_room = puf_has_room_for_info(&ring, self->index, nbytes);
    if (puf_put_info(&ring, self->index, (uint32_t)env, bytes, nbytes)) return 1;
    REQUIRE(!has_room, "room for an info was gone", env, tick, nbytes);
    COUNT(full_pipes);
    write_letter(self, env << 32 | tick);
    return 0;
}

static void play(Worker *self, uint64_t env, uint64_t slot)
{
    uint64_t tick = actions[env], chance = draw(&self->random, 64);
    int has_info = 0;
    self->played[env - self->first]++;
    REQUIRE(tick == self->played[env - self->first], "an action was lost or came twice", env, tick, slot);
    if (slot != PUF_CLAIM) turn_to(self, slot);
    dawdle(&self->random);
    if (chance < 8) has_info = put_info(self, env, tick);
    if (chance == 8) write_letter(self, env << 32 | tick);
    if (chance >= 60) puf_announce_note(&ring);
    if (slot == PUF_CLAIM) {
        slot = puf_claim(&ring, env) % ring.num_slots;
        turn_to(self, slot);
    }
    Row *row = &rows[slot];
    row->env = env;
    row->tick = tick;
    row->received = atomic_load_explicit(&received, memory_order_relaxed);
    dawdle(&self->random);
    row->has_note = chance >= 60;
    row->has_info = (uint64_t)has_info;
    for (uint64_t i = 0; i < 4; i++) row->filling[i] = mixed(env, tick, i);
    row->checksum = checksum(row);
    ring.flags[slot] = has_info ? PUF_INFO : 0;
    if (!self->uncounted) puf_mark_uncounted(&ring, self->index, 1);
    puf_commit(&ring, slot);
    self->uncounted++;
    dawdle(&self->random);
    if (mode == CLAIMED || draw(&self->random, 16) == 0) flush(self);
    COUNT(moves);
}

static void *work(void *argument)
{
    Worker *self = argument;
    uint64_t word;
    for (;;) {
        if (!puf_take(&ring, self->index, &word)) {
            flush(self);
            dawdle(&self->random);
            if (!puf_await_post(&ring, self->index, &word, spins(&self->random), -1)) continue;
        }
        if ((uint32_t)word == PUF_CONTROL) {
            flush(self);
            return NULL;
        }
        if ((uint32_t)word == PUF_SHARE)
            for (uint64_t env = self->first; env < self->end; env++)
                play(self, env, (word >> 32) * batch_size + env);
        else
            play(self, (uint32_t)word, word >> 32);
    }
}

/* ------------------------------------------------------------------------------------------------ the parent */

typedef struct {
    Row *rows; /* where the batch lies */
    Row *copy; /* what it was */
} Lease;

static uint64_t chance = 1, head, departed, notes;
static int states[MOST_ENVS];
static uint64_t slots[MOST_ENVS]; /* assigned to each environment last */
static uint64_t infos[MOST_ENVS]; /* the tick of which one was taken */
static uint64_t last[MOST_ENVS];
static uint64_t ticks[MOST_ENVS];
static Lease leases[2]; /* the older one first */
static uint32_t mail;
static uint64_t wounds; /* blocks whose counts may be short, since a worker has died */
static unsigned char is_short[MOST_ENVS + 2]; /* which they are */

static Worker *worker_of(uint64_t env)
{
    uint64_t index = 0;
    while (workers[index].end <= env) index++;
    return &workers[index];
}

static void read_letters(void)
{
    mail = puf_mail(&ring);
    for (uint64_t i = 0; i < num_workers; i++) {
        if (!atomic_load_explicit(&workers[i].letter_lies_there, memory_order_acquire)) continue;
        uint64_t env = workers[i].letter >> 32, tick = (uint32_t)workers[i].letter;
        REQUIRE(states[env] == FLYING && tick == ticks[env], "a wrong letter", env, tick, ticks[env]);
        atomic_store_explicit(&workers[i].letter_lies_there, 0, memory_order_release);
    }
}

static void take_infos(void)
{
    char bytes[MOST_INFO];
    uint32_t env, nbytes;
    uint64_t tick;
    unsigned char first;
    for (uint32_t worker = 0; worker < num_workers; worker++) {
        while (puf_peek_info(&ring, worker, &env, &nbytes, &first)) {
            REQUIRE(nbytes >= sizeof tick && nbytes <= MOST_INFO, "an info of a wrong length", worker, env, nbytes);
            puf_take_info(&ring, worker, bytes, nbytes);
            REQUIRE((char)first == bytes[0], "a wrong first byte of an info", env, first, bytes[0]);
            memcpy(&tick, bytes, sizeof tick);
            REQUIRE(worker_of(env)->index == worker && tick == ticks[env], "a wrong info", env, tick, ticks[env]);
            for (uint64_t i = sizeof tick; i < nbytes; i++)
                REQUIRE(bytes[i] == (char)((env + tick) & 0x7F), "a torn info", env, tick, i);
            infos[env] = tick;
        }
    }
}

static void post(uint32_t worker, uint32_t env, uint64_t slot)
{
    while (!puf_has_room(&ring, worker, 1)) {
        COUNT(full_boxes);
        read_letters(); /* the worker may be waiting for that */
        sched_yield();
    }
    puf_stage(&ring, worker, 0, puf_request(env, (uint32_t)slot));
    puf_post(&ring, worker, 1);
}

/* Post the requests of many environments at once, if they fit. */
static int post_together(const uint64_t *envs, uint64_t count)
{
    uint64_t laid[MOST_WORKERS] = {0};
    for (uint64_t i = 0; i < count; i++) laid[worker_of(envs[i])->index]++;
    for (uint32_t worker = 0; worker < num_workers; worker++)
        if (!puf_has_room(&ring, worker, laid[worker])) return 0;
    memset(laid, 0, sizeof laid);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t worker = worker_of(envs[i])->index;
        puf_stage(&ring, worker, laid[worker]++, puf_request((uint32_t)envs[i], (uint32_t)slots[envs[i]]));
    }
    for (uint32_t worker = 0; worker < num_workers; worker++)
        if (laid[worker]) puf_post(&ring, worker, laid[worker]);
    return 1;
}

static void act(uint64_t env)
{
    states[env] = FLYING;
    actions[env] = ++ticks[env];
}

static void send(const uint64_t *envs, uint64_t count)
{
    uint64_t block = head % ring.num_blocks;
    for (uint64_t i = 0; i < count; i++) {
        act(envs[i]);
        slots[envs[i]] = mode == SYNCHRONOUS ? block * batch_size + envs[i]
                         : mode == ORDERED   ? departed++ % ring.num_slots
                                             : PUF_CLAIM;
    }
    if (mode == SYNCHRONOUS && draw(&chance, 4)) {
        for (uint32_t worker = 0; worker < num_workers; worker++) post(worker, PUF_SHARE, block);
    } else if (draw(&chance, 2) || !post_together(envs, count)) {
        for (uint64_t i = 0; i < count; i++) {
            post(worker_of(envs[i])->index, (uint32_t)envs[i], slots[envs[i]]);
            dawdle(&chance);
        }
    }
}

static void check_row(const Row *row, uint64_t slot)
{
    uint64_t env = row->env;
    REQUIRE(env < num_envs && row->checksum == checksum(row), "a torn row", slot, env, row->tick);
    REQUIRE(states[env] == FLYING, "a row came twice", slot, env, row->tick);
    REQUIRE(row->tick == ticks[env], "a row of another tick", env, row->tick, ticks[env]);
    REQUIRE(slots[env] == PUF_CLAIM || slots[env] == slot, "a row in another's slot", slot, env, slots[env]);
    REQUIRE(ring.flags[slot] == (row->has_info ? PUF_INFO : 0), "flags of another row", slot, env, ring.flags[slot]);
}

static void check_lease(const Lease *lease)
{
    for (uint64_t i = 0; lease->copy && i < batch_size; i++)
        REQUIRE(!memcmp(&lease->rows[i], &lease->copy[i], sizeof(Row)), "a batch changed while it was leased",
                (uint64_t)(lease->rows + i - rows), lease->copy[i].env, lease->copy[i].tick);
}

static void receive(void)
{
    uint64_t first = head * batch_size, bound = (num_envs + batch_size - 1) / batch_size + 1;
    Row *batch = &rows[first % ring.num_slots], *copy = leases[0].copy;
    check_lease(&leases[0]);
    uncounted_batches += !puf_is_full(&ring, head);
    take_infos();
    leases[0] = leases[1];
    for (uint64_t i = 0; i < batch_size; i++) {
        Row *row = &batch[i];
        check_row(row, first % ring.num_slots + i);
        REQUIRE(!row->has_info || infos[row->env] == row->tick, "an info came too late", row->env, row->tick, 0);
        notes += row->has_note;
        if (mode == CLAIMED) {
            uint64_t waited = atomic_load_explicit(&received, memory_order_relaxed) + 1 - row->received;
            REQUIRE(waited <= bound, "an environment waited too long", row->env, waited, bound);
        }
        states[row->env] = WAITING;
        last[i] = row->env;
    }
    /* Looked at only now: words that are acquired would make up for a count that is not. */
    REQUIRE(puf_is_done_block(&ring, head), "a batch with a row that was not committed", head, 0, 0);
    REQUIRE(notes <= puf_notes(&ring), "a note came too late", notes, puf_notes(&ring), head);
    if (!copy) copy = malloc(batch_size * sizeof(Row));
    memcpy(copy, batch, batch_size * sizeof(Row));
    leases[1] = (Lease){batch, copy};
    if (is_short[head % ring.num_blocks] && puf_repair_count(&ring, head)) {
        is_short[head % ring.num_blocks] = 0;
        mended += --wounds == 0;
    }
    head++;
    COUNT(received);
    COUNT(moves);
}

/* Look at any slot before its block is full, as the careful path does. */
static void peek(void)
{
    uint64_t ticket = head * batch_size + draw(&chance, ring.num_slots), env = draw(&chance, num_envs);
    if (puf_is_done(&ring, ticket)) check_row(&rows[ticket % ring.num_slots], ticket % ring.num_slots);
    if (puf_is_stuck(&ring, ticket, env)) REQUIRE(states[env] == FLYING, "an idle claimant", ticket, env, 0);
}

/* Take back the row of an assigned slot before its batch is received, and ask for another in its place. */
static void take_back(void)
{
    uint64_t env = draw(&chance, num_envs), slot = slots[env];
    if (mode == CLAIMED || states[env] != FLYING) return;
    for (uint64_t ticket = head * batch_size; ticket < head * batch_size + ring.num_slots; ticket++) {
        if (ticket % ring.num_slots != slot || !puf_is_done(&ring, ticket)) continue;
        revokes++;
        take_infos();
        notes += rows[slot].has_note;
        puf_revoke(&ring, slot);
        dawdle(&chance);
        act(env);
        post(worker_of(env)->index, (uint32_t)env, slot);
        return;
    }
}

static void await_rows(uint64_t total)
{
    row_waits++;
    puf_await_row(&ring, total, mail, -1);
}

/* See whether a worker has died, whose rows may be written and not counted. */
static void look_for_deaths(void)
{
    static uint64_t seen;
    uint64_t now = atomic_load_explicit(&deaths, memory_order_relaxed);
    if (now != seen) memset(is_short, 1, wounds = ring.num_blocks);
    seen = now;
}

static void await_batch(void)
{
    for (;;) {
        if (draw(&chance, 8) == 0 && !puf_is_full(&ring, head)) take_back();
        uint64_t total = puf_total(&ring);
        read_letters();
        look_for_deaths();
        dawdle(&chance);
        if (wounds ? puf_is_done_block(&ring, head) : puf_is_full(&ring, head)) return;
        peek();
        if (!wounds && draw(&chance, 2)) {
            block_waits++;
            puf_await_block(&ring, head, mail, spins(&chance), -1);
        } else {
            await_rows(total);
        }
    }
}

static int is_settled(void)
{
    uint64_t flying = 0, done = 0, first = head * batch_size;
    for (uint64_t env = 0; env < num_envs; env++) flying += states[env] == FLYING;
    if (!wounds) return puf_counted(&ring, head) == flying;
    for (uint64_t i = 0; i < ring.num_slots; i++) done += (uint64_t)puf_is_done(&ring, first + i);
    for (uint32_t worker = 0; done == flying && worker < num_workers; worker++)
        while (!puf_is_asleep(&ring, worker)) sched_yield();
    return done == flying;
}

/* Wait until all rows are written and counted, and forget them, as a reset does. */
static void drain(void)
{
    for (;;) {
        uint64_t total = puf_total(&ring);
        read_letters();
        look_for_deaths();
        if (is_settled()) break;
        await_rows(total);
    }
    for (uint64_t ticket = head * batch_size; ticket < head * batch_size + ring.num_slots; ticket++)
        if (puf_is_done(&ring, ticket)) notes += rows[ticket % ring.num_slots].has_note;
    take_infos();
    departed = head * batch_size;
    puf_rewind(&ring, head);
    for (uint64_t env = 0; env < num_envs; env++) states[env] = WAITING;
    memset(is_short, 0, ring.num_blocks);
    wounds = 0;
    drains++;
}

static void *watch(void *unused)
{
    struct timespec pause = {0, 50000000};
    uint64_t seen = 0;
    int64_t since_ns = puf_now_ns();
    (void)unused;
    for (;;) {
        uint64_t now = atomic_load_explicit(&moves, memory_order_relaxed);
        if (now != seen) {
            seen = now;
            since_ns = puf_now_ns();
        }
        REQUIRE(puf_now_ns() - since_ns < 1e9 * patience_s, "nothing moves: a wake-up was lost", seen, 0, 0);
        nanosleep(&pause, NULL);
    }
}

static void begin(void)
{
    uint64_t num_blocks = (num_envs + batch_size - 1) / batch_size + 2;
    size_t nbytes = puf_ring_layout(&ring, NULL, num_blocks, batch_size, (uint32_t)num_workers, BOX_SIZE, PIPE_SIZE);
    char *memory = aligned_alloc(PUF_LINE, nbytes);
    pthread_t watchdog;
    memset(memory, 0, nbytes);
    puf_ring_layout(&ring, memory, num_blocks, batch_size, (uint32_t)num_workers, BOX_SIZE, PIPE_SIZE);
    puf_rewind(&ring, 0);
    rows = calloc(ring.num_slots, sizeof(Row));
    for (uint64_t i = 0; i < num_workers; i++) {
        workers[i].index = (uint32_t)i;
        workers[i].first = (uint32_t)(num_envs * i / num_workers);
        workers[i].end = (uint32_t)(num_envs * (i + 1) / num_workers);
        workers[i].random = chance * 1000003 + i + 1;
    }
    for (uint64_t i = 0; i < num_workers; i++) pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    pthread_create(&watchdog, NULL, watch, NULL);
    pthread_detach(watchdog);
}

static void end(void)
{
    uint64_t bells = 0;
    drain();
    for (uint32_t i = 0; i < num_workers; i++) {
        post(i, PUF_CONTROL, 0);
        pthread_join(workers[i].thread, NULL);
        bells += ring.boxes[i].waiter.bell;
    }
    check_lease(&leases[0]);
    check_lease(&leases[1]);
    printf("{\"laps\": %llu, \"parent_woken\": %u, \"workers_woken\": %llu",
           (unsigned long long)(head / ring.num_blocks), (unsigned)ring.waiter->bell, (unsigned long long)bells);
#define PRINT(what) printf(", \"" #what "\": %llu", (unsigned long long)what)
    PRINT(block_waits);
    PRINT(row_waits);
    PRINT(uncounted_batches);
    PRINT(mended);
    PRINT(drains);
    PRINT(revokes);
    PRINT(deaths);
    PRINT(letters);
    PRINT(full_boxes);
    PRINT(full_pipes);
    puts("}");
}

int main(int count, char **given)
{
    static const char *names[] = {"synchronous", "ordered", "claimed"};
    uint64_t all[MOST_ENVS];
    if (count != 9) fail("8 arguments are needed", (uint64_t)count - 1, 0, 0);
    while (mode < CLAIMED && strcmp(given[1], names[mode])) mode++;
    num_envs = strtoull(given[2], NULL, 10);
    num_workers = strtoull(given[3], NULL, 10);
    batch_size = strtoull(given[4], NULL, 10);
    num_batches = strtoull(given[5], NULL, 10);
    most_spins = atoi(given[6]);
    chance = strtoull(given[7], NULL, 10) * 2654435761u + 1;
    patience_s = atof(given[8]);
    if (num_envs > MOST_ENVS || num_workers > MOST_WORKERS || num_workers > num_envs || batch_size > num_envs)
        fail("impossible counts", num_envs, num_workers, batch_size);
    begin();
    for (uint64_t env = 0; env < num_envs; env++) all[env] = env;
    send(all, num_envs);
    while (received < num_batches) {
        await_batch();
        receive();
        if (draw(&chance, wounds ? 16 : 64) == 0) {
            drain();
            send(all, num_envs);
        } else {
            dawdle(&chance);
            send(last, batch_size);
        }
    }
    end();
    return 0;
}
