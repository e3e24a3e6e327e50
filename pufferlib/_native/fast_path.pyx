"""The parent's end: whole batches of actions go out, full blocks come in.

The plain case is C from beginning to end; whatever is out of the ordinary VecEnv does, over the same shared words.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.string cimport memcpy, memset

from pufferlib._native.arrays cimport puf_data, puf_descr, puf_dim, puf_is_array, puf_is_plain, puf_ndim
from pufferlib._native.infos cimport EPISODE, HEAD_NBYTES, OF_AGENT, OVER, Head, InfoStore, Records
from pufferlib._native.pack cimport ValueCheck
from pufferlib._native.ring cimport *

import contextlib

import numpy

__all__ = ["FastPath"]

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
    WAITING = 1, FLYING = 2  # as in vectorization/scheduler.py
    MOST_DIMENSIONS = 8
    # As in vectorization/telemetry.py, which says what they mean.
    NUM_RECV = 0, RECV, SEND, THOUGHT, FILL_NUM, FILL_SUM, FILL_MAX, RETURNED

cdef double SLICE_S = 0.1  # sleeps are no longer, so that signals and deaths are seen


@cython.final
cdef class ActionColumn:
    """One array of actions in the slab, and what may be copied into it.

    array: the slab's, (num_envs * agents_per_env, ...). values: which values may be sent. Raises TypeError for an array of
    too many dimensions.
    """

    cdef object array, dtype
    cdef object like_dtype  # another object that is equal to it, as spaces have that were unpickled
    cdef ValueCheck values
    cdef char *data
    cdef size_t nbytes  # of one environment
    cdef int ndim
    cdef Py_ssize_t[MOST_DIMENSIONS] shape  # of one environment

    def __init__(self, array, ValueCheck values not None, uint64_t num_envs):
        cdef int axis
        if array.ndim > MOST_DIMENSIONS:
            raise TypeError(array.ndim)
        self.array, self.dtype, self.values = array, array.dtype, values
        self.data, self.ndim, self.nbytes = puf_data(array), array.ndim, array.nbytes // num_envs
        for axis in range(self.ndim):
            self.shape[axis] = array.shape[axis]
        self.shape[0] //= num_envs

    cdef object converted(self, object actions):
        """Return actions as an array of the slab's dtype; None where that is not plain, or would change them."""
        if puf_is_array(actions, NDARRAY):
            if puf_descr(actions) == <PyObject *>self.dtype and puf_is_plain(actions):
                return actions
        elif type(actions) is not list and type(actions) is not tuple:
            return None
        try:
            return self.cast(AS_ARRAY(actions))
        except UNREADABLE:  # what is wrong with them is said on the careful way
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
        """Whether these are an array of so many environments' actions, as the slab has them, and may be sent."""
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
cdef class FastPath:
    """The parent's end: whole batches of actions go out, full blocks come in.

    ``send`` and ``recv`` do the plain case and say so; otherwise they have changed nothing, and VecEnv goes the careful
    way, over the other methods. states, overs: those of vectorization.scheduler.PortableScheduler, shared with this. mode: SYNCHRONOUS,
    ORDERED or FIRST_FINISHED. play, step: in place of mailboxes, called as ``play(block)`` and ``step(env_ids, slots)``;
    play is None where workers are processes. values: a pack.ValueCheck for each array of actions, None for one
    that it does not know. collect: called, before rows with infos land, with those that no record holds; returns
    False if these cannot be read. gather: called with env ids for these infos, in turn. infos_type: the class Infos.
    lend: called with a block's number and arrays, returns those of the batch; None where these are handed over, or what
    copier makes of each of them, if there is one.
    owner: as in vectorization.turns; whoever else finds somebody there is sent the careful way, which refuses.
    """

    cdef Ring ring
    cdef int mode, spin
    cdef object states_memory, overs_memory, play, step, collect, gather, lend, copier, batch_type, infos_type
    cdef object no_infos  # an Infos of none
    cdef uint32_t agents_per_env
    cdef unsigned char *states
    cdef unsigned char *overs
    cdef unsigned int[::1] worker_of
    cdef unsigned int[::1] last  # the environments of the last batch
    cdef unsigned int[::1] named  # the environments that ``send`` was called for
    cdef const unsigned int *bound  # those of this call, the last batch's or the named ones; and how many
    cdef uint64_t num_bound
    cdef bint whole  # these are all environments of a synchronous batch, in their order
    cdef unsigned int[::1] slots  # of each environment, the one that was assigned to it last
    cdef uint64_t[::1] laid  # words laid for each worker and not posted yet
    cdef uint64_t num_envs, num_last
    cdef readonly uint64_t head  # the number of the block that is received next, counted without end
    cdef public uint64_t departed  # the next ticket, where batches come in the order of sending
    cdef public uint64_t coming  # environments that were sent something and have not landed
    cdef public bint clear  # nothing stands in the way of the plain case
    cdef public unsigned long owner  # the thread that is in the middle of a call, 0 if none is
    cdef readonly bint half_done  # in what Python code is part of, and is not to be left half done
    cdef uint32_t mail, notes  # what was seen of the ring's
    cdef int64_t looked_ns  # and when
    cdef bint put_off  # a look that was due has been put off
    cdef uint64_t total
    cdef public object batch
    cdef list blocks  # of each: the arrays of its batch
    cdef list columns  # of actions; None where some have values that only Python can check
    cdef ActionColumn column  # the one, where there is one
    cdef bint disabled  # autoreset_mode is: who is over may not act
    cdef bint telemetry
    cdef int64_t *env_ids  # of each slot
    cdef double *episodes  # of each slot: return, length and seconds of the episode that ended there
    cdef object slab
    cdef double[::1] parent_times

    def __init__(self, Ring ring, int mode, bytearray states, bytearray overs, worker_of, slab, list blocks, batch_type,
                 infos_type, list values, collect, gather, lend, play, step, int spin, bint disabled, copier,
                 parent_times):
        self.ring, self.mode, self.spin, self.disabled, self.copier = ring, mode, spin, disabled, copier
        self.states_memory, self.overs_memory = states, overs  # never resized, so that they stay where they are
        self.states, self.overs = states, overs
        self.worker_of = numpy.array(worker_of, numpy.uint32)
        self.num_envs = len(states)
        self.last, self.named = numpy.zeros(ring.c.block_size, numpy.uint32), numpy.zeros(self.num_envs, numpy.uint32)
        self.slots = numpy.zeros(self.num_envs, numpy.uint32)
        self.laid = numpy.zeros(ring.c.num_workers, numpy.uint64)
        self.blocks, self.batch_type, self.collect, self.gather = blocks, batch_type, collect, gather
        self.lend, self.play, self.step = lend, play, step
        self.infos_type, self.agents_per_env = infos_type, slab.shape.agents_per_env
        self.no_infos = self.infos_with([], None)
        self.num_last = self.head = self.departed = self.coming = 0
        self.mail = self.notes = 0
        self.looked_ns = puf_now_ns()
        self.clear = True
        self.parent_times = parent_times
        self.telemetry = slab.shape.telemetry
        self.slab, self.env_ids = slab, <int64_t *>puf_data(slab.env_ids)
        self.episodes = <double *>puf_data(slab.episodes)
        self.columns = self.column = None
        if None not in values:
            with contextlib.suppress(TypeError):
                self.columns = [
                    ActionColumn(array, check, self.num_envs) for array, check in zip(slab.actions, values)
                ]
                self.column = self.columns[0] if len(values) == 1 else None

    @property
    def last_ids(self):
        """The environments of the last batch, None before the first."""
        return numpy.asarray(self.last).tolist() if self.num_last else None

    # ------------------------------------------------------------------------------------------ the plain case

    def send(self, actions, env_ids=None):
        """Send actions, for the last batch or for environments that are named, if that is plain; return whether it was."""
        cdef int64_t start_ns = puf_now_ns() if self.telemetry else 0
        cdef double seconds
        if self.owner:
            return False
        self.owner = PyThread_get_thread_ident()
        try:
            self.half_done = False
            if not self.clear or not self.bind(env_ids):
                return False
            actions = self.fitting(actions)
            if actions is None or not self.may_send():
                return False
            self.half_done = True  # where environments are stepped in this process, Python runs inside
            self.send_plain(actions, start_ns)
            self.half_done = False
        finally:
            self.owner = 0
        if not self.telemetry:
            return True
        seconds = 1e-9 * (puf_now_ns() - start_ns)
        self.parent_times[SEND] += seconds
        if self.parent_times[RETURNED]:
            self.parent_times[THOUGHT] -= seconds
        return True

    cdef bint bind(self, object env_ids) except? True:
        """Note the environments that are sent to: those named, None for the last batch's. Return False if they are odd."""
        cdef Py_ssize_t i, num
        cdef const int64_t *ids
        if env_ids is None:
            self.bound, self.num_bound, self.whole = &self.last[0], self.num_last, self.mode == SYNCHRONOUS
            return self.num_last > 0
        if not puf_is_array(env_ids, NDARRAY):
            try:
                env_ids = AS_ARRAY(env_ids)
            except UNREADABLE:  # what is wrong with them is said on the careful way
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
        self.bound, self.num_bound = &self.named[0], num
        self.whole = self.mode == SYNCHRONOUS and self.num_bound == self.num_envs
        for i in range(num):
            if ids[i] < 0 or ids[i] >= <int64_t>self.num_envs:
                return False
            self.named[i] = <unsigned int>ids[i]
            self.whole &= ids[i] == i
        return True

    cdef bint may_send(self):
        """Whether nothing stands in the way of a plain step of the environments that are sent to."""
        cdef uint64_t most, num = 0
        cdef uint64_t i
        cdef uint32_t env_id, worker
        cdef puf_ring *ring = &self.ring.c
        if not self.clear:
            return False
        while num < self.num_bound:
            env_id = self.bound[num]
            if self.states[env_id] != WAITING or (self.disabled and self.overs[env_id]):
                break
            self.states[env_id] = FLYING  # so that none is named twice
            num += 1
        for i in range(num):
            self.states[self.bound[i]] = WAITING
        if num < self.num_bound:
            return False
        if self.play is None:
            most = 1 if self.whole else min(
                self.num_bound, (self.num_envs + ring.num_workers - 1) // ring.num_workers
            )
            for worker in range(ring.num_workers):
                if puf_room(ring, worker) < most:
                    return False
        return True

    cdef int send_plain(self, object actions, int64_t now_ns) except -1:
        cdef uint64_t i
        cdef uint32_t env_id, worker
        cdef puf_ring *ring = &self.ring.c
        self.store(actions)
        if self.whole:
            memset(self.states, FLYING, self.num_envs)
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
            env_ids = [self.bound[i] for i in range(self.num_bound)]
            self.step(env_ids, self.depart(env_ids))
            return 0
        self.begin_block()
        for i in range(self.num_bound):
            env_id = self.bound[i]
            worker = self.worker_of[env_id]
            puf_stage(ring, worker, self.laid[worker], puf_request(env_id, self.leave(env_id)))
            self.laid[worker] += 1
        for worker in range(ring.num_workers):
            if self.laid[worker]:
                puf_post(ring, worker, self.laid[worker])
                self.laid[worker] = 0
        return 0

    cdef int store(self, object actions) except -1:
        """Copy actions, as ``fitting`` returns them, for the environments that are sent to into the slab."""
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
        if self.whole:
            memcpy(column.data, source, self.num_envs * column.nbytes)
            return
        for i in range(self.num_bound):
            memcpy(column.data + self.bound[i] * column.nbytes, source + i * column.nbytes, column.nbytes)

    cdef object fitting(self, object actions):
        """Return actions just as the slab has them: an array, or a list of several; None where they are not plain."""
        cdef Py_ssize_t i
        cdef list parts
        if self.column is not None:
            if not self.column.fits(actions, self.num_bound):
                actions = self.column.converted(actions)
                if not self.column.fits(actions, self.num_bound):
                    return None
            return actions
        if self.columns is None or not (type(actions) is tuple or type(actions) is list):
            return None
        parts = list(actions)
        if len(parts) != len(self.columns):
            return None
        for i in range(len(parts)):
            parts[i] = (<ActionColumn>self.columns[i]).converted(parts[i])
        for i in range(len(parts)):  # now that no other code runs, before they are copied
            if not (<ActionColumn>self.columns[i]).fits(parts[i], self.num_bound):
                return None
        return parts

    def recv(self, double timeout_s):
        """Return the next batch if it comes in time (and soon) and nothing but rows does; None otherwise."""
        if self.owner:
            return None
        self.owner = PyThread_get_thread_ident()
        try:
            return self.recv_plain(timeout_s)
        finally:
            self.owner = 0

    cdef object recv_plain(self, double timeout_s):
        cdef puf_ring *ring = &self.ring.c
        cdef bint found = True
        cdef int64_t start_ns
        cdef list taken
        self.half_done = False
        if not self.clear or self.coming < ring.block_size:
            return None
        start_ns = puf_now_ns()
        if self.is_overdue(start_ns):
            if self.put_off:
                return None
            self.put_off = True  # until the next batch: after a pause everything is cold, and this one is awaited
        if not puf_is_full(ring, self.head):
            self.await_block(timeout_s)
            found = puf_is_full(ring, self.head)
        if self.has_news():  # asked after the block was full: what its rows left in a socket is there by now
            found = False
        self.half_done = True
        if found and self.has_infos():
            taken = self.ring.take_infos()
            found = not taken or self.collect(taken)
        if found:
            self.land()
        self.half_done = False
        if self.telemetry:
            self.note(start_ns, found)
        return self.batch if found else None

    # ---------------------------------------------------------------------------------------- the careful way

    def depart(self, env_ids):
        """Note that environments are sent something; return the slots that their rows go to."""
        self.begin_block()
        return [self.leave(env_id) for env_id in env_ids]

    cdef void begin_block(self) noexcept:
        """Note when a synchronous batch is begun, if it is now; ``leave`` does for others."""
        if self.mode == SYNCHRONOUS and not self.coming:
            puf_begin(&self.ring.c, self.head % self.ring.c.num_blocks, puf_now_ns())

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
        self.looked_ns, self.put_off = puf_now_ns(), False

    cdef bint is_overdue(self, int64_t now_ns) noexcept:
        """Return whether nobody has looked for a slice of time: a worker may be dead that nobody has to wait for."""
        return now_ns - self.looked_ns > <int64_t>(1e9 * SLICE_S)

    def wants_a_look(self):
        """Return whether it is time to look at the sockets, though rows keep coming."""
        return bool(self.is_overdue(puf_now_ns()))

    cdef bint has_infos(self) noexcept:
        """Whether rows of the next block, which is full, come with infos."""
        cdef uint64_t i
        cdef unsigned char *flags = self.ring.c.flags + self.head % self.ring.c.num_blocks * self.ring.c.block_size
        for i in range(self.ring.c.block_size):
            if flags[i] & PUF_INFO:
                return True
        return False

    cpdef bint has_news(self):
        """Return whether anything has come, extra_leaves rows, since ``look``."""
        return puf_mail(&self.ring.c) != self.mail or puf_notes(&self.ring.c) != self.notes

    def await_block(self, double timeout_s):
        """Wait for the next block to be full or for urgent news, no longer than a slice of time."""
        cdef int64_t timeout_ns = <int64_t>(1e9 * max(0.0, min(timeout_s, SLICE_S)))
        cdef int yields = self.spin if timeout_ns else 0
        with nogil:
            puf_await_block(&self.ring.c, self.head, self.mail, yields, timeout_ns)
        PyErr_CheckSignals()

    def await_row(self, double timeout_s):
        """Wait for any row or for urgent news, no longer than a slice of time."""
        cdef int64_t timeout_ns = <int64_t>(1e9 * max(0.0, min(timeout_s, SLICE_S)))
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
        if self.copier is not None:  # before anything has changed: there may be no memory
            copier = self.copier
            arrays = tuple([copier(array) for array in arrays])
        elif self.lend is not None:
            arrays = self.lend(block, arrays)
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
        """Return the Infos of the last batch: of infos that are all dicts, or of records."""
        if self.mode == SYNCHRONOUS:
            env_ids = range(self.num_envs)
        else:
            env_ids = PyBytes_FromStringAndSize(<char *>&self.last[0], self.ring.c.block_size * sizeof(unsigned int))
        infos = self.infos_type.__new__(self.infos_type)  # what its __init__ does, without a Python function
        infos._dicts, infos._source = items, records
        infos._env_ids, infos._agents_per_env = env_ids, self.agents_per_env
        return infos

    cdef object infos_of(self, uint64_t block):
        """Return the infos of the last batch, which this block held, in the order of its rows."""
        cdef uint64_t i, slot = block * self.ring.c.block_size
        cdef uint32_t env_id
        cdef size_t nbytes = 0
        cdef unsigned char *flags = self.ring.c.flags + slot
        cdef InfoStore store = self.ring.store
        cdef list items = []
        cdef bytes data
        cdef char *at
        for i in range(self.num_last):
            env_id = self.last[i]
            if flags[i] & PUF_HELD:
                held = self.ring.infos[slot + i]
                self.ring.infos[slot + i] = None
                if type(held) is list:
                    items += <list>held
                else:
                    items.append(held)
            elif flags[i] & PUF_EPISODE:
                items.append(None)
                nbytes += HEAD_NBYTES + 3 * sizeof(double)
            elif flags[i] & PUF_INFO:
                if store.has(env_id):
                    items += <list>store.schemas[env_id]
                    nbytes += store.messages[env_id].nbytes - 1
                else:
                    items += self.gather([env_id])
        if not nbytes:
            return self.infos_with(items, None)
        data = PyBytes_FromStringAndSize(NULL, nbytes)
        at = PyBytes_AS_STRING(data)
        for i in range(self.num_last):
            if flags[i] & PUF_EPISODE:
                at += self.put_episode(at, i, slot + i)
            elif flags[i] & PUF_INFO and store.has(self.last[i]):
                at += self.put_records(at, i, store)
        return self.infos_with(None, Records(items, data, self.agents_per_env))

    cdef size_t put_episode(self, char *at, uint64_t index, uint64_t slot) noexcept:
        """Put a record of an episode's statistics, and no keys; return its length."""
        cdef Head head
        head.nbytes, head.schema, head.flags = HEAD_NBYTES + 3 * sizeof(double), 0, OVER | EPISODE | OF_AGENT
        head.agent_index, head.env_id, head.row, head.unused = 0, self.last[index], <uint32_t>index, 0
        memcpy(at, &head, HEAD_NBYTES)  # only environments of one agent
        memcpy(at + HEAD_NBYTES, self.episodes + 3 * slot, 3 * sizeof(double))
        return head.nbytes

    cdef size_t put_records(self, char *at, uint64_t index, InfoStore store):
        """Put the records of an environment of the last batch, which are forgotten then; return their length."""
        cdef uint32_t env_id = self.last[index], nbytes = store.messages[env_id].nbytes - 1
        cdef uint32_t done = 0
        cdef Head head
        memcpy(at, store.messages[env_id].bytes + 1, nbytes)
        while done < nbytes:
            memcpy(&head, at + done, HEAD_NBYTES)
            head.env_id, head.row = env_id, <uint32_t>(index * self.agents_per_env + head.agent_index)
            memcpy(at + done, &head, HEAD_NBYTES)
            done += head.nbytes
        store.drop(env_id)
        return nbytes

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

    def claimed_slot(self, uint64_t env_id):
        """Return the slot that an environment has claimed without writing its rows; None if there is none."""
        cdef uint64_t ticket
        cdef uint64_t first = self.head * self.ring.c.block_size
        for ticket in range(first, first + self.ring.c.num_slots):
            if puf_is_stuck(&self.ring.c, ticket, env_id):
                return ticket % self.ring.c.num_slots
        return None

    def skip(self, uint64_t head):
        """Go on at block number ``head`` with nothing under way, after a rewind of the ring."""
        self.head, self.departed, self.coming = head, head * self.ring.c.block_size, 0

    def forget(self):
        """Forget the last batch: there is none to act on any more."""
        self.num_last, self.half_done = 0, False

    def counted(self):
        """Return how many environments' rows lie there, counted, and were not received."""
        return puf_counted(&self.ring.c, self.head)

    def is_asleep(self, uint32_t worker):
        """Return whether a worker sleeps, and so has nothing left to count."""
        return bool(puf_is_asleep(&self.ring.c, worker))

    def asked(self, uint32_t worker):
        """Return which word of its mailbox a worker has not taken yet; None if it has taken all."""
        cdef uint64_t number = 0
        return number if puf_has_untaken(&self.ring.c, worker, &number) else None

    def landed(self):
        """Return the environments whose rows lie there and were not received."""
        cdef uint64_t ticket
        cdef uint64_t first = self.head * self.ring.c.block_size
        found = []
        for ticket in range(first, first + self.ring.c.num_slots):
            if puf_is_done(&self.ring.c, ticket):
                found.append(self.env_ids[ticket % self.ring.c.num_slots])
        return found
