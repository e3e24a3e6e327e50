// Measure the least cost of communication between processes. limits.py compiles and runs this:
//
//   limits copy BYTES SECONDS                seconds of a memcpy
//   limits yield SECONDS                     seconds of a sched_yield
//   limits trip METHOD CPU CPU SECONDS       seconds of a round trip between processes on these two CPUs
//   limits wake METHOD CPU CPU COUNT         median of COUNT times until a sleeping process runs
//   limits batch WORKERS SECONDS             seconds to start a round of all workers and wait until all are done
//   limits first METHOD WORKERS SECONDS      the same once, by pipe or futex, after all have slept for SECONDS
//
// METHOD is pipe, eventfd, futex or flag. Prints one number.

#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { MOST_WORKERS = 64, YIELDS = 50, CHECK_EVERY = 64, WARM_UP_ROUNDS = 1000 };
static const long PAUSE_NS = 1000000;  // until a waiting process and its CPU are asleep

// A word on its own cache line: a count of rounds, and whether a process sleeps until the count changes.
typedef struct {
    _Alignas(64) atomic_uint rounds;
    atomic_uint asleep;
} Word;

typedef struct {
    Word go[MOST_WORKERS], done;
    _Atomic double woken_at;
} Shared;

static Shared *shared;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void on_cpu(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) {
        perror("sched_setaffinity");
        exit(1);
    }
}

// Wait until a word is at least `round`: yield at most `yields` times, then sleep.
static void await(Word *word, unsigned round, int yields) {
    for (int i = 0; i < yields; i++) {
        if ((int)(atomic_load(&word->rounds) - round) >= 0) return;
        sched_yield();
    }
    for (;;) {
        atomic_store(&word->asleep, 1);  // before the load, or the process that changes the word may see no sleeper
        unsigned current = atomic_load(&word->rounds);
        if ((int)(current - round) >= 0) break;
        syscall(SYS_futex, &word->rounds, FUTEX_WAIT, current, NULL, NULL, 0);
    }
    atomic_store(&word->asleep, 0);
}

