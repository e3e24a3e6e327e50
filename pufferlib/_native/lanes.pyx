"""Between send and recv, compiled: the ring that rows travel through, the workers' inner loop, and the parent's end.

``Ring`` is the shared words of ring.h, as one process sees them. ``Stand`` is where a worker stands: it takes requests,
steps environments and commits rows. ``Lane`` is the parent's end: it sends whole batches of actions and lands full
blocks. Both do the plain case only, from beginning to end in C; whatever is out of the ordinary (an episode's end, an
info, an observation that must be cast, an exception) they hand to the Python code that all backends share, with
nothing done twice.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pufferlib._native.pack cimport Packer, Unpacker

import numpy

__all__ = ["CLAIM", "CONTROL", "Lane", "Ring", "Stand", "Stepper"]

cdef extern from "arrays.h":
    bint puf_is_array(object, object ndarray)
    char *puf_data(object)
    int puf_ndim(object)
    Py_ssize_t puf_dim(object, int)
    PyObject *puf_descr(object)
    bint puf_is_plain(object)

cdef extern from "ring.h" nogil:
    const uint32_t PUF_CLAIM, PUF_CONTROL, PUF_SHARE
    enum: PUF_OVER, PUF_INFO
    ctypedef struct puf_door:
        pass
    ctypedef struct puf_ring:
        uint64_t num_blocks, block_size, num_slots
        uint32_t num_workers, box_size, pipe_size
        puf_door *door
        unsigned char *flags
    size_t puf_ring_lay(puf_ring *, char *, uint64_t, uint64_t, uint32_t, uint32_t, uint32_t)
    bint puf_put_info(puf_ring *, uint32_t, uint32_t, const char *, uint64_t)
    bint puf_peek_info(puf_ring *, uint32_t, uint32_t *, uint32_t *)
    void puf_take_info(puf_ring *, uint32_t, char *, uint32_t)
    void puf_rewind(puf_ring *, uint64_t)
    void puf_announce_mail(puf_ring *)
    void puf_announce_note(puf_ring *)
    uint32_t puf_mail(puf_ring *)
    uint32_t puf_notes(puf_ring *)
    uint64_t puf_request(uint32_t, uint32_t)
    uint64_t puf_room(puf_ring *, uint32_t)
    void puf_lay(puf_ring *, uint32_t, uint64_t, uint64_t)
    void puf_post(puf_ring *, uint32_t, uint64_t)
    bint puf_take(puf_ring *, uint32_t, uint64_t *)
    bint puf_await_post(puf_ring *, uint32_t, uint64_t *, int, int64_t)
    void puf_empty_box(puf_ring *, uint32_t)
    uint64_t puf_claim(puf_ring *, uint64_t)
    void puf_commit(puf_ring *, uint64_t)
    void puf_count(puf_ring *, uint64_t, uint64_t)
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

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long) noexcept

CLAIM = PUF_CLAIM
CONTROL = PUF_CONTROL

cdef object NDARRAY = numpy.ndarray
cdef object INT64 = numpy.dtype(numpy.int64)
cdef object FLOAT32 = numpy.dtype(numpy.float32)
cdef object FLOAT64 = numpy.dtype(numpy.float64)
cdef object BOOL = numpy.dtype(numpy.bool_)

cdef enum:
    SYNCHRONOUS, ORDERED, FIRST_FINISHED
    NEW = 0, WAITING = 1, FLYING = 2  # as in vectorization/flight.py
    MOST_DIMENSIONS = 8
    # As in vectorization/telemetry.py, which says what they mean.
    NUM_RECV = 0, RECV, SEND, THOUGHT, FILL_NUM, FILL_SUM, FILL_MAX, RETURNED
    NUM_BUCKETS = 128
    MOST_LEFT_OUT = 1000
    HUNDRED_COSTS_NS = 6000
    SLOW_NS = 20000

# Yielding pays while waits are short: waking who sleeps on another core takes 30 to 40 us on a virtual machine. Where
# they are long, it only takes the core from somebody who works (envs of 0.1 ms: 6 % of the throughput).
cdef int64_t LONG_WAIT_NS = 150_000
cdef double SLICE_S = 0.1  # sleeps are no longer, so that signals and deaths are seen


cdef inline int64_t expected_wait(int64_t expected_ns, int64_t latest_ns) noexcept nogil:
    """Return how long the next wait is expected to take, from what was expected of the latest and what it took."""
    return (3 * expected_ns + min(latest_ns, 10 * LONG_WAIT_NS)) // 4


cdef class Ring:
    """The shared words of ring.h in a piece of memory: a uint8 array of ``nbytes(…)``, zeroed at first.

    All processes pass the same numbers. box_size: words that each worker's mailbox holds; pipe_size: bytes that the pipe
    for each worker's infos holds; both powers of two.
    """

    cdef puf_ring c
    cdef object memory

    def __init__(
        self, memory, uint64_t num_blocks, uint64_t block_size, uint32_t num_workers, uint32_t box_size,
        uint32_t pipe_size
    ):
        self.memory = memory
        puf_ring_lay(&self.c, puf_data(memory), num_blocks, block_size, num_workers, box_size, pipe_size)

    @staticmethod
    def nbytes(
        uint64_t num_blocks, uint64_t block_size, uint32_t num_workers, uint32_t box_size, uint32_t pipe_size
    ):
        """Return how many bytes a ring takes."""
        cdef puf_ring ring
        return puf_ring_lay(&ring, NULL, num_blocks, block_size, num_workers, box_size, pipe_size)

    def rewind(self, uint64_t head):
        """Forget all rows from block number ``head`` on, counted without end; only while no worker is at work."""
        puf_rewind(&self.c, head)

    def empty_box(self, uint32_t worker):
        """Empty the mailbox of a worker that is gone."""
        puf_empty_box(&self.c, worker)

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

    def commit(self, uint64_t slot, bint over):
        """Hand over the rows of a slot that the parent itself has written."""
        self.c.flags[slot] = PUF_OVER if over else 0
        puf_commit(&self.c, slot)
        puf_count(&self.c, slot // self.c.block_size, 1)

    def revoke(self, uint64_t slot):
        """Take back the rows of an assigned slot of the block that is not full yet; only where nobody else writes."""
        puf_revoke(&self.c, slot)

    def put_info(self, uint32_t worker, uint32_t env_id, bytes payload):
        """Send bytes with the rows that an environment is about to commit; False if there is no room."""
        return puf_put_info(&self.c, worker, env_id, payload, <uint64_t>len(payload))

    def take_infos(self):
        """Return all that ``put_info`` has sent, as (worker, env_id, payload)."""
        cdef uint32_t worker, env_id = 0, nbytes = 0
        cdef bytes payload
        taken = []
        for worker in range(self.c.num_workers):
            while puf_peek_info(&self.c, worker, &env_id, &nbytes):
                payload = PyBytes_FromStringAndSize(NULL, nbytes)
                puf_take_info(&self.c, worker, PyBytes_AS_STRING(payload), nbytes)
                taken.append((worker, env_id, payload))
        return taken

    def announce(self, bint urgent):
        """Have the parent look at its sockets: at once, or once the block is full that the news belongs to."""
        if urgent:
            puf_announce_mail(&self.c)
        else:
            puf_announce_note(&self.c)


# ------------------------------------------------------------------------------------------------- the columns

cdef struct Column:
    char *data
    size_t nbytes  # of one slot


cdef class Columns:
    """The arrays of a slab by slot: where each environment's rows begin, and how many bytes they are."""

    cdef Column observations, rewards, terminations, truncations, masks, env_ids, agent_ids
    cdef bint wide_rewards  # float64
    cdef uint32_t agents_per_env
    cdef object arrays

    def __init__(self, slab, uint64_t num_slots):
        self.arrays = slab
        self.agents_per_env = slab.shape.agents_per_env
        self.observations = column(slab.observations, num_slots)
        self.rewards = column(slab.rewards, num_slots)
        self.terminations = column(slab.terminations, num_slots)
        self.truncations = column(slab.truncations, num_slots)
        self.masks = column(slab.masks, num_slots)
        self.env_ids = column(slab.env_ids, num_slots)
        self.agent_ids = column(slab.agent_ids, num_slots)
        self.wide_rewards = slab.rewards.dtype == FLOAT64

    cdef void copy(self, uint64_t slot, Columns source) noexcept nogil:
        """Copy the rows of another slab's first slot into a slot."""
        put(&self.observations, slot, source.observations.data)
        put(&self.rewards, slot, source.rewards.data)
        put(&self.terminations, slot, source.terminations.data)
        put(&self.truncations, slot, source.truncations.data)
        put(&self.masks, slot, source.masks.data)

    cdef void name(self, uint64_t slot, uint64_t env_id) noexcept nogil:
        """Say whose rows these are."""
        cdef uint32_t place
        cdef int64_t *agents = <int64_t *>(self.agent_ids.data + slot * self.agent_ids.nbytes)
        (<int64_t *>self.env_ids.data)[slot] = <int64_t>env_id
        for place in range(self.agents_per_env):
            agents[place] = <int64_t>(env_id * self.agents_per_env + place)

    cdef void outcome(self, uint64_t slot, double reward) noexcept nogil:
        """Write the outcome of a step in which one agent got a reward and nothing ended."""
        if self.wide_rewards:
            (<double *>self.rewards.data)[slot] = reward
        else:
            (<float *>self.rewards.data)[slot] = <float>reward
        self.terminations.data[slot] = 0
        self.truncations.data[slot] = 0
        self.masks.data[slot] = 1


