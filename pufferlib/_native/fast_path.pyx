"""The parent's end of the ring: send a batch of actions, receive a full block.

The plain case runs entirely in C; VecEnv does everything else in Python, over the same shared words.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.string cimport memcpy, memset

from pufferlib._native.arrays cimport puf_data, puf_descr, puf_dim, puf_is_array, puf_is_plain, puf_ndim
from pufferlib._native.infos cimport EPISODE, HEAD_NBYTES, OF_AGENT, OVER, Head, InfoStore, Records, Schema
from pufferlib._native.pack cimport ValueCheck
from pufferlib._native.ring cimport *

import contextlib

import numpy

__all__ = ["CallGuard", "FastPath"]

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1
    unsigned long PyThread_get_thread_ident()

cdef object NDARRAY = numpy.ndarray
cdef object INT64 = numpy.dtype(numpy.int64)
cdef object AS_ARRAY = numpy.asarray
cdef object AS_CONTIGUOUS = numpy.ascontiguousarray
cdef object CAN_CAST = numpy.can_cast
cdef object ERRSTATE = numpy.errstate
cdef tuple UNREADABLE = (TypeError, ValueError, RuntimeError, OverflowError)

cdef enum:
    SYNCHRONOUS, ORDERED, FIRST_FINISHED
    WAITING = 1, FLYING = 2  # as in driver/scheduler.py
    MOST_DIMENSIONS = 8
    # Indices of parent_times, as in telemetry/timeline.py.
    NUM_RECV = 0, RECV, SEND, THOUGHT, FILL_NUM, FILL_SUM, FILL_MAX, RETURNED

cdef double SLICE_S = 0.1  # the longest sleep, so that signals and dead workers are noticed


@cython.final
cdef class ActionColumn:
    """One of the slab's arrays of actions, with the check of actions that are copied into it.

    array: the slab's array, (num_ids * agents_per_env, ...). values: the check of the values. Raises TypeError for an
    array with too many dimensions.
    """

    cdef object array, dtype
    cdef object like_dtype  # an equal dtype object, such as one of an unpickled space
    cdef ValueCheck values
    cdef char *data
    cdef size_t nbytes  # of one environment
    cdef int ndim
    cdef Py_ssize_t[MOST_DIMENSIONS] shape  # of one environment

    def __init__(self, array, ValueCheck values not None, uint64_t num_ids):
        cdef int axis
        if array.ndim > MOST_DIMENSIONS:
            raise TypeError(array.ndim)
        self.array, self.dtype, self.values = array, array.dtype, values
        self.data, self.ndim, self.nbytes = puf_data(array), array.ndim, array.nbytes // num_ids
        for axis in range(self.ndim):
            self.shape[axis] = array.shape[axis]
        self.shape[0] //= num_ids

    cdef object convert(self, object actions):
        """Return actions as an array with the slab's dtype; None if the cast is unusual or would change values."""
        if puf_is_array(actions, NDARRAY):
            if puf_descr(actions) == <PyObject *>self.dtype and puf_is_plain(actions):
                return actions
        elif type(actions) is not list and type(actions) is not tuple:
            return None
        try:
            return self.cast(AS_ARRAY(actions))
        except UNREADABLE:  # VecEnv raises the error
            return None

    cdef object cast(self, object array):
        if array.ndim != self.ndim:
            return None
        if array.dtype != self.dtype:
            if array.dtype.hasobject or not CAN_CAST(array.dtype, self.dtype, "same_kind"):
                return None
            with ERRSTATE(over="ignore"):
                cast = array.astype(self.dtype)
            if self.dtype.kind != "f" and (cast != array).any():
                return None
            array = cast
        return AS_CONTIGUOUS(array)

    cdef bint fits(self, object actions, uint64_t num_envs):
        """Return whether actions are an array of num_envs environments' rows, of the slab's dtype, and valid."""
        cdef int axis
        if not puf_is_array(actions, NDARRAY):
            return False
        if puf_descr(actions) != <PyObject *>self.dtype and puf_descr(actions) != <PyObject *>self.like_dtype:
            if <object>puf_descr(actions) != self.dtype:
                return False
            self.like_dtype = <object>puf_descr(actions)
        if puf_ndim(actions) != self.ndim or not puf_is_plain(actions):
            return False
        if puf_dim(actions, 0) != <Py_ssize_t>num_envs * self.shape[0]:
            return False
        for axis in range(1, self.ndim):
            if puf_dim(actions, axis) != self.shape[axis]:
                return False
        return self.values.fit_at(puf_data(actions), <size_t>puf_dim(actions, 0))