// Add a round to a word; wake the process that sleeps on it if it waits for this round.
static void ring(Word *word, unsigned waited_for) {
    unsigned rounds = atomic_fetch_add(&word->rounds, 1) + 1;
    if (rounds == waited_for && atomic_load(&word->asleep))
        syscall(SYS_futex, &word->rounds, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static pid_t start(void) {
    pid_t child = fork();
    if (!child) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

static void end(const pid_t *children, int count) {
    for (int i = 0; i < count; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
}

// ------------------------------------------------------------------------------------------- two processes

typedef struct {
    const char *method;
    int fds[2][2];  // for each direction, the end to read and the end to write
} Link;

static Link connect_by(const char *method) {
    Link link = {.method = method};
    for (int way = 0; way < 2; way++) {
        if (!strcmp(method, "pipe") && pipe(link.fds[way])) exit(1);
        if (!strcmp(method, "eventfd")) link.fds[way][0] = link.fds[way][1] = eventfd(0, 0);
    }
    return link;
}

static Word *word_of(int way) { return way ? &shared->done : &shared->go[0]; }

static void tell(Link *link, int way, unsigned round) {
    unsigned long long one = 1;
    if (!strcmp(link->method, "pipe")) {
        if (write(link->fds[way][1], &one, 1) != 1) exit(1);
    } else if (!strcmp(link->method, "eventfd")) {
        if (write(link->fds[way][1], &one, 8) != 8) exit(1);
    } else {
        ring(word_of(way), round);
    }
}

static void hear(Link *link, int way, unsigned round) {
    unsigned long long got;
    if (!strcmp(link->method, "pipe")) {
        if (read(link->fds[way][0], &got, 1) != 1) exit(1);
    } else if (!strcmp(link->method, "eventfd")) {
        if (read(link->fds[way][0], &got, 8) != 8) exit(1);
    } else if (!strcmp(link->method, "futex")) {
        await(word_of(way), round, 0);
    } else {
        while (atomic_load(&word_of(way)->rounds) != round) sched_yield();
    }
}

static double trip(const char *method, int parent_cpu, int child_cpu, double seconds) {
    Link link = connect_by(method);
    pid_t child = start();
    on_cpu(child ? parent_cpu : child_cpu);
    if (!child)
        for (unsigned round = 1;; round++) {
            hear(&link, 0, round);
            tell(&link, 1, round);
        }
    double begun = 0, ended = 0;
    unsigned count = 0;
    for (unsigned round = 1; !begun || (ended = now()) - begun < seconds;) {
        if (round > CHECK_EVERY && !begun) begun = now();  // the rounds before were the warm-up
        for (int i = 0; i < CHECK_EVERY; i++, round++) {
            tell(&link, 0, round);
            hear(&link, 1, round);
        }
        count += begun ? CHECK_EVERY : 0;
    }
    end(&child, 1);
    return (ended - begun) / count;
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static double wake(const char *method, int parent_cpu, int child_cpu, int count) {
    Link link = connect_by(method);
    pid_t child = start();
    on_cpu(child ? parent_cpu : child_cpu);
    if (!child)
        for (unsigned round = 1;; round++) {
            hear(&link, 0, round);
            atomic_store(&shared->woken_at, now());
            ring(&shared->done, round);
        }
    double *times = calloc(count, sizeof *times);
    for (int i = 0; i < count; i++) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        double begun = now();
        tell(&link, 0, i + 1);
        await(&shared->done, i + 1, 0);
        times[i] = atomic_load(&shared->woken_at) - begun;
    }
    end(&child, 1);
    qsort(times, count, sizeof *times, ascending);
    return times[count / 2];
}

// ---------------------------------------------------------------------------------------- many processes

static double batch(int workers, double seconds) {
    pid_t children[MOST_WORKERS];
    for (int i = 0; i < workers; i++) {
        children[i] = start();
        if (!children[i])
            for (unsigned round = 1;; round++) {
                await(&shared->go[i], round, YIELDS);
                ring(&shared->done, round * workers);
            }
    }
    double begun = 0, ended = 0;
    unsigned count = 0;
    for (unsigned round = 1; !begun || (ended = now()) - begun < seconds; round++) {
        if (round > 10 && !begun) begun = now();
        for (int i = 0; i < workers; i++) ring(&shared->go[i], round);
        await(&shared->done, round * workers, YIELDS);
        count += begun > 0;
    }
    end(children, workers);
    return (ended - begun) / count;
}

static double first(const char *method, int workers, double seconds) {
    pid_t children[MOST_WORKERS];
    int by_pipe = !strcmp(method, "pipe"), go[MOST_WORKERS][2], done[2];
    char byte = 0;
    if (pipe(done)) exit(1);
    for (int i = 0; i < workers; i++) {
        if (pipe(go[i])) exit(1);
        children[i] = start();
        for (unsigned round = 1; !children[i]; round++) {
            if (by_pipe) {
                if (read(go[i][0], &byte, 1) != 1 || write(done[1], &byte, 1) != 1) exit(1);
            } else {
                await(&shared->go[i], round, YIELDS);
                ring(&shared->done, round * workers);
            }
        }
    }
    double begun = 0, ended = 0;
    for (unsigned round = 1; round <= WARM_UP_ROUNDS + 1; round++) {
        if (round > WARM_UP_ROUNDS) usleep(seconds * 1e6);
        begun = now();
        for (int i = 0; i < workers; i++) {
            if (!by_pipe) ring(&shared->go[i], round);
            else if (write(go[i][1], &byte, 1) != 1) exit(1);
        }
        if (!by_pipe) await(&shared->done, round * workers, YIELDS);
        for (int i = 0; by_pipe && i < workers; i++)
            if (read(done[0], &byte, 1) != 1) exit(1);
        ended = now();
    }
    end(children, workers);
    return ended - begun;
}

// -------------------------------------------------------------------------------------------- one process

static double copy(size_t bytes, double seconds) {
    char *from = malloc(bytes), *to = malloc(bytes);
    memset(from, 1, bytes);
    memset(to, 2, bytes);
    int at_once = bytes < 1 << 20 ? CHECK_EVERY : 1;
    double begun = now(), ended;
    unsigned count = 0;
    do {
        for (int i = 0; i < at_once; i++) {
            memcpy(to, from, bytes);
            __asm__ volatile("" : : "r"(to) : "memory");  // keeps the copy: its result may be read
        }
        count += at_once;
    } while ((ended = now()) - begun < seconds);
    return (ended - begun) / count;
}

static double yield(double seconds) {
    double begun = now(), ended;
    unsigned count = 0;
    do {
        for (int i = 0; i < CHECK_EVERY; i++) sched_yield();
        count += CHECK_EVERY;
    } while ((ended = now()) - begun < seconds);
    return (ended - begun) / count;
}

int main(int argc, char **argv) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *what = argc > 1 ? argv[1] : "";
    double result;
    if (!strcmp(what, "copy") && argc == 4) result = copy(strtoull(argv[2], NULL, 10), atof(argv[3]));
    else if (!strcmp(what, "yield") && argc == 3) result = yield(atof(argv[2]));
    else if (!strcmp(what, "trip") && argc == 6) result = trip(argv[2], atoi(argv[3]), atoi(argv[4]), atof(argv[5]));
    else if (!strcmp(what, "wake") && argc == 6) result = wake(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    else if (!strcmp(what, "batch") && argc == 4 && atoi(argv[2]) <= MOST_WORKERS)
        result = batch(atoi(argv[2]), atof(argv[3]));
    else if (!strcmp(what, "first") && argc == 5 && atoi(argv[3]) <= MOST_WORKERS)
        result = first(argv[2], atoi(argv[3]), atof(argv[4]));
    else return 2;
    printf("%.12g\n", result);
    return 0;
}