cdef Column column(array, uint64_t num_slots):
    cdef Column its
    its.data = puf_data(array)
    its.nbytes = array.nbytes // num_slots
    return its


cdef inline void put(Column *its, uint64_t slot, const char *source) noexcept nogil:
    memcpy(its.data + slot * its.nbytes, source, its.nbytes)


# -------------------------------------------------------------------------------------------- one environment

cdef class Stepper:
    """Steps one environment of one agent, as long as nothing out of the ordinary happens.

    row_env: the RowEnv of which this is the fast twin; its ``totals`` (return and length of the episode so far) go there
    and back when a step has to be finished there. step: the raw environment's own ``step``. actions: the environment's
    action rows in the slab, one array a component. packer, unpacker: of the layouts; unpacker is None for a lone leaf.
    native: whether it is a PufferEnv, which has buffers of its own, rather than one that returns five values.
    """

    cdef object row_env, env, step
    cdef bint native
    cdef Packer packer
    cdef Unpacker unpacker
    cdef bint is_int  # the action is one int64, given as a Python int
    cdef object action  # or a view, of which copies are given; a PufferEnv reads the view itself
    cdef char *discrete
    cdef char *box
    cdef bint leaf  # observations are arrays as they come
    cdef object dtype
    cdef int ndim
    cdef Py_ssize_t[MOST_DIMENSIONS] shape
    cdef double total_reward
    cdef long length
    cdef bint ready  # the next step may be played here
    cdef uint32_t left_out, draw
    cdef uint64_t weight

    def __init__(self, row_env, env, step, actions, Packer packer, Unpacker unpacker, bint native):
        cdef int axis
        space = row_env.observation_space
        self.row_env, self.env, self.step, self.native = row_env, env, step, native
        self.packer, self.unpacker = packer, unpacker
        self.action = actions[0] if native else actions[0][0, ...]
        self.discrete = self.box = NULL
        self.is_int = False
        if unpacker is None:
            self.is_int = actions[0].dtype == INT64 and actions[0].ndim == 1
            self.discrete = puf_data(actions[0])
        else:
            for component in actions:
                if component.dtype == INT64:
                    self.discrete = puf_data(component)
                else:
                    self.box = puf_data(component)
        self.dtype = numpy.dtype(space.dtype)
        self.ndim = len(space.shape)
        self.leaf = row_env.observation_layout.is_leaf and 0 < self.ndim <= MOST_DIMENSIONS
        for axis in range(min(self.ndim, MOST_DIMENSIONS)):
            self.shape[axis] = space.shape[axis]
        self.left_out, self.draw, self.weight = 0, 1, 1

    cdef object act(self):
        """Return what the environment's step returns for the action in the slab."""
        if self.is_int:
            return self.step((<int64_t *>self.discrete)[0])
        if self.unpacker is not None:
            return self.step(self.unpacker.unpack_at(self.discrete, self.box))
        return self.step(self.action.copy())

    cdef bint fits(self, object observation):
        """Whether an observation is an array just as its space has it, or for a PufferEnv a batch of one such."""
        cdef int axis
        if not puf_is_array(observation, NDARRAY) or puf_descr(observation) != <PyObject *>self.dtype:
            return False
        if puf_ndim(observation) != self.ndim + self.native or not puf_is_plain(observation):
            return False
        if self.native and puf_dim(observation, 0) != 1:
            return False
        for axis in range(self.ndim):
            if puf_dim(observation, axis + self.native) != self.shape[axis]:
                return False
        return True

    cdef int hold(self) except -1:
        """Give the episode's totals to the plain twin, which is about to go on."""
        self.row_env.totals = (self.total_reward, self.length)
        return 0

    cdef int resume(self, bint ready) except -1:
        """Take the episode's totals back, if the next step may be played here."""
        self.ready = ready
        if ready:
            self.total_reward, self.length = self.row_env.totals
        return 0