@cython.final
cdef class CallGuard:
    """The compiled counterpart of ``CallGuard`` in driver/call_guard.py."""

    cdef public unsigned long owner


@cython.final
cdef class FastPath:
    """The parent's end of the ring: send a batch of actions, receive a full block.

    ``send`` and ``recv`` do the plain case. Otherwise they change nothing and return False or None, and VecEnv uses the
    other methods. states, overs: the scheduler's bytearrays, shared with this. mode: SYNCHRONOUS, ORDERED or
    FIRST_FINISHED. play, step: used instead of mailboxes, called as ``play(block)`` and ``step(env_ids, slots)``; play
    is None where workers are processes. values: a pack.ValueCheck for each array of actions, None where that does not
    support the dtype. collect: called before a batch with infos lands, with the pickled ones; returns False if it
    cannot read them. gather: called with env ids, returns these infos in order. infos_type: the class Infos. lend:
    called with a block's number and arrays, returns the batch's arrays; None if the batch gets the block's arrays, or
    ``copier(array)`` of each if there is a copier. call_guard: the VecEnv's; a second thread inside a call gets False or
    None, and VecEnv raises.
    """

    cdef Ring ring
    cdef int mode, spin
    cdef object states_memory, overs_memory, play, step, collect, gather, lend, copier, batch_type, infos_type
    cdef object no_infos  # an Infos without infos
    cdef uint32_t agents_per_env
    cdef unsigned char *states
    cdef unsigned char *overs
    cdef unsigned int[::1] worker_of
    cdef unsigned int[::1] batch_ids  # the environments of the last batch
    cdef unsigned int[::1] argument_ids  # the environments passed to ``send``
    cdef const unsigned int *target_ids  # the environments of this call: batch_ids or argument_ids
    cdef uint64_t num_targets
    cdef bint is_full_batch  # the targets are all environments of a synchronous batch, in order
    cdef unsigned int[::1] slots  # by environment: the slot assigned last
    cdef uint64_t[::1] num_staged  # by worker: words staged and not posted yet
    cdef uint64_t num_envs, num_batch_ids
    cdef uint64_t first_env  # the lowest env id; arrays indexed by env id have unused elements below it
    cdef readonly uint64_t head  # the number of the next block to receive, counted without end
    cdef public uint64_t next_ticket  # in ORDERED mode
    cdef public uint64_t coming  # environments that were sent something and have not landed
    cdef public bint clear  # the plain case is possible
    cdef CallGuard call_guard
    cdef readonly bint half_done  # inside a part that runs Python code and must not be interrupted
    cdef uint32_t mail, notes  # the ring's counters at the last look
    cdef int64_t look_ns  # its time
    cdef bint look_deferred  # a look that was due waits for the next batch
    cdef uint64_t total
    cdef public object batch
    cdef list blocks  # by block: the arrays of its batch
    cdef list columns  # of actions; None if only Python can check some values
    cdef ActionColumn column  # the only column, if there is one
    cdef bint disabled  # autoreset_mode is disabled: environments whose episode is over may not act
    cdef bint telemetry
    cdef int64_t *env_ids  # by slot
    cdef double *episodes  # by slot: return, length and seconds of the episode that ended there
    cdef object slab
    cdef double[::1] parent_times

    def __init__(self, Ring ring, int mode, bytearray states, bytearray overs, worker_of, slab, list blocks, batch_type,
                 infos_type, list values, collect, gather, lend, play, step, int spin, bint disabled, copier,
                 parent_times, CallGuard call_guard not None):
        self.ring, self.mode, self.spin, self.disabled, self.copier = ring, mode, spin, disabled, copier
        self.states_memory, self.overs_memory = states, overs  # never resized, so their addresses stay valid
        self.states, self.overs = states, overs
        self.num_envs, self.first_env = slab.shape.num_envs, slab.shape.first_env
        self.worker_of = numpy.array([worker_of.get(env_id, 0) for env_id in range(len(states))], numpy.uint32)
        self.batch_ids = numpy.zeros(ring.c.block_size, numpy.uint32)
        self.argument_ids = numpy.zeros(self.num_envs, numpy.uint32)
        self.slots = numpy.zeros(len(states), numpy.uint32)
        self.num_staged = numpy.zeros(ring.c.num_workers, numpy.uint64)
        self.blocks, self.batch_type, self.collect, self.gather = blocks, batch_type, collect, gather
        self.lend, self.play, self.step = lend, play, step
        self.infos_type, self.agents_per_env = infos_type, slab.shape.agents_per_env
        self.no_infos = self.infos_with([], None)
        self.num_batch_ids = self.head = self.next_ticket = self.coming = 0
        self.mail = self.notes = 0
        self.look_ns = puf_now_ns()
        self.clear = True
        self.parent_times, self.call_guard = parent_times, call_guard
        self.telemetry = slab.shape.telemetry
        self.slab, self.env_ids = slab, <int64_t *>puf_data(slab.env_ids)
        self.episodes = <double *>puf_data(slab.episodes)
        self.columns = self.column = None
        if None not in values:
            with contextlib.suppress(TypeError):
                self.columns = [
                    ActionColumn(array, check, len(states)) for array, check in zip(slab.actions, values)
                ]
                self.column = self.columns[0] if len(values) == 1 else None

    @property
    def last_ids(self):
        """The environments of the last batch; None before the first."""
        return numpy.asarray(self.batch_ids).tolist() if self.num_batch_ids else None

    # ------------------------------------------------------------------------------------------ the plain case

    def send(self, actions, env_ids=None):
        """Send actions to env_ids, or to the last batch for None; return False, sending nothing, if it is not plain."""
        cdef int64_t start_ns = puf_now_ns() if self.telemetry else 0
        cdef double seconds
        if self.call_guard.owner:
            return False
        self.call_guard.owner = PyThread_get_thread_ident()
        try:
            self.half_done = False
            if not self.clear or not self.bind(env_ids):
                return False
            actions = self.convert_actions(actions)
            if actions is None or not self.may_send():
                return False
            self.half_done = True  # runs Python if environments are stepped in this process
            self.send_plain(actions, start_ns)
            self.half_done = False
        finally:
            self.call_guard.owner = 0
        if not self.telemetry:
            return True
        seconds = 1e-9 * (puf_now_ns() - start_ns)
        self.parent_times[SEND] += seconds
        if self.parent_times[RETURNED]:
            self.parent_times[THOUGHT] -= seconds
        return True

    cdef bint bind(self, object env_ids) except? True:
        """Set the targets: env_ids, or the last batch for None. Return False if env_ids are unusual."""
        cdef Py_ssize_t i, num
        cdef const int64_t *ids
        cdef int64_t first = <int64_t>self.first_env
        if env_ids is None:
            self.target_ids, self.num_targets, self.is_full_batch = (
                &self.batch_ids[0], self.num_batch_ids, self.mode == SYNCHRONOUS
            )
            return self.num_batch_ids > 0
        if not puf_is_array(env_ids, NDARRAY):
            try:
                env_ids = AS_ARRAY(env_ids)
            except UNREADABLE:  # VecEnv raises the error
                return False
        if puf_descr(env_ids) != <PyObject *>INT64:
            if env_ids.dtype.kind not in "iu":
                return False
            env_ids = env_ids.astype(INT64)
        if puf_ndim(env_ids) != 1 or not puf_is_plain(env_ids):
            env_ids = AS_CONTIGUOUS(env_ids).reshape(-1)
        num, ids = puf_dim(env_ids, 0), <const int64_t *>puf_data(env_ids)
        if num == 0 or num > <Py_ssize_t>self.num_envs:
            return False
        self.target_ids, self.num_targets = &self.argument_ids[0], num
        self.is_full_batch = self.mode == SYNCHRONOUS and self.num_targets == self.num_envs
        for i in range(num):
            if ids[i] < first or ids[i] >= first + <int64_t>self.num_envs:
                return False
            self.argument_ids[i] = <unsigned int>ids[i]
            self.is_full_batch &= ids[i] == first + i
        return True

    cdef bint may_send(self):
        """Return whether all targets can take a plain step."""
        cdef uint64_t num_words, num = 0
        cdef uint64_t i
        cdef uint32_t env_id, worker
        cdef puf_ring *ring = &self.ring.c
        if not self.clear:
            return False
        while num < self.num_targets:
            env_id = self.target_ids[num]
            if self.states[env_id] != WAITING or (self.disabled and self.overs[env_id]):
                break
            self.states[env_id] = FLYING  # so that a second mention is noticed
            num += 1
        for i in range(num):
            self.states[self.target_ids[i]] = WAITING
        if num < self.num_targets:
            return False
        if self.play is None:
            num_words = 1 if self.is_full_batch else min(
                self.num_targets, (self.num_envs + ring.num_workers - 1) // ring.num_workers
            )
            for worker in range(ring.num_workers):
                if not puf_has_room(ring, worker, num_words):
                    return False
        return True

    cdef int send_plain(self, object actions, int64_t now_ns) except -1:
        cdef uint64_t i
        cdef uint32_t env_id, worker
        cdef puf_ring *ring = &self.ring.c
        self.store(actions)
        if self.is_full_batch:
            memset(self.states + self.first_env, FLYING, self.num_envs)
            puf_begin(ring, self.head % ring.num_blocks, now_ns)
            self.coming = self.num_envs
            if self.play is not None:
                self.play(self.head % ring.num_blocks)
                return 0
            for worker in range(ring.num_workers):
                puf_stage(ring, worker, 0, puf_request(PUF_SHARE, <uint32_t>(self.head % ring.num_blocks)))
                puf_post(ring, worker, 1)
            return 0
        if self.play is not None:
            env_ids = [self.target_ids[i] for i in range(self.num_targets)]
            self.step(env_ids, self.depart(env_ids))
            return 0
        self.begin_block()
        for i in range(self.num_targets):
            env_id = self.target_ids[i]
            worker = self.worker_of[env_id]
            puf_stage(ring, worker, self.num_staged[worker], puf_request(env_id, self.assign_slot(env_id)))
            self.num_staged[worker] += 1
        for worker in range(ring.num_workers):
            if self.num_staged[worker]:
                puf_post(ring, worker, self.num_staged[worker])
                self.num_staged[worker] = 0
        return 0

    cdef int store(self, object actions) except -1:
        """Copy the targets' actions, converted by ``convert_actions``, into the slab."""
        cdef Py_ssize_t i
        if self.column is not None:
            self.store_part(self.column, actions)
            return 0
        for i in range(len(self.columns)):
            self.store_part(<ActionColumn>self.columns[i], (<list>actions)[i])
        return 0

    cdef void store_part(self, ActionColumn column, object part) noexcept:
        cdef uint64_t i
        cdef const char *source = puf_data(part)
        if self.is_full_batch:
            memcpy(column.data + self.first_env * column.nbytes, source, self.num_envs * column.nbytes)
            return
        for i in range(self.num_targets):
            memcpy(column.data + self.target_ids[i] * column.nbytes, source + i * column.nbytes, column.nbytes)

    cdef object convert_actions(self, object actions):
        """Convert actions to the slab's format, an array or a list of arrays; return None if they are unusual."""
        cdef Py_ssize_t i
        cdef list parts
        if self.column is not None:
            if not self.column.fits(actions, self.num_targets):
                actions = self.column.convert(actions)
                if not self.column.fits(actions, self.num_targets):
                    return None
            return actions
        if self.columns is None or not (type(actions) is tuple or type(actions) is list):
            return None
        parts = list(actions)
        if len(parts) != len(self.columns):
            return None
        for i in range(len(parts)):
            parts[i] = (<ActionColumn>self.columns[i]).convert(parts[i])
        for i in range(len(parts)):  # after all conversions, which may run other code
            if not (<ActionColumn>self.columns[i]).fits(parts[i], self.num_targets):
                return None
        return parts

    def recv(self, double timeout_s):
        """Return the next batch, or None if it is not full within timeout_s and one slice, or if a message came."""
        if self.call_guard.owner:
            return None
        self.call_guard.owner = PyThread_get_thread_ident()
        try:
            return self.recv_plain(timeout_s)
        finally:
            self.call_guard.owner = 0

    cdef object recv_plain(self, double timeout_s):
        cdef puf_ring *ring = &self.ring.c
        cdef bint is_complete = True
        cdef int64_t start_ns
        cdef list pickled
        self.half_done = False
        if not self.clear or self.coming < ring.block_size:
            return None
        start_ns = puf_now_ns()
        if self.is_overdue(start_ns):
            if self.look_deferred:
                return None
            self.look_deferred = True  # to the next batch: this one is awaited, and after a pause caches are cold
        if not puf_is_full(ring, self.head):
            self.await_block(timeout_s)
            is_complete = puf_is_full(ring, self.head)
        if self.has_news():  # checked once the block is full: its rows' messages have arrived by then
            is_complete = False
        self.half_done = True
        if is_complete and self.has_infos():
            pickled = self.ring.take_infos()
            is_complete = not pickled or self.collect(pickled)
        if is_complete:
            self.land()
        self.half_done = False
        if self.telemetry:
            self.record_times(start_ns, is_complete)
        return self.batch if is_complete else None

    # --------------------------------------------------------------------------------------- for the scheduler

    def depart(self, env_ids):
        """Mark environments as in flight; return the slots of their next rows."""
        self.begin_block()
        return [self.assign_slot(env_id) for env_id in env_ids]

    cdef void begin_block(self) noexcept:
        """Record the start of a synchronous batch if this is its first; ``assign_slot`` does so in other modes."""
        if self.mode == SYNCHRONOUS and not self.coming:
            puf_begin(&self.ring.c, self.head % self.ring.c.num_blocks, puf_now_ns())

    cdef uint32_t assign_slot(self, uint32_t env_id):
        cdef uint64_t ticket
        cdef uint32_t slot
        self.states[env_id] = FLYING
        self.coming += 1
        if self.mode == SYNCHRONOUS:
            return self.slot_of(env_id)
        if self.mode == FIRST_FINISHED:
            return PUF_CLAIM
        ticket = self.next_ticket
        self.next_ticket += 1
        if ticket % self.ring.c.block_size == 0:
            puf_begin(&self.ring.c, ticket // self.ring.c.block_size % self.ring.c.num_blocks, puf_now_ns())
        slot = <uint32_t>(ticket % self.ring.c.num_slots)
        self.slots[env_id] = slot
        return slot

    def coming_slots(self, env_ids):
        """Return the slots that ``depart`` would return, without changing anything."""
        cdef puf_ring *ring = &self.ring.c
        if self.mode == SYNCHRONOUS:
            return [self.slot_of(env_id) for env_id in env_ids]
        if self.mode == FIRST_FINISHED:
            return [PUF_CLAIM] * len(env_ids)
        return [(self.next_ticket + index) % ring.num_slots for index in range(len(env_ids))]

    def look(self):
        """Record what has arrived, for the caller to handle; only newer arrivals end a wait."""
        self.mail, self.notes = puf_mail(&self.ring.c), puf_notes(&self.ring.c)
        self.total = puf_total(&self.ring.c)
        self.look_ns, self.look_deferred = puf_now_ns(), False

    cdef bint is_overdue(self, int64_t now_ns) noexcept:
        """Return whether the last look was more than a slice ago: a worker may have died without ending a wait."""
        return now_ns - self.look_ns > <int64_t>(1e9 * SLICE_S)

    def wants_a_look(self):
        """Return whether it is time to read the sockets, although rows keep arriving."""
        return bool(self.is_overdue(puf_now_ns()))

    cdef bint has_infos(self) noexcept:
        """Return whether any row of the next block, which must be full, has infos."""
        cdef uint64_t i
        cdef unsigned char *flags = self.ring.c.flags + self.head % self.ring.c.num_blocks * self.ring.c.block_size
        for i in range(self.ring.c.block_size):
            if flags[i] & PUF_INFO:
                return True
        return False

    cpdef bint has_news(self):
        """Return whether anything other than rows has arrived since ``look``."""
        return puf_mail(&self.ring.c) != self.mail or puf_notes(&self.ring.c) != self.notes

    def await_block(self, double timeout_s):
        """Wait until the next block is full or an urgent message arrives, for at most a slice."""
        cdef int64_t timeout_ns = <int64_t>(1e9 * max(0.0, min(timeout_s, SLICE_S)))
        cdef int yields = self.spin if timeout_ns else 0
        with nogil:
            puf_await_block(&self.ring.c, self.head, self.mail, yields, timeout_ns)
        PyErr_CheckSignals()

    def await_row(self, double timeout_s):
        """Wait until any row or an urgent message arrives, for at most a slice."""
        cdef int64_t timeout_ns = <int64_t>(1e9 * max(0.0, min(timeout_s, SLICE_S)))
        with nogil:
            puf_await_row(&self.ring.c, self.total, self.mail, timeout_ns)
        PyErr_CheckSignals()

    def is_full(self, bint by_words):
        """Return whether the next block is full, judged by its words (always right) or by its count."""
        if by_words:
            return puf_is_done_block(&self.ring.c, self.head)
        return puf_is_full(&self.ring.c, self.head)

    def land(self):
        """Receive the next block, which must be full: mark its environments as waiting and set ``batch``."""
        cdef puf_ring *ring = &self.ring.c
        cdef uint64_t block = self.head % ring.num_blocks
        cdef unsigned char *flags = ring.flags + block * ring.block_size
        cdef unsigned char any_flags = 0
        cdef uint64_t i, num_envs = self.num_envs
        cdef uint32_t env_id, first_id = <uint32_t>self.first_env
        cdef unsigned char *overs = self.overs + self.first_env
        cdef unsigned int *batch_ids = &self.batch_ids[0]
        cdef tuple arrays = <tuple>self.blocks[block]
        if self.copier is not None:  # before anything changes: memory may run out
            copier = self.copier
            arrays = tuple([copier(array) for array in arrays])
        elif self.lend is not None:
            arrays = self.lend(block, arrays)
        cdef double fill_s = 1e-9 * puf_filled_in_ns(ring, block)
        if self.mode == SYNCHRONOUS:
            memset(self.states + self.first_env, WAITING, num_envs)
            for i in range(num_envs):
                overs[i] = flags[i] & PUF_OVER
                any_flags |= flags[i]
                batch_ids[i] = first_id + <uint32_t>i
        else:
            for i in range(ring.block_size):
                env_id = <uint32_t>self.env_ids[block * ring.block_size + i]
                self.batch_ids[i] = env_id
                self.states[env_id] = WAITING
                self.overs[env_id] = flags[i] & PUF_OVER
                any_flags |= flags[i]
        self.num_batch_ids = ring.block_size
        self.coming -= ring.block_size
        self.head += 1
        infos = self.infos_of(block) if any_flags & (PUF_INFO | PUF_EPISODE | PUF_HELD) else self.no_infos
        self.batch = tuple.__new__(
            self.batch_type,
            (arrays[0], arrays[1], arrays[2], arrays[3], infos, arrays[4], arrays[5], arrays[6]),
        )
        if fill_s > 0:
            self.parent_times[FILL_NUM] += 1
            self.parent_times[FILL_SUM] += fill_s
            self.parent_times[FILL_MAX] = max(self.parent_times[FILL_MAX], fill_s)

    cdef object infos_with(self, list items, Records records):
        """Return the Infos of the last batch, made of dicts or of records."""
        if self.mode == SYNCHRONOUS:
            env_ids = range(self.first_env, self.first_env + self.num_envs)
        else:
            env_ids = PyBytes_FromStringAndSize(
                <char *>&self.batch_ids[0], self.ring.c.block_size * sizeof(unsigned int)
            )
        infos = self.infos_type.__new__(self.infos_type)  # does the work of __init__ without a Python call
        infos._dicts, infos._source = items, records
        infos._env_ids, infos._agents_per_env = env_ids, self.agents_per_env
        return infos

    cdef object infos_of(self, uint64_t block):
        """Return the infos of the last batch, which was in the given block, in the order of its rows."""
        cdef uint64_t i, slot = block * self.ring.c.block_size
        cdef uint32_t env_id
        cdef size_t nbytes = 0
        cdef unsigned char *flags = self.ring.c.flags + slot
        cdef InfoStore store = self.ring.store
        cdef list items = []
        cdef bytes data
        cdef char *cursor
        for i in range(self.num_batch_ids):
            env_id = self.batch_ids[i]
            if flags[i] & PUF_HELD:
                info = self.ring.infos[slot + i]
                self.ring.infos[slot + i] = None
                if type(info) is list:
                    items += <list>info
                else:
                    items.append(info)
            elif flags[i] & PUF_EPISODE:
                items.append(None)
                nbytes += HEAD_NBYTES + 3 * sizeof(double)
            elif flags[i] & PUF_INFO:
                if store.has(env_id):
                    schemas = store.schemas[env_id]
                    if type(schemas) is Schema:
                        items.append(schemas)
                    else:
                        items += <list>schemas
                    nbytes += store.messages[env_id].nbytes - 1
                else:
                    items += self.gather([env_id])
        if not nbytes:
            return self.infos_with(items, None)
        data = PyBytes_FromStringAndSize(NULL, nbytes)
        cursor = PyBytes_AS_STRING(data)
        for i in range(self.num_batch_ids):
            if flags[i] & PUF_EPISODE:
                cursor += self.put_episode(cursor, i, slot + i)
            elif flags[i] & PUF_INFO and store.has(self.batch_ids[i]):
                cursor += self.put_records(cursor, i, store)
        return self.infos_with(None, Records(items, data, self.agents_per_env))

    cdef size_t put_episode(self, char *target, uint64_t index, uint64_t slot) noexcept:
        """Write a record of an episode's statistics, without keys; return its size."""
        cdef Head head
        head.nbytes, head.schema, head.flags = HEAD_NBYTES + 3 * sizeof(double), 0, OVER | EPISODE | OF_AGENT
        head.agent_index, head.env_id, head.row, head.unused = 0, self.batch_ids[index], <uint32_t>index, 0
        memcpy(target, &head, HEAD_NBYTES)  # only environments of one agent
        memcpy(target + HEAD_NBYTES, self.episodes + 3 * slot, 3 * sizeof(double))
        return head.nbytes

    cdef size_t put_records(self, char *target, uint64_t index, InfoStore store):
        """Move the records of an environment of the last batch to target; return their size."""
        cdef uint32_t env_id = self.batch_ids[index], nbytes = store.messages[env_id].nbytes - 1
        cdef uint32_t offset = 0
        cdef Head head
        memcpy(target, store.messages[env_id].bytes + 1, nbytes)
        while offset < nbytes:
            memcpy(&head, target + offset, HEAD_NBYTES)
            head.env_id, head.row = env_id, <uint32_t>(index * self.agents_per_env + head.agent_index)
            memcpy(target + offset, &head, HEAD_NBYTES)
            offset += head.nbytes
        store.drop(env_id)
        return nbytes

    cdef void record_times(self, int64_t start_ns, bint is_complete) noexcept:
        """Add a call of ``recv`` to the parent's times."""
        cdef double start_s = 1e-9 * start_ns
        cdef double end_s = 1e-9 * puf_now_ns()
        if self.parent_times[RETURNED]:
            self.parent_times[THOUGHT] += start_s - self.parent_times[RETURNED]
        self.parent_times[RETURNED] = end_s  # after a None, VecEnv.recv continues at once
        self.parent_times[RECV] += end_s - start_s
        self.parent_times[NUM_RECV] += is_complete

    cpdef uint32_t slot_of(self, uint32_t env_id):
        """Return the slot assigned to an environment; not for FIRST_FINISHED, where workers claim slots."""
        if self.mode == SYNCHRONOUS:
            return <uint32_t>(self.head % self.ring.c.num_blocks * self.ring.c.block_size + env_id - self.first_env)
        return self.slots[env_id]

    def claimed_slot(self, uint64_t env_id):
        """Return the slot that an environment has claimed but not written; None if there is none."""
        cdef uint64_t ticket
        cdef uint64_t first = self.head * self.ring.c.block_size
        for ticket in range(first, first + self.ring.c.num_slots):
            if puf_is_stuck(&self.ring.c, ticket, env_id):
                return ticket % self.ring.c.num_slots
        return None

    def skip(self, uint64_t head):
        """Continue at block number ``head`` with nothing in flight, after a rewind of the ring."""
        self.head, self.next_ticket, self.coming = head, head * self.ring.c.block_size, 0

    def counted(self):
        """Return the number of environments whose rows are counted but not received."""
        return puf_counted(&self.ring.c, self.head)

    def is_asleep(self, uint32_t worker):
        """Return whether a worker is asleep, and so has counted all its rows."""
        return bool(puf_is_asleep(&self.ring.c, worker))

    def asked(self, uint32_t worker):
        """Return the number of the next word for a worker to take; None if it has taken all of them."""
        cdef uint64_t number = 0
        return number if puf_has_untaken(&self.ring.c, worker, &number) else None

    def landed(self):
        """Return the environments whose rows are written but not received."""
        cdef uint64_t ticket
        cdef uint64_t first = self.head * self.ring.c.block_size
        env_ids = []
        for ticket in range(first, first + self.ring.c.num_slots):
            if puf_is_done(&self.ring.c, ticket):
                env_ids.append(self.env_ids[ticket % self.ring.c.num_slots])
        return env_ids