cdef inline bint is_one(object array, object dtype):
    """Whether this is an array of one element of a dtype."""
    return (
        puf_is_array(array, NDARRAY) and puf_descr(array) == <PyObject *>dtype and puf_ndim(array) == 1 and puf_dim(array, 0) == 1
    )


# ---------------------------------------------------------------------------------------------------- a worker

cdef class Stand:
    """Where a worker stands: requests come in, rows go out.

    worker: a vectorization.worker.Worker. Its ``advance(env_id, slot)`` plays a whole step in Python and
    ``finish(env_id, slot, result)`` the rest of one; both return whether the next step may be played here again.
    ``failed(env_id, phase, error)`` tells of an exception.
    scratch: a slab of one slot, where rows are written whose slot is not known yet. claims: whether that is the rule.
    """

    cdef Ring ring
    cdef Columns columns, scratch_columns
    cdef object slab, scratch, worker
    cdef uint32_t index
    cdef uint64_t first, num_envs  # the share
    cdef list steppers  # None for environments that are always stepped in Python
    cdef uint64_t block, uncounted
    cdef readonly uint64_t played  # of what was requested last, how many environments are done
    cdef bint claims, telemetry
    cdef bint is_slow  # the last step took so long that reading the clock is nothing beside it
    cdef double[:, :, ::1] times
    cdef uint64_t[:, ::1] histogram
    cdef double[:, ::1] worker_times
    cdef int64_t since_ns, reset_ns, expected_ns

    def __init__(self, Ring ring, slab, scratch, worker, share, uint32_t index, bint claims):
        self.ring, self.slab, self.scratch, self.worker, self.index = ring, slab, scratch, worker, index
        self.columns, self.scratch_columns = Columns(slab, ring.c.num_slots), Columns(scratch, 1)
        self.first, self.num_envs = share[0], len(share)
        self.steppers = [None] * len(share)
        self.block = self.uncounted = 0
        self.claims, self.telemetry = claims, slab.shape.telemetry
        self.times, self.histogram, self.worker_times = slab.times, slab.histogram, slab.worker_times
        self.since_ns = puf_now_ns()

    def adopt(self, uint64_t env_id, Stepper stepper):
        """Have an environment stepped by its fast twin wherever that is possible."""
        self.steppers[env_id - self.first] = stepper

    def resume(self, uint64_t env_id, bint ready):
        """Say whether the next step of an environment may be played here."""
        stepper = self.steppers[env_id - self.first]
        if stepper is not None:
            (<Stepper>stepper).resume(ready)

    def rows(self, uint32_t slot):
        """Return where an environment writes its rows that are meant for a slot."""
        return self.scratch.rows(0) if slot == PUF_CLAIM else self.slab.rows(slot)

    def commit(self, uint64_t env_id, uint32_t slot, bint over, bint has_info):
        """Hand over the rows that an environment has written."""
        if slot == PUF_CLAIM:
            slot = self.claim(env_id)
            self.columns.copy(slot, self.scratch_columns)
            self.hand_over(env_id, slot, over, has_info)
            self.flush()
        else:
            self.hand_over(env_id, slot, over, has_info)

    cdef uint32_t claim(self, uint64_t env_id):
        cdef uint64_t ticket = puf_claim(&self.ring.c, env_id)
        cdef uint64_t slot = ticket % self.ring.c.num_slots
        if ticket % self.ring.c.block_size == 0:
            puf_begin(&self.ring.c, slot // self.ring.c.block_size, puf_now_ns())
        return <uint32_t>slot

    cdef void hand_over(self, uint64_t env_id, uint32_t slot, bint over, bint has_info):
        self.turn_to(slot)
        self.columns.name(slot, env_id)
        self.ring.c.flags[slot] = (PUF_OVER if over else 0) | (PUF_INFO if has_info else 0)
        puf_commit(&self.ring.c, slot)
        self.uncounted += 1

    cdef inline void turn_to(self, uint32_t slot):
        """Count what was handed over of another block, before going on to this one."""
        if slot // self.ring.c.block_size != self.block:
            self.flush()
            self.block = slot // self.ring.c.block_size

    cpdef void flush(self):
        """Count what was handed over: once for all neighbours, as the parent can use none before the last."""
        if self.uncounted:
            puf_count(&self.ring.c, self.block, self.uncounted)
            self.uncounted = 0

    def serve(self, int spin):
        """Play what is requested; return when there is a frame to be read from the socket.

        spin: how often to yield the core before sleeping, as long as waits are short.
        """
        cdef uint64_t word
        cdef bint found
        cdef int yields
        cdef uint32_t words = 0
        cdef int64_t wait_ns
        while True:
            if not puf_take(&self.ring.c, self.index, &word):
                self.flush()
                self.clock(0)
                wait_ns = self.since_ns
                yields = spin if self.expected_ns < LONG_WAIT_NS else 0
                with nogil:
                    found = puf_await_post(&self.ring.c, self.index, &word, yields, -1)
                self.clock(1)
                self.expected_ns = expected_wait(self.expected_ns, self.since_ns - wait_ns)
                if not found:
                    PyErr_CheckSignals()
                    continue
            if <uint32_t>word == PUF_CONTROL:
                self.flush()
                return
            if <uint32_t>word == PUF_SHARE:
                self.play_share(word >> 32)
            else:
                self.play(<uint32_t>word, word >> 32)
                words += 1
                if self.is_slow or words % 16 == 0:  # who always has work never waits, and would never be clocked
                    self.clock(0)

    cdef void clock(self, int kind) noexcept:
        """Note the seconds since the last call as busy (0) or waited (1). Waits are clocked for their own sake too."""
        cdef int64_t now_ns = puf_now_ns()
        self.worker_times[self.index, kind] += 1e-9 * (now_ns - self.since_ns)
        self.since_ns = now_ns

    def step_all(self, uint64_t block):
        """Step all environments of the share into a block."""
        self.played = 0
        try:
            self.clock(1)
            self.play_share(block)
        finally:
            self.flush()
            self.clock(0)

    def step(self, env_ids, slots):
        """Step these environments, in this order, into these slots."""
        self.played = 0
        try:
            self.clock(1)
            for env_id, slot in zip(env_ids, slots):
                self.play(env_id, slot)
                self.played += 1
        finally:
            self.flush()
            self.clock(0)

    cdef int play_share(self, uint64_t block) except -1:
        cdef uint64_t env_id
        cdef uint64_t base = block * self.ring.c.block_size
        for env_id in range(self.first, self.first + self.num_envs):
            self.play(env_id, <uint32_t>(base + env_id))
            self.played += 1
        return 0

    cdef int play(self, uint64_t env_id, uint32_t slot) except -1:
        cdef object found = self.steppers[env_id - self.first]
        cdef Stepper stepper
        cdef bint timed
        cdef int64_t start_ns = 0
        if slot != PUF_CLAIM:
            self.turn_to(slot)
        if found is None:
            self.is_slow = True
            self.worker.advance(env_id, slot)
            return 0
        self.is_slow = False
        stepper = <Stepper>found
        if not stepper.ready:
            stepper.resume(self.worker.advance(env_id, slot))
            return 0
        timed = self.telemetry and stepper.left_out == 0
        if timed:
            self.reset_ns = 0
            start_ns = puf_now_ns()
        elif self.telemetry:
            stepper.left_out -= 1
        try:
            if stepper.native:
                self.step_native(stepper, env_id, slot)
            else:
                self.step_raw(stepper, env_id, slot)
        except (Exception, SystemExit) as error:
            stepper.ready = False
            self.worker.failed(env_id, "step", error)
        if timed:
            self.note(stepper, env_id, puf_now_ns() - start_ns - self.reset_ns)
        return 0

    cdef int step_raw(self, Stepper stepper, uint64_t env_id, uint32_t slot) except -1:
        cdef object result = stepper.act()
        cdef object observation, info
        cdef double reward
        if type(result) is tuple and PyTuple_GET_SIZE(result) == 5:
            info = <object>PyTuple_GET_ITEM(result, 4)
            if (
                PyFloat_CheckExact(<object>PyTuple_GET_ITEM(result, 1))
                and <object>PyTuple_GET_ITEM(result, 2) is False
                and <object>PyTuple_GET_ITEM(result, 3) is False
                and (info is None or (type(info) is dict and len(<dict>info) == 0))
            ):
                observation = <object>PyTuple_GET_ITEM(result, 0)
                reward = PyFloat_AS_DOUBLE(<object>PyTuple_GET_ITEM(result, 1))
                if self.write(stepper, observation, env_id, &slot):
                    self.conclude(stepper, env_id, slot, reward)
                    return 0
        self.hand_back(stepper, env_id, slot, result)
        return 0

    cdef int hand_back(self, Stepper stepper, uint64_t env_id, uint32_t slot, object result) except -1:
        """Have a step finished in Python. Time that went into a reset is none of the step's."""
        stepper.hold()
        stepper.resume(self.worker.finish(env_id, slot, result))
        self.reset_ns = <int64_t>(1e9 * self.worker.reset_s)
        return 0

    cdef bint write(self, Stepper stepper, object observation, uint64_t env_id, uint32_t *slot) except -1:
        """Write an observation if it is as it should be; a slot is claimed only once nothing can go wrong."""
        cdef Column *its = &self.columns.observations
        if stepper.leaf:
            if not stepper.fits(observation):
                return False
            if slot[0] == PUF_CLAIM:
                slot[0] = self.claim(env_id)
            memcpy(its.data + slot[0] * its.nbytes, puf_data(observation), its.nbytes)
            return True
        if slot[0] != PUF_CLAIM:
            return stepper.packer.pack_at(observation, its.data + slot[0] * its.nbytes)
        if not stepper.packer.pack_at(observation, self.scratch_columns.observations.data):
            return False
        slot[0] = self.claim(env_id)
        put(its, slot[0], self.scratch_columns.observations.data)
        return True

    cdef void conclude(self, Stepper stepper, uint64_t env_id, uint32_t slot, double reward):
        stepper.total_reward += reward
        stepper.length += 1
        self.columns.outcome(slot, reward)
        self.hand_over(env_id, slot, False, False)
        if self.claims:
            self.flush()

    cdef int step_native(self, Stepper stepper, uint64_t env_id, uint32_t slot) except -1:
        cdef object env = stepper.env
        cdef object rewards = env.rewards, terminations = env.terminations, truncations = env.truncations
        cdef object alive = env.alive
        cdef object infos, observations
        cdef bint wide = is_one(rewards, FLOAT64)
        if not (
            (wide or is_one(rewards, FLOAT32))
            and is_one(terminations, BOOL) and is_one(truncations, BOOL) and is_one(alive, BOOL)
            and puf_data(alive)[0]
        ):
            stepper.hold()
            stepper.resume(self.worker.advance(env_id, slot))
            return 0
        if wide:
            (<double *>puf_data(rewards))[0] = 0
        else:
            (<float *>puf_data(rewards))[0] = 0
        puf_data(terminations)[0] = puf_data(truncations)[0] = 0
        infos = stepper.step(stepper.action)
        observations = env.observations
        if (
            infos is None
            and env.rewards is rewards and env.terminations is terminations and env.truncations is truncations
            and env.alive is alive and puf_data(alive)[0]
            and not puf_data(terminations)[0] and not puf_data(truncations)[0]
            and stepper.fits(observations)
        ):
            if slot == PUF_CLAIM:
                slot = self.claim(env_id)
            put(&self.columns.observations, slot, puf_data(observations))
            self.conclude(
                stepper, env_id, slot,
                (<double *>puf_data(rewards))[0] if wide else (<float *>puf_data(rewards))[0],
            )
            return 0
        self.hand_back(stepper, env_id, slot, infos)
        return 0

    cdef int note(self, Stepper stepper, uint64_t env_id, int64_t ns) except -1:
        """Note how long a step took, and which is the next to be timed (vectorization/telemetry.py says why so)."""
        cdef double seconds, weighted
        cdef int bucket, octave
        cdef uint64_t most
        ns = max(1, ns)
        seconds = 1e-9 * ns
        weighted = stepper.weight * seconds
        self.times[env_id, 0, 0] += stepper.weight
        self.times[env_id, 0, 1] += weighted
        self.times[env_id, 0, 2] += weighted * seconds
        if seconds > self.times[env_id, 0, 3]:
            self.times[env_id, 0, 3] = seconds
        octave = 63 - leading_zeros(<uint64_t>ns)
        bucket = 4 * octave + <int>((<uint64_t>ns << 2 >> octave) & 3)
        self.histogram[env_id, min(bucket, NUM_BUCKETS - 1)] += stepper.weight
        self.is_slow = ns >= SLOW_NS
        if ns >= HUNDRED_COSTS_NS:
            stepper.weight = 1
            return 0
        most = 2 * min(<uint64_t>MOST_LEFT_OUT, <uint64_t>(HUNDRED_COSTS_NS // ns))
        stepper.draw = stepper.draw * 1664525 + 1013904223
        stepper.left_out = (stepper.draw >> 8) % <uint32_t>(most + 1)
        stepper.weight = stepper.left_out + 1
        return 0


# -------------------------------------------------------------------------------------------------- the parent

cdef class Lane:
    """The parent's end: whole batches of actions go out, full blocks come in.

    ``send`` and ``recv`` do the plain case and say so; otherwise they have changed nothing, and VecEnv goes the careful
    way, over the other methods. states, overs: those of vectorization.flight.Flight, shared with this. mode: SYNCHRONOUS,
    ORDERED or FIRST_FINISHED. play, step: in place of mailboxes, called as ``play(block)`` and ``step(env_ids, slots)``;
    play is None where workers are processes. collect: called before rows with infos land; returns False if these cannot
    be read. gather: called with env ids for their infos, in turn.
    """

    cdef Ring ring
    cdef int mode, spin
    cdef object states_memory, overs_memory, play, step, collect, gather, batch_type
    cdef unsigned char *states
    cdef unsigned char *overs
    cdef unsigned int[::1] worker_of
    cdef unsigned int[::1] last  # the environments of the last batch
    cdef unsigned int[::1] slots  # of each environment, the one that was assigned to it last
    cdef uint64_t[::1] laid  # words laid for each worker and not posted yet
    cdef uint64_t num_envs, num_last
    cdef readonly uint64_t head  # the number of the block that is received next, counted without end
    cdef public uint64_t departed  # the next ticket, where batches come in the order of sending
    cdef public uint64_t coming  # environments that were sent something and have not landed
    cdef public bint clear  # nothing stands in the way of the plain case
    cdef uint32_t mail, notes  # what was seen of the ring's
    cdef uint64_t total
    cdef public object batch
    cdef list blocks  # of each: the arrays of its batch
    cdef object action_dtype  # None where actions are more than one array
    cdef char *actions
    cdef size_t action_nbytes  # of one environment
    cdef int ndim
    cdef Py_ssize_t[MOST_DIMENSIONS] shape
    cdef bint disabled  # autoreset_mode is: who is over may not act
    cdef bint telemetry
    cdef int64_t *env_ids  # of each slot
    cdef object slab
    cdef double[::1] parent_times
    cdef int64_t expected_ns  # of the next wait

    def __init__(self, Ring ring, int mode, bytearray states, bytearray overs, worker_of, slab, list blocks, batch_type,
                 collect, gather, play, step, int spin, bint disabled, parent_times):
        cdef int axis
        self.ring, self.mode, self.spin, self.disabled = ring, mode, spin, disabled
        self.states_memory, self.overs_memory = states, overs  # never resized, so that they stay where they are
        self.states, self.overs = states, overs
        self.worker_of = numpy.array(worker_of, numpy.uint32)
        self.num_envs = len(states)
        self.last = numpy.zeros(ring.c.block_size, numpy.uint32)
        self.slots = numpy.zeros(self.num_envs, numpy.uint32)
        self.laid = numpy.zeros(ring.c.num_workers, numpy.uint64)
        self.blocks, self.batch_type, self.collect, self.gather = blocks, batch_type, collect, gather
        self.play, self.step = play, step
        self.num_last = self.head = self.departed = self.coming = 0
        self.mail = self.notes = 0
        self.clear = True
        self.parent_times = parent_times
        self.telemetry = slab.shape.telemetry
        self.slab, self.env_ids = slab, <int64_t *>puf_data(slab.env_ids)
        array = slab.actions[0]
        self.action_dtype = None
        if len(slab.actions) == 1 and array.ndim <= MOST_DIMENSIONS:
            self.action_dtype = array.dtype
            self.actions, self.ndim = puf_data(array), array.ndim
            self.action_nbytes = array.nbytes // self.num_envs
            for axis in range(self.ndim):
                self.shape[axis] = array.shape[axis]
            self.shape[0] = self.shape[0] // self.num_envs * ring.c.block_size

    @property
    def last_ids(self):
        """The environments of the last batch, None before the first."""
        return numpy.asarray(self.last).tolist() if self.num_last else None

    # ------------------------------------------------------------------------------------------ the plain case

    def send(self, actions):
        """Send actions for the last batch if that is plain; return whether it was."""
        cdef int64_t start_ns = puf_now_ns() if self.telemetry else 0
        cdef double seconds
        if not self.send_plain(actions, start_ns):
            return False
        if not self.telemetry:
            return True
        seconds = 1e-9 * (puf_now_ns() - start_ns)
        self.parent_times[SEND] += seconds
        if self.parent_times[RETURNED]:
            self.parent_times[THOUGHT] -= seconds
        return True

    cdef bint send_plain(self, object actions, int64_t now_ns) except -1:
        cdef uint64_t i
        cdef uint32_t env_id, worker
        cdef puf_ring *ring = &self.ring.c
        cdef const char *source
        if not self.clear or not self.num_last or not self.acceptable(actions):
            return False
        for i in range(self.num_last):
            env_id = self.last[i]
            if self.states[env_id] != WAITING or (self.disabled and self.overs[env_id]):
                return False
        if self.play is None:
            for worker in range(ring.num_workers):
                if puf_room(ring, worker) < ring.block_size:
                    return False
        source = puf_data(actions)
        if self.mode == SYNCHRONOUS:
            memcpy(self.actions, source, self.num_envs * self.action_nbytes)
            memset(self.states, FLYING, self.num_envs)
            puf_begin(ring, self.head % ring.num_blocks, now_ns)
            self.coming = self.num_envs
            if self.play is not None:
                self.play(self.head % ring.num_blocks)
                return True
            for worker in range(ring.num_workers):
                puf_lay(ring, worker, 0, puf_request(PUF_SHARE, <uint32_t>(self.head % ring.num_blocks)))
                puf_post(ring, worker, 1)
            return True
        for i in range(self.num_last):
            memcpy(self.actions + self.last[i] * self.action_nbytes, source + i * self.action_nbytes, self.action_nbytes)
        if self.play is not None:
            env_ids = self.last_ids
            self.step(env_ids, self.depart(env_ids))
            return True
        for i in range(self.num_last):
            env_id = self.last[i]
            worker = self.worker_of[env_id]
            puf_lay(ring, worker, self.laid[worker], puf_request(env_id, self.leave(env_id)))
            self.laid[worker] += 1
        for worker in range(ring.num_workers):
            if self.laid[worker]:
                puf_post(ring, worker, self.laid[worker])
                self.laid[worker] = 0
        return True

    cdef bint acceptable(self, object actions):
        """Whether actions are one array, just as the slab has them."""
        cdef int axis
        if not puf_is_array(actions, NDARRAY) or puf_descr(actions) != <PyObject *>self.action_dtype:
            return False
        if puf_ndim(actions) != self.ndim or not puf_is_plain(actions):
            return False
        for axis in range(self.ndim):
            if puf_dim(actions, axis) != self.shape[axis]:
                return False
        return True

    def recv(self, double timeout_s):
        """Return the next batch if it comes in time (and soon) and nothing but rows does; None otherwise."""
        cdef puf_ring *ring = &self.ring.c
        cdef bint found = True
        cdef int64_t start_ns
        if not self.clear or self.coming < ring.block_size:
            return None
        start_ns = puf_now_ns() if self.telemetry else 0
        if not puf_is_full(ring, self.head):
            self.await_block(timeout_s)
            found = puf_is_full(ring, self.head)
        if self.has_news():  # asked after the block was full: what its rows left in a socket is there by now
            found = False
        if found and self.has_infos():
            found = self.collect()
        if found:
            self.land()
        if self.telemetry:
            self.note(start_ns, found)
        return self.batch if found else None

    # ---------------------------------------------------------------------------------------- the careful way

    def depart(self, env_ids):
        """Note that environments are sent something; return the slots that their rows go to."""
        if self.mode == SYNCHRONOUS and not self.coming:
            puf_begin(&self.ring.c, self.head % self.ring.c.num_blocks, puf_now_ns())
        return [self.leave(env_id) for env_id in env_ids]

    cdef uint32_t leave(self, uint32_t env_id):
        cdef uint64_t ticket
        cdef uint32_t slot
        self.states[env_id] = FLYING
        self.coming += 1
        if self.mode == SYNCHRONOUS:
            return self.slot_of(env_id)
        if self.mode == FIRST_FINISHED:
            return PUF_CLAIM
        ticket = self.departed
        self.departed += 1
        if ticket % self.ring.c.block_size == 0:
            puf_begin(&self.ring.c, ticket // self.ring.c.block_size % self.ring.c.num_blocks, puf_now_ns())
        slot = <uint32_t>(ticket % self.ring.c.num_slots)
        self.slots[env_id] = slot
        return slot

    def coming_slots(self, env_ids):
        """Return the slots that ``depart`` would."""
        cdef puf_ring *ring = &self.ring.c
        if self.mode == SYNCHRONOUS:
            return [self.slot_of(env_id) for env_id in env_ids]
        if self.mode == FIRST_FINISHED:
            return [PUF_CLAIM] * len(env_ids)
        return [(self.departed + index) % ring.num_slots for index in range(len(env_ids))]

    def look(self):
        """Note what has come so far: all of it is about to be seen to, but what comes after this ends a wait."""
        self.mail, self.notes = puf_mail(&self.ring.c), puf_notes(&self.ring.c)
        self.total = puf_total(&self.ring.c)

    cdef bint has_infos(self) noexcept:
        """Whether rows of the next block, which is full, come with infos."""
        cdef uint64_t i
        cdef unsigned char *flags = self.ring.c.flags + self.head % self.ring.c.num_blocks * self.ring.c.block_size
        for i in range(self.ring.c.block_size):
            if flags[i] & PUF_INFO:
                return True
        return False

    cpdef bint has_news(self):
        """Return whether anything has come, beside rows, since ``look``."""
        return puf_mail(&self.ring.c) != self.mail or puf_notes(&self.ring.c) != self.notes

    def await_block(self, double timeout_s):
        """Wait for the next block to be full or for urgent news, no longer than a slice of time."""
        cdef int64_t timeout_ns = <int64_t>(1e9 * min(timeout_s, SLICE_S))
        cdef int64_t start_ns = puf_now_ns()
        cdef int yields = self.spin if self.expected_ns < LONG_WAIT_NS else 0
        with nogil:
            puf_await_block(&self.ring.c, self.head, self.mail, yields, timeout_ns)
        self.expected_ns = expected_wait(self.expected_ns, puf_now_ns() - start_ns)
        PyErr_CheckSignals()

    def await_row(self, double timeout_s):
        """Wait for any row or for urgent news, no longer than a slice of time."""
        cdef int64_t timeout_ns = <int64_t>(1e9 * min(timeout_s, SLICE_S))
        with nogil:
            puf_await_row(&self.ring.c, self.total, self.mail, timeout_ns)
        PyErr_CheckSignals()

    def is_full(self, bint by_words):
        """Return whether the next block is full, told by its words (which are the truth) or by its count."""
        if by_words:
            return puf_is_done_block(&self.ring.c, self.head)
        return puf_is_full(&self.ring.c, self.head)

    def land(self):
        """Take the next block, which must be full: its environments wait now, and ``batch`` is its batch."""
        cdef puf_ring *ring = &self.ring.c
        cdef uint64_t block = self.head % ring.num_blocks
        cdef unsigned char *flags = ring.flags + block * ring.block_size
        cdef unsigned char any_flags = 0
        cdef uint64_t i
        cdef uint32_t env_id
        cdef tuple arrays = <tuple>self.blocks[block]
        cdef double fill_s = 1e-9 * puf_filled_in_ns(ring, block)
        if self.mode == SYNCHRONOUS:
            memset(self.states, WAITING, self.num_envs)
            for i in range(self.num_envs):
                self.overs[i] = flags[i] & PUF_OVER
                any_flags |= flags[i]
                self.last[i] = <uint32_t>i
        else:
            for i in range(ring.block_size):
                env_id = <uint32_t>self.env_ids[block * ring.block_size + i]
                self.last[i] = env_id
                self.states[env_id] = WAITING
                self.overs[env_id] = flags[i] & PUF_OVER
                any_flags |= flags[i]
        self.num_last = ring.block_size
        self.coming -= ring.block_size
        self.head += 1
        infos = self.gather(self.last_ids) if any_flags & PUF_INFO else []
        self.batch = tuple.__new__(
            self.batch_type,
            (arrays[0], arrays[1], arrays[2], arrays[3], infos, arrays[4], arrays[5], arrays[6]),
        )
        if fill_s > 0:
            self.parent_times[FILL_NUM] += 1
            self.parent_times[FILL_SUM] += fill_s
            self.parent_times[FILL_MAX] = max(self.parent_times[FILL_MAX], fill_s)
        return block

    cdef void note(self, int64_t start_ns, bint found) noexcept:
        """Note for telemetry where the parent's time goes."""
        cdef double start_s = 1e-9 * start_ns
        cdef double end_s = 1e-9 * puf_now_ns()
        if self.parent_times[RETURNED]:
            self.parent_times[THOUGHT] += start_s - self.parent_times[RETURNED]
        self.parent_times[RETURNED] = end_s  # if nothing was found, recv goes on at once
        self.parent_times[RECV] += end_s - start_s
        self.parent_times[NUM_RECV] += found

    cpdef uint32_t slot_of(self, uint32_t env_id):
        """Return the slot that is assigned to an environment; none is where slots are claimed."""
        if self.mode == SYNCHRONOUS:
            return <uint32_t>(self.head % self.ring.c.num_blocks * self.ring.c.block_size + env_id)
        return self.slots[env_id]

    def has_claimed(self, uint64_t env_id):
        """Return whether an environment has claimed a slot and not written its rows."""
        cdef uint64_t ticket
        cdef uint64_t first = self.head * self.ring.c.block_size
        for ticket in range(first, first + self.ring.c.num_slots):
            if puf_is_stuck(&self.ring.c, ticket, env_id):
                return True
        return False

    def skip(self, uint64_t head):
        """Go on at block number ``head`` with nothing under way, after a rewind of the ring."""
        self.head, self.departed, self.coming = head, head * self.ring.c.block_size, 0

    def forget(self):
        """Forget the last batch: there is none to act on any more."""
        self.num_last = 0

    def counted(self):
        """Return how many environments' rows lie there, counted, and were not received."""
        return puf_counted(&self.ring.c, self.head)

    def is_asleep(self, uint32_t worker):
        """Return whether a worker sleeps, and so has nothing left to count."""
        return bool(puf_is_asleep(&self.ring.c, worker))

    def landed(self):
        """Return the environments whose rows lie there and were not received."""
        cdef uint64_t ticket
        cdef uint64_t first = self.head * self.ring.c.block_size
        found = []
        for ticket in range(first, first + self.ring.c.num_slots):
            if puf_is_done(&self.ring.c, ticket):
                found.append(self.env_ids[ticket % self.ring.c.num_slots])
        return found
