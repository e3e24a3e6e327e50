"""Run a worker's loop: take requests, step environments, commit their rows.

C reads rewards and flags of every number type, casts observations, and copies infos, or writes them as records if the
parent is another process. Anything unusual (an info that no record can hold, a list of rewards, an exception) goes to
the Python code that both paths share; nothing is done twice. The classes of agents.pyx step multi-agent environments.
"""

cimport cython
from cpython.dict cimport PyDict_Copy, PyDict_GetItemWithError
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.string cimport memcpy

from pufferlib._native.agents cimport IS_OVER, UNUSUAL, Agents, Outcome, Rows, put_first_outcome
from pufferlib._native.arrays cimport (
    puf_data, puf_descr, puf_dim, puf_is_array, puf_is_plain, puf_is_writeable, puf_ndim
)
from pufferlib._native.infos cimport EPISODE, OF_AGENT, OVER, InfoWriter, Schema, copy_info, is_empty
from pufferlib._native.pack cimport MaskPacker, Packer, Unpacker, read_flag, read_reward
from pufferlib._native.ring cimport *

import numpy

__all__ = ["StepLoop", "Stepper"]

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long) noexcept

cdef object NDARRAY = numpy.ndarray
cdef object INT64 = numpy.dtype(numpy.int64)
cdef object FLOAT32 = numpy.dtype(numpy.float32)
cdef object FLOAT64 = numpy.dtype(numpy.float64)
cdef object BOOL = numpy.dtype(numpy.bool_)
cdef str ACTION_MASK = "action_mask"
cdef str OBSERVATION = "observation"

cdef enum:
    MOST_DIMENSIONS = 8
    # As in telemetry/timeline.py, which explains them.
    NUM_BUCKETS = 128
    MOST_LEFT_OUT = 1000
    HUNDRED_COSTS_NS = 6000
    SLOW_NS = 20000
    IN_PYTHON = 255  # instead of a row's flag: Python must send its info


# ------------------------------------------------------------------------------------------------- the columns

cdef struct Column:
    char *data
    size_t nbytes  # of one slot


@cython.final
cdef class Columns:
    """The arrays of a slab by slot: the address and size of an environment's rows."""

    cdef Column observations, rewards, terminations, truncations, masks, env_ids, agent_ids, episodes
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
        self.episodes = column(slab.episodes, num_slots)
        self.wide_rewards = slab.rewards.dtype == FLOAT64

    cdef void copy(self, uint64_t slot, Columns source) noexcept nogil:
        """Copy the rows of another slab's first slot into a slot."""
        put(&self.observations, slot, source.observations.data)
        put(&self.rewards, slot, source.rewards.data)
        put(&self.terminations, slot, source.terminations.data)
        put(&self.truncations, slot, source.truncations.data)
        put(&self.masks, slot, source.masks.data)

    cdef void write_ids(self, uint64_t slot, uint64_t env_id) noexcept nogil:
        """Write the ids of a slot's environment and agents."""
        cdef uint32_t agent_index
        cdef int64_t *agent_ids = <int64_t *>(self.agent_ids.data + slot * self.agent_ids.nbytes)
        (<int64_t *>self.env_ids.data)[slot] = <int64_t>env_id
        for agent_index in range(self.agents_per_env):
            agent_ids[agent_index] = <int64_t>(env_id * self.agents_per_env + agent_index)

    cdef void write_outcome(
        self, uint64_t slot, double reward, bint terminated, bint truncated, bint mask
    ) noexcept nogil:
        """Write the outcome of one agent's step; all zeros for a reset."""
        if self.wide_rewards:
            (<double *>self.rewards.data)[slot] = reward
        else:
            (<float *>self.rewards.data)[slot] = <float>reward
        self.terminations.data[slot] = terminated
        self.truncations.data[slot] = truncated
        self.masks.data[slot] = mask

    cdef Rows rows(self, uint64_t slot) noexcept nogil:
        """Return the addresses of a slot's rows."""
        cdef Rows rows
        rows.observations = self.observations.data + slot * self.observations.nbytes
        rows.rewards = self.rewards.data + slot * self.rewards.nbytes
        rows.wide_rewards = self.wide_rewards
        rows.terminations = self.terminations.data + slot * self.terminations.nbytes
        rows.truncations = self.truncations.data + slot * self.truncations.nbytes
        rows.masks = self.masks.data + slot * self.masks.nbytes
        return rows

    cdef void write_episode(self, uint64_t slot, double total_reward, long length, double seconds) noexcept nogil:
        """Write the statistics of the episode that ends in a slot."""
        cdef double *statistics = <double *>(self.episodes.data + slot * self.episodes.nbytes)
        statistics[0] = total_reward
        statistics[1] = <double>length
        statistics[2] = seconds


cdef Column column(array, uint64_t num_slots):
    cdef Column result
    result.data = puf_data(array)
    result.nbytes = array.nbytes // num_slots
    return result


cdef inline void put(Column *column, uint64_t slot, const char *source) noexcept nogil:
    memcpy(column.data + slot * column.nbytes, source, column.nbytes)


# -------------------------------------------------------------------------------------------- one environment

@cython.final
cdef class Stepper:
    """A fast stepper of one single-agent environment, for steps in which nothing unusual happens.

    row_env: the RowEnv that finishes unusual steps; its ``totals`` (return, length and start of the episode) are set
    before and read after. step: the raw environment's ``step``. actions: the environment's action rows in the slab, one
    array per component. packer, unpacker: the layouts' converters; unpacker is None if the space is one leaf. native:
    whether it is a PufferEnv, which has buffers, rather than an environment that returns five values. resets: whether
    it may also be reset here. masks: the arguments of a MaskPacker for the masks in its infos, or None.
    """

    cdef Agents agents  # steps several agents, and replaces the fields up to ``ready``; None for one agent
    cdef object row_env, env, step
    cdef bint native, resets
    cdef Packer packer
    cdef Unpacker unpacker
    cdef MaskPacker masks
    cdef bint is_int  # the action is one int64, passed as a Python int
    cdef object action  # a view, passed as a copy; a PufferEnv reads the view itself
    cdef char *discrete
    cdef char *box
    cdef bint leaf  # observations are arrays that need no packing
    cdef object dtype, common_dtype  # the space's, and NumPy's equal singleton: an unpickled dtype is another object
    cdef int ndim
    cdef Py_ssize_t[MOST_DIMENSIONS] shape
    cdef double total_reward, start_s
    cdef long length
    cdef bint ready  # the next step may be made here
    cdef bint is_settled  # the one-time checks were made, and resets may be made here
    cdef uint32_t left_out, random_state
    cdef uint64_t weight
    cdef Schema schema  # of its last record

    def __init__(self, row_env, env, step, actions, Packer packer, Unpacker unpacker, bint native, bint resets, masks):
        cdef int axis
        space = row_env.observation_space
        self.masks = None if masks is None else MaskPacker(*masks)
        self.row_env, self.env, self.step, self.native, self.resets = row_env, env, step, native, resets
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
        self.common_dtype = numpy.dtype(self.dtype.str)
        self.ndim = len(space.shape)
        self.leaf = row_env.observation_layout.is_leaf and 0 < self.ndim <= MOST_DIMENSIONS
        for axis in range(min(self.ndim, MOST_DIMENSIONS)):
            self.shape[axis] = space.shape[axis]
        self.left_out, self.random_state, self.weight = 0, 1, 1

    @staticmethod
    def of_agents(Agents agents not None):
        """Return a stepper for a multi-agent environment."""
        cdef Stepper stepper = Stepper.__new__(Stepper)
        stepper.agents = agents
        stepper.left_out, stepper.random_state, stepper.weight = 0, 1, 1
        return stepper

    cdef object restart(self):
        """Call the environment's reset, looking it up each time, as the RowEnv does: some environments replace it."""
        if self.agents is not None:
            return self.agents.reset()
        if not self.native:
            return self.env.reset()
        env = self.env
        env.rewards.fill(0)
        env.terminations.fill(False)
        env.truncations.fill(False)
        env.alive[...] = True
        return env.reset(seed=None, options=None)

    cdef object act(self):
        """Step the environment with the action in the slab; return its result."""
        if self.is_int:
            return self.step((<int64_t *>self.discrete)[0])
        if self.unpacker is not None:
            return self.step(self.unpacker.unpack_at(self.discrete, self.box))
        return self.step(self.action.copy())

    cdef bint fits(self, object observation):
        """Return whether an observation is an array of the space's dtype and shape; a PufferEnv's is a batch of one."""
        cdef int axis
        if not puf_is_array(observation, NDARRAY):
            return False
        if puf_descr(observation) != <PyObject *>self.common_dtype and puf_descr(observation) != <PyObject *>self.dtype:
            return False
        if puf_ndim(observation) != self.ndim + self.native or not puf_is_plain(observation):
            return False
        if self.ndim > MOST_DIMENSIONS or (self.native and puf_dim(observation, 0) != 1):
            return False
        for axis in range(self.ndim):
            if puf_dim(observation, axis + self.native) != self.shape[axis]:
                return False
        return True

    cdef object first_observations(self):
        """Return the observations of a PufferEnv after its reset; None if its buffers are unusual."""
        observations, alive = self.env.observations, self.env.alive
        return observations if is_one(alive, BOOL) and puf_data(alive)[0] and self.fits(observations) else None

    cdef dict masked(self, object observation, object info):
        """Return an observation with the mask of its info, as ``Caller.observed`` does; None if the mask is unusual."""
        cdef PyObject *mask_object = NULL
        if type(info) is dict:
            mask_object = PyDict_GetItemWithError(info, ACTION_MASK)
        elif info is not None:
            return None
        mask = self.masks.packed(None if mask_object == NULL else <object>mask_object)
        return None if mask is None else {OBSERVATION: observation, ACTION_MASK: mask}

    cdef int export_state(self) except -1:
        """Copy the episode's totals to the RowEnv, which takes the next step."""
        if self.agents is not None:
            return self.agents.export_state()
        self.row_env.totals = (self.total_reward, self.length, self.start_s)
        return 0

    cdef int resume(self, bint ready) except -1:
        """Read the episode's totals from the RowEnv. ready: whether this stepper may take the next step."""
        self.ready = ready
        if ready and self.agents is not None:
            return self.agents.resume()
        if ready:
            self.total_reward, self.length, self.start_s = self.row_env.totals
        return 0

    cdef bint can_reset(self):
        """Return whether this stepper may make the next step, which is a reset."""
        if self.agents is not None:
            return self.agents.can_reset()
        if not self.is_settled:
            self.is_settled = self.resets and self.row_env.settled
        return self.is_settled

    cdef int begin(self) except -1:
        """Start an episode."""
        self.total_reward, self.length, self.start_s, self.ready = 0, 0, 1e-9 * puf_now_ns(), True
        return 0


cdef inline bint is_dict(object info) noexcept:
    """Return whether an info is None or a plain dict, which compiled code can copy."""
    return info is None or type(info) is dict


cdef object unmasked(object info):
    """Return an info with any action mask removed, in a copy of the dict if it has one."""
    if type(info) is dict and ACTION_MASK in <dict>info:
        info = PyDict_Copy(info)
        del (<dict>info)[ACTION_MASK]
    return info


cdef object single_info(object infos):
    """Return the info of a single-agent PufferEnv, which may be wrapped in a sequence of one."""
    if type(infos) is tuple:
        infos = list(infos)
    if type(infos) is not list or PyList_GET_SIZE(infos) > 1:
        return infos
    if PyList_GET_SIZE(infos) == 0:
        return None
    info = (<list>infos)[0]
    return info if info is None or type(info) is dict else infos


cdef inline bint is_one(object array, object dtype):
    """Return whether an object is a writeable array with one element of a dtype."""
    return (
        puf_is_array(array, NDARRAY) and puf_descr(array) == <PyObject *>dtype
        and puf_ndim(array) == 1 and puf_dim(array, 0) == 1 and puf_is_writeable(array)
    )


# ---------------------------------------------------------------------------------------------------- a worker

@cython.final
cdef class StepLoop:
    """A worker's loop, which takes requests and commits rows.

    worker: a vectorization.worker.worker.Worker. Its ``advance(env_id, slot)`` makes a complete step in Python,
    ``finish(env_id, slot, result)`` the rest of a step and ``finish_reset(env_id, slot, result)`` the rest of a reset;
    all return whether the compiled loop may make the next step. ``finish_restart`` makes the rest of a same-step reset,
    or ``finish_restart_of_several`` for several agents. ``hand_over(env_id, slot, over, infos)`` commits rows with
    infos for another process. ``failed(env_id, phase, error)`` reports an exception. ``over`` is the set of
    environments whose next step is a reset.
    scratch: a slab of one slot, for rows whose slot is not known yet. claims: whether slots are claimed after the step.
    copy_value: the function of emulation/infos.py, for values of infos that are not copied here.
    """

    cdef Ring ring
    cdef Columns columns, scratch_columns
    cdef object slab, scratch, worker, copy_value
    cdef InfoWriter writer
    cdef object copy  # of the next row's info, or a list of copies
    cdef uint32_t index
    cdef uint64_t first, num_envs  # the share
    cdef uint64_t first_env  # the slab's lowest env id
    cdef list steppers  # by environment; None if always stepped in Python
    cdef uint64_t block, uncounted
    cdef bint claims, telemetry
    cdef set over
    cdef bint resets_later, next_step  # resets_later: the autoreset mode is not same_step
    cdef bint is_slow  # the last step took so long that reading the clock costs little in comparison
    cdef double[:, :, ::1] times
    cdef uint64_t[:, ::1] histogram
    cdef double[:, ::1] worker_times
    cdef int64_t since_ns, reset_ns
    cdef int64_t *activity  # the current step or reset, for core/step_watchdog.py
    cdef int64_t num_done, num_ids
    cdef int64_t step_limit_ns, reset_limit_ns, begun_ns  # limits where no parent watches, else 0; last start

    def __init__(self, Ring ring, slab, scratch, worker, share, uint32_t index, bint claims, copy_value):
        self.copy_value, self.writer = copy_value, InfoWriter()
        self.ring, self.slab, self.scratch, self.worker, self.index = ring, slab, scratch, worker, index
        self.columns, self.scratch_columns = Columns(slab, ring.c.num_slots), Columns(scratch, 1)
        self.first, self.num_envs = share[0], len(share)
        self.steppers = [None] * len(share)
        self.block = self.uncounted = 0
        self.claims, self.telemetry = claims, slab.shape.telemetry
        self.over, self.next_step = worker.over, worker.task.autoreset_mode == "next_step"
        self.resets_later = worker.task.autoreset_mode != "same_step"
        self.times, self.histogram, self.worker_times = slab.times, slab.histogram, slab.worker_times
        self.since_ns = puf_now_ns()
        self.activity = <int64_t *>puf_data(slab.doing[index])
        self.num_done, self.num_ids = 0, slab.shape.num_ids
        self.first_env = slab.shape.first_env
        self.step_limit_ns = <int64_t>(1e9 * worker.step_limit_s)
        self.reset_limit_ns = <int64_t>(1e9 * worker.reset_limit_s)

    def adopt(self, uint64_t env_id, stepper):
        """Use a stepper for an environment's steps where possible. stepper: None steps it in Python."""
        self.steppers[env_id - self.first] = stepper

    def resume(self, uint64_t env_id, bint ready):
        """Set whether the compiled loop may make an environment's next step."""
        stepper = self.steppers[env_id - self.first]
        if stepper is not None:
            (<Stepper>stepper).resume(ready)

    def rows(self, uint32_t slot):
        """Return the Rows that an environment writes for a slot."""
        return self.scratch.rows(0) if slot == PUF_CLAIM else self.slab.rows(slot)

    @property
    def holds_infos(self):
        """Return whether infos stay as objects, because the parent is in this process."""
        return self.ring.infos is not None

    def commit(self, uint64_t env_id, uint32_t slot, bint over, list infos):
        """Commit an environment's written rows with their infos, already sent if the parent is another process."""
        cdef unsigned char flags = PUF_OVER if over else 0
        if slot == PUF_CLAIM:
            slot = self.claim(env_id)
            self.columns.copy(slot, self.scratch_columns)
        else:
            self.select_block(slot)
        if infos and self.ring.infos is not None:
            self.ring.infos[slot] = infos
            flags |= PUF_HELD
        elif infos:
            flags |= PUF_INFO
        self.hand_over(env_id, slot, flags)

    cdef uint32_t claim(self, uint64_t env_id) noexcept:
        """Claim a slot for an environment, and make its block the current one."""
        cdef uint64_t ticket = puf_claim(&self.ring.c, env_id)
        cdef uint64_t slot = ticket % self.ring.c.num_slots
        if ticket % self.ring.c.block_size == 0:
            puf_begin(&self.ring.c, slot // self.ring.c.block_size, puf_now_ns())
        self.select_block(<uint32_t>slot)
        return <uint32_t>slot

    cdef void hand_over(self, uint64_t env_id, uint32_t slot, unsigned char flags) noexcept:
        """Commit the written rows of a slot in the current block."""
        self.columns.write_ids(slot, env_id)
        self.ring.c.flags[slot] = flags
        if not self.uncounted:
            puf_mark_uncounted(&self.ring.c, self.index, True)
        puf_commit(&self.ring.c, slot)
        self.uncounted += 1
        if self.claims:
            self.flush()

    cdef inline void select_block(self, uint32_t slot) noexcept:
        """Make a slot's block the current one; count the committed rows of the previous one first."""
        if slot - self.block * self.ring.c.block_size >= self.ring.c.block_size:  # a slot below it wraps around
            self.flush()
            self.block = slot // self.ring.c.block_size

    cpdef void flush(self) noexcept:
        """Count the committed rows of the current block at once, since the parent needs all of them."""
        if self.uncounted:
            puf_count(&self.ring.c, self.block, self.uncounted)
            puf_mark_uncounted(&self.ring.c, self.index, False)
            self.uncounted = 0

    def serve(self, int spin):
        """Serve requests until the socket has a frame to read.

        spin: how many times to yield the core before sleeping.
        """
        cdef uint64_t word
        cdef bint has_word
        cdef uint32_t num_requests = 0
        while True:
            if not puf_take(&self.ring.c, self.index, &word):
                self.flush()
                self.clock(0)
                puf_store_relaxed(self.activity, 0)
                with nogil:
                    has_word = puf_await_post(&self.ring.c, self.index, &word, spin, -1)
                self.clock(1)
                if not has_word:
                    PyErr_CheckSignals()
                    continue
            if <uint32_t>word == PUF_CONTROL:
                self.flush()
                puf_store_relaxed(self.activity, 0)
                return
            if <uint32_t>word == PUF_SHARE:
                self.play_share(word >> 32)
            else:
                self.play(<uint32_t>word, word >> 32)
                num_requests += 1
                if self.is_slow or num_requests % 16 == 0:  # a worker that never waits would never be timed
                    self.clock(0)

    cdef void clock(self, int kind) noexcept:
        """Add the seconds since the last call to the busy (0) or waiting (1) time."""
        cdef int64_t now_ns = puf_now_ns()
        self.worker_times[self.index, kind] += 1e-9 * (now_ns - self.since_ns)
        self.since_ns = now_ns

    def step_all(self, uint64_t block):
        """Step all environments of the share into a block."""
        try:
            self.clock(1)
            self.play_share(block)
        finally:
            self.flush()
            self.clock(0)

    def step(self, env_ids, slots):
        """Step environments, in order, into slots."""
        try:
            self.clock(1)
            for env_id, slot in zip(env_ids, slots):
                self.play(env_id, slot)
        finally:
            self.flush()
            self.clock(0)

    cdef int play_share(self, uint64_t block) except -1:
        cdef uint64_t env_id
        cdef uint64_t base = block * self.ring.c.block_size - self.first_env
        for env_id in range(self.first, self.first + self.num_envs):
            self.play(env_id, <uint32_t>(base + env_id))
        return 0

    cdef int play(self, uint64_t env_id, uint32_t slot) except -1:
        cdef object entry = self.steppers[env_id - self.first]
        cdef Stepper stepper
        cdef bint timed
        cdef int64_t start_ns = 0
        if slot != PUF_CLAIM:
            self.select_block(slot)
        self.num_done += 1
        puf_store_relaxed(self.activity, 2 * (1 + self.num_done * self.num_ids + <int64_t>env_id))
        if entry is None:
            self.is_slow = True
            self.worker.advance(env_id, slot)
            return 0
        self.is_slow = False
        stepper = <Stepper>entry
        if not stepper.ready:
            if env_id in self.over and stepper.can_reset():
                self.reset(stepper, env_id, slot)
            else:
                stepper.resume(self.worker.advance(env_id, slot))
            return 0
        timed = self.telemetry and stepper.left_out == 0
        if timed:
            self.reset_ns = 0
            start_ns = puf_now_ns()
        elif self.telemetry:
            stepper.left_out -= 1
        try:
            if stepper.agents is not None:
                self.step_agents(stepper, env_id, slot)
            elif stepper.native:
                self.step_native(stepper, env_id, slot)
            else:
                self.step_raw(stepper, env_id, slot)
        except (Exception, SystemExit) as error:
            stepper.ready = False
            self.worker.failed(env_id, "step", error)
        if timed:
            self.note(stepper, env_id, puf_now_ns() - start_ns - self.reset_ns)
        return 0

    cdef inline void begin(self) noexcept:
        """Start timing a step or reset, if there is a time limit."""
        if self.step_limit_ns or self.reset_limit_ns:
            self.begun_ns = puf_about_now_ns()

    cdef inline int end(self, int64_t limit_ns, str what) except -1:
        """Raise an error if a step or reset has taken longer than its limit."""
        cdef int64_t ns
        if limit_ns:
            ns = puf_about_now_ns() - self.begun_ns
            if ns > limit_ns:
                self.worker.refuse_late(what, 1e-9 * ns)
        return 0

    cdef int step_raw(self, Stepper stepper, uint64_t env_id, uint32_t slot) except -1:
        cdef object result, observation, info
        cdef double reward
        cdef bint terminated, truncated
        cdef int info_flag
        self.begin()
        result = stepper.act()
        self.end(self.step_limit_ns, "step")
        if (
            type(result) is tuple and PyTuple_GET_SIZE(result) == 5
            and read_reward(<object>PyTuple_GET_ITEM(result, 1), &reward)
            and read_flag(<object>PyTuple_GET_ITEM(result, 2), &terminated)
            and read_flag(<object>PyTuple_GET_ITEM(result, 3), &truncated)
            and (self.resets_later or not (terminated or truncated))
        ):
            observation, info = <object>PyTuple_GET_ITEM(result, 0), <object>PyTuple_GET_ITEM(result, 4)
            if stepper.masks is not None:
                observation, info = stepper.masked(observation, info), unmasked(info)
            # Nothing between claim and commit may fail, so infos come first.
            info_flag = (
                0 if is_empty(info) else self.prepare_info(stepper, env_id, info, reward, terminated or truncated)
            )
            if info_flag != IN_PYTHON and self.write(stepper, observation, env_id, &slot):
                self.conclude(stepper, env_id, slot, reward, terminated, truncated, info_flag)
                return 0
        if self.resets_later or not self.restart(stepper, env_id, slot, result):
            self.hand_back(stepper, env_id, slot, result)
        return 0

    cdef bint restart(self, Stepper stepper, uint64_t env_id, uint32_t slot, object result) except -1:
        """Finish a step that ends an episode with the next reset (same_step).

        Return False, changing nothing, if the step ends none or is unusual. Errors raised by the step's observation
        propagate; errors of the reset are reported.
        """
        cdef double reward
        cdef bint terminated, truncated
        cdef object observation, info
        if not (
            type(result) is tuple and PyTuple_GET_SIZE(result) == 5
            and read_reward(<object>PyTuple_GET_ITEM(result, 1), &reward)
            and read_flag(<object>PyTuple_GET_ITEM(result, 2), &terminated)
            and read_flag(<object>PyTuple_GET_ITEM(result, 3), &truncated)
            and (terminated or truncated)
            and is_dict(<object>PyTuple_GET_ITEM(result, 4))
            and stepper.can_reset()
        ):
            return False
        observation, info = <object>PyTuple_GET_ITEM(result, 0), <object>PyTuple_GET_ITEM(result, 4)
        if stepper.masks is not None:
            observation, info = stepper.masked(observation, info), unmasked(info)
        observation = stepper.packer.packed(observation)
        if observation is None:
            return False
        last = self.last_info(stepper, info, reward)
        observation = observation[()] if stepper.ndim == 0 else observation
        self.end_in_same_step(stepper, env_id, slot, reward, terminated, truncated, observation, last)
        return True

    cdef int end_in_same_step(
        self, Stepper stepper, uint64_t env_id, uint32_t slot, double reward, bint terminated, bint truncated,
        object observation, dict last
    ) except -1:
        """Write the outcome of an episode's last step and start the next episode. observation, last: the final ones."""
        cdef Columns columns = self.scratch_columns if slot == PUF_CLAIM else self.columns
        columns.write_outcome(0 if slot == PUF_CLAIM else slot, reward, terminated, truncated, True)
        stepper.ready = False
        try:
            self.begin_in_same_step(stepper, env_id, slot, observation, last)
        except (Exception, SystemExit) as error:
            self.worker.failed(env_id, "reset", error)
        return 0

    cdef dict copied(self, object info):
        """Return a copy of an info that ``is_dict``."""
        return {} if is_empty(info) else copy_info(info, self.copy_value)

    cdef dict last_info(self, Stepper stepper, object info, double reward):
        """Return a copy of the info of an episode's last step, with the episode's statistics."""
        cdef dict last = self.copied(info)
        last["env"] = True
        if "episode" not in last:
            last["episode"] = {
                "r": stepper.total_reward + reward, "l": stepper.length + 1, "t": 1e-9 * puf_now_ns() - stepper.start_s
            }
        return last

    cdef int begin_in_same_step(
        self, Stepper stepper, uint64_t env_id, uint32_t slot, object observation, dict last
    ) except -1:
        """Start an episode in the step that ended one, whose outcome is written.

        observation, last: the last observation and info of the ended episode. The new info has the
        entries of ``worker._with_finals``, in the same order.
        """
        cdef Columns columns = self.scratch_columns if slot == PUF_CLAIM else self.columns
        cdef char *row = columns.observations.data + (0 if slot == PUF_CLAIM else slot) * columns.observations.nbytes
        cdef object first, raw_info
        cdef dict info = None
        result = self.raw_reset(stepper, env_id)
        if stepper.native:
            raw_info = single_info(result)
            if is_dict(raw_info):
                info = self.copied(raw_info)  # before the buffers are read: copying may run other code
                first = stepper.first_observations()
                if first is None:
                    info = None
                else:
                    memcpy(row, puf_data(first), columns.observations.nbytes)
        elif type(result) is tuple and PyTuple_GET_SIZE(result) == 2 and is_dict(<object>PyTuple_GET_ITEM(result, 1)):
            first, raw_info = <object>PyTuple_GET_ITEM(result, 0), <object>PyTuple_GET_ITEM(result, 1)
            if stepper.masks is not None:
                first, raw_info = stepper.masked(first, raw_info), unmasked(raw_info)
            if stepper.packer.pack_at(first, row):
                info = self.copied(raw_info)
        if info is not None:
            info["episode"], info["env"] = last["episode"], last["env"]
            info["final_obs"], info["final_info"] = observation, last
            info["env_id"] = info["agent_id"] = env_id  # only environments of one agent
            self.deliver(stepper, env_id, slot, info)
            stepper.begin()
            return 0
        stepper.resume(self.worker.finish_restart(env_id, slot, result, last, observation))
        return 0

    cdef int deliver(self, Stepper stepper, uint64_t env_id, uint32_t slot, dict info) except -1:
        """Commit the written rows of an episode's end with their info."""
        cdef int flag = self.prepare_infos(stepper, [info], [0])
        if flag == IN_PYTHON:
            self.worker.hand_over(env_id, slot, True, [info])
            return 0
        if slot == PUF_CLAIM:
            slot = self.claim(env_id)
            self.columns.copy(slot, self.scratch_columns)
        self.attach(env_id, slot, flag)
        self.hand_over(env_id, slot, PUF_OVER | flag)
        return 0

    cdef int hand_back(self, Stepper stepper, uint64_t env_id, uint32_t slot, object result) except -1:
        """Finish a step in Python; the time of a reset within it is not counted as the step's."""
        stepper.export_state()
        stepper.resume(self.worker.finish(env_id, slot, result))
        self.reset_ns = <int64_t>(1e9 * self.worker.reset_s)
        return 0

    cdef bint write(self, Stepper stepper, object observation, uint64_t env_id, uint32_t *slot) except -1:
        """Write an observation; return False if it is unusual. It claims a slot only when nothing can fail any more."""
        cdef Column *observations = &self.columns.observations
        if stepper.leaf and stepper.fits(observation):
            if slot[0] == PUF_CLAIM:
                slot[0] = self.claim(env_id)
            memcpy(observations.data + slot[0] * observations.nbytes, puf_data(observation), observations.nbytes)
            return True
        if slot[0] != PUF_CLAIM:
            return stepper.packer.pack_at(observation, observations.data + slot[0] * observations.nbytes)
        if not stepper.packer.pack_at(observation, self.scratch_columns.observations.data):
            return False
        slot[0] = self.claim(env_id)
        put(observations, slot[0], self.scratch_columns.observations.data)
        return True

    cdef int prepare_info(self, Stepper stepper, uint64_t env_id, object info, double reward, bint over) except -1:
        """Prepare the next row's info as a copy or a record; return its flag, PUF_HELD or PUF_INFO.

        0: the info is empty. IN_PYTHON: Python has to send it; nothing has changed. over: whether the episode is
        over, so that its statistics are added.
        """
        cdef double episode[3]
        cdef bint adds = over
        cdef dict copy
        if is_empty(info):
            return 0
        if type(info) is not dict:
            return IN_PYTHON
        if over:
            adds = "episode" not in <dict>info
            episode[0], episode[1] = stepper.total_reward + reward, stepper.length + 1
            episode[2] = 1e-9 * puf_now_ns() - stepper.start_s
        if self.ring.infos is None:
            return self.write_record(stepper, info, over, adds, episode)
        copy = copy_info(info, self.copy_value)
        if over:
            copy["env"] = True
        if adds:
            copy["episode"] = {"r": episode[0], "l": stepper.length + 1, "t": episode[2]}
        copy["env_id"] = copy["agent_id"] = env_id  # only environments of one agent
        self.copy = copy
        return PUF_HELD

    cdef int prepare_infos(self, Stepper stepper, list infos, list agent_indices) except -1:
        """Prepare infos that are labelled copies. agent_indices: one per info; None if it is the environment's."""
        cdef InfoWriter writer = self.writer
        cdef Schema schema
        cdef Py_ssize_t i
        if self.ring.infos is not None:
            self.copy = infos
            return PUF_HELD
        writer.begin()
        for i in range(len(infos)):
            info, index = infos[i], agent_indices[i]
            schema = self.schema_of(stepper, info)
            if schema is None:
                return IN_PYTHON
            if not writer.add(schema, info, 0 if index is None else OF_AGENT, 0 if index is None else index, NULL):
                return IN_PYTHON
        return PUF_INFO if puf_has_room_for_info(&self.ring.c, self.index, writer.nbytes) else IN_PYTHON

    cdef int write_record(self, Stepper stepper, dict info, bint over, bint adds, const double *episode) except -1:
        """Write a record of an info; return PUF_INFO, or IN_PYTHON if no record can hold it."""
        cdef InfoWriter writer = self.writer
        cdef Schema schema = self.schema_of(stepper, info)
        if schema is None:
            return IN_PYTHON
        writer.begin()
        if not writer.add(schema, info, OF_AGENT | (OVER if over else 0) | (EPISODE if adds else 0), 0, episode):
            return IN_PYTHON
        return PUF_INFO if puf_has_room_for_info(&self.ring.c, self.index, writer.nbytes) else IN_PYTHON

    cdef Schema schema_of(self, Stepper stepper, dict info):
        """Return the schema of an info, already sent to the parent; None if the info must be sent pickled."""
        cdef InfoWriter writer = self.writer
        cdef Schema schema = writer.schema_of(info, stepper.schema)
        if schema is None:
            return None
        if schema is writer.new_schema:
            if not self.ring.put_info(self.index, 0, writer.new_schema_message()):
                return None
            writer.add_new_schema()
        stepper.schema = schema
        return schema

    cdef int attach(self, uint64_t env_id, uint32_t slot, int info_flag) except -1:
        """Attach the prepared info to its row, or put it into the worker's pipe, which must have room for it."""
        if info_flag == PUF_HELD:
            self.ring.infos[slot] = self.copy
            self.copy = None
        elif info_flag == PUF_INFO:
            puf_put_info(&self.ring.c, self.index, <uint32_t>env_id, self.writer.bytes, self.writer.nbytes)
        return 0

    cdef int conclude(
        self, Stepper stepper, uint64_t env_id, uint32_t slot, double reward, bint terminated, bint truncated,
        int info_flag
    ) except -1:
        """Write the outcome of a step whose observation is written. info_flag: the result of ``prepare_info``."""
        stepper.total_reward += reward
        stepper.length += 1
        self.columns.write_outcome(slot, reward, terminated, truncated, True)
        if info_flag:
            self.attach(env_id, slot, info_flag)
        if not (terminated or truncated):
            self.hand_over(env_id, slot, info_flag)
            return 0
        if not info_flag:
            self.columns.write_episode(
                slot, stepper.total_reward, stepper.length, 1e-9 * puf_now_ns() - stepper.start_s
            )
            info_flag = PUF_EPISODE
        self.hand_over(env_id, slot, PUF_OVER | info_flag)
        if self.next_step:  # recorded last, since nothing between claim and commit may fail
            stepper.ready = False
            self.over.add(env_id)
        return 0

    cdef int step_agents(self, Stepper stepper, uint64_t env_id, uint32_t slot) except -1:
        cdef object result
        if not stepper.agents.can_step():
            stepper.export_state()
            stepper.resume(self.worker.advance(env_id, slot))
            return 0
        self.begin()
        result = stepper.agents.step()
        self.end(self.step_limit_ns, "step")
        if not self.takes_rows(stepper, env_id, slot, result, False):
            self.hand_back(stepper, env_id, slot, result)
        return 0

    cdef bint takes_rows(
        self, Stepper stepper, uint64_t env_id, uint32_t slot, object result, bint is_reset
    ) except? True:
        """Write and commit the rows of several agents after a step or reset; return False if the result is unusual."""
        cdef Rows rows = self.scratch_columns.rows(0) if slot == PUF_CLAIM else self.columns.rows(slot)
        cdef Outcome outcome
        if is_reset:
            outcome = stepper.agents.take_reset(result, &rows)
        else:
            outcome = stepper.agents.take(result, &rows)
        if outcome == UNUSUAL:
            return False
        if is_reset:
            put_first_outcome(&rows, stepper.agents.num)
        elif outcome == IS_OVER and not self.resets_later:
            self.restart_agents(stepper, env_id, slot, &rows)
            return True
        self.deliver_rows(stepper, env_id, slot, outcome == IS_OVER, stepper.agents.infos_by_agent)
        stepper.ready = outcome != IS_OVER or not self.next_step
        if not stepper.ready:  # recorded last, since nothing between claim and commit may fail
            self.over.add(env_id)
        return True

    cdef int deliver_rows(
        self, Stepper stepper, uint64_t env_id, uint32_t slot, bint over, dict infos_by_agent
    ) except -1:
        """Commit the written rows of several agents with their infos."""
        cdef list infos = stepper.agents.label_infos(infos_by_agent)
        cdef int info_flag = 0 if infos is None else self.prepare_infos(stepper, infos, stepper.agents.agent_indices)
        stepper.agents.infos_by_agent = None
        if info_flag == IN_PYTHON:
            self.worker.hand_over(env_id, slot, over, infos)
            return 0
        if slot == PUF_CLAIM:
            slot = self.claim(env_id)
            self.columns.copy(slot, self.scratch_columns)
        self.attach(env_id, slot, info_flag)
        self.hand_over(env_id, slot, (PUF_OVER if over else 0) | info_flag)
        return 0

    cdef int restart_agents(self, Stepper stepper, uint64_t env_id, uint32_t slot, Rows *rows) except -1:
        """Start the next episode in the step that ended one (same_step), whose rows are written."""
        cdef Agents agents = stepper.agents
        cdef dict lasts = agents.infos_by_agent
        stepper.ready = False
        try:
            observations = agents.copy_observations(rows)
            result = self.raw_reset(stepper, env_id)
            if agents.take_reset(result, rows) == UNUSUAL:
                stepper.resume(
                    self.worker.finish_restart_of_several(env_id, slot, result, list(lasts.items()), observations)
                )
                return 0
            self.deliver_rows(
                stepper, env_id, slot, True, agents.with_finals(agents.infos_by_agent, lasts, rows, observations)
            )
            stepper.ready = True
        except (Exception, SystemExit) as error:
            self.worker.failed(env_id, "reset", error)
        return 0

    cdef int step_native(self, Stepper stepper, uint64_t env_id, uint32_t slot) except -1:
        cdef object env = stepper.env
        cdef object rewards = env.rewards, terminations = env.terminations, truncations = env.truncations
        cdef object alive = env.alive
        cdef object infos, info, observations
        cdef double reward
        cdef bint over
        cdef int info_flag = 0
        cdef dict last = None  # the info of a step that ends an episode and begins the next
        cdef bint wide = is_one(rewards, FLOAT64)
        if not (
            (wide or is_one(rewards, FLOAT32))
            and is_one(terminations, BOOL) and is_one(truncations, BOOL) and is_one(alive, BOOL)
            and puf_data(alive)[0]
        ):
            stepper.export_state()
            stepper.resume(self.worker.advance(env_id, slot))
            return 0
        if wide:
            (<double *>puf_data(rewards))[0] = 0
        else:
            (<float *>puf_data(rewards))[0] = 0
        puf_data(terminations)[0] = puf_data(truncations)[0] = 0
        self.begin()
        infos = env.step(stepper.action)  # looked up, as in the RowEnv: some environments replace it
        self.end(self.step_limit_ns, "step")
        info = None if infos is None else single_info(infos)
        over = puf_data(terminations)[0] or puf_data(truncations)[0]
        reward = (<double *>puf_data(rewards))[0] if wide else (<float *>puf_data(rewards))[0]
        # Before the buffers are read, since copying an info may run other code.
        if self.resets_later or not over:
            info_flag = self.prepare_info(stepper, env_id, info, reward, over)
        elif is_dict(info):
            last = self.last_info(stepper, info, reward)
        else:
            info_flag = IN_PYTHON
        observations = env.observations
        if (
            info_flag != IN_PYTHON
            and env.rewards is rewards and env.terminations is terminations and env.truncations is truncations
            and env.alive is alive
            # The same arrays may have been resized in place.
            and is_one(rewards, FLOAT64 if wide else FLOAT32)
            and is_one(terminations, BOOL) and is_one(truncations, BOOL) and is_one(alive, BOOL)
            and puf_data(alive)[0]
            and over == (puf_data(terminations)[0] or puf_data(truncations)[0])
            and stepper.fits(observations)
        ):
            if over:
                puf_data(alive)[0] = 0
            if last is not None:
                last_row = observations[0].copy() if stepper.ndim else observations[0]
                self.end_in_same_step(
                    stepper, env_id, slot, reward, puf_data(terminations)[0] != 0, puf_data(truncations)[0] != 0,
                    last_row, last,
                )
                return 0
            if slot == PUF_CLAIM:
                slot = self.claim(env_id)
            put(&self.columns.observations, slot, puf_data(observations))
            self.conclude(
                stepper, env_id, slot, reward, puf_data(terminations)[0] != 0, puf_data(truncations)[0] != 0, info_flag
            )
            return 0
        self.hand_back(stepper, env_id, slot, infos)
        return 0

    cdef int reset(self, Stepper stepper, uint64_t env_id, uint32_t slot) except -1:
        """Reset an environment instead of stepping it."""
        cdef object result
        cdef int info_flag
        self.over.discard(env_id)
        try:
            result = self.raw_reset(stepper, env_id)
            if stepper.agents is not None:
                if self.takes_rows(stepper, env_id, slot, result, True):
                    return 0
            else:
                info_flag = self.write_first(stepper, result, env_id, &slot)
                if info_flag != IN_PYTHON:
                    stepper.begin()
                    self.columns.write_outcome(slot, 0, False, False, False)
                    self.attach(env_id, slot, info_flag)
                    self.hand_over(env_id, slot, info_flag)
                    return 0
            stepper.resume(self.worker.finish_reset(env_id, slot, result))
        except (Exception, SystemExit) as error:
            self.worker.failed(env_id, "reset", error)
        return 0

    cdef int write_first(self, Stepper stepper, object result, uint64_t env_id, uint32_t *slot) except -1:
        """Write an episode's first observation; return its info flag, or IN_PYTHON if the result is unusual."""
        cdef object observation, info
        cdef int info_flag
        if stepper.native:
            info_flag = self.prepare_info(stepper, env_id, single_info(result), 0, False)
            observation = None if info_flag == IN_PYTHON else stepper.first_observations()
            if observation is None:
                return IN_PYTHON
            if slot[0] == PUF_CLAIM:
                slot[0] = self.claim(env_id)
            put(&self.columns.observations, slot[0], puf_data(observation))
            return info_flag
        if not (type(result) is tuple and PyTuple_GET_SIZE(result) == 2):
            return IN_PYTHON
        observation, info = <object>PyTuple_GET_ITEM(result, 0), <object>PyTuple_GET_ITEM(result, 1)
        if stepper.masks is not None:
            observation, info = stepper.masked(observation, info), unmasked(info)
        info_flag = self.prepare_info(stepper, env_id, info, 0, False)
        return info_flag if info_flag != IN_PYTHON and self.write(stepper, observation, env_id, slot) else IN_PYTHON

    cdef object raw_reset(self, Stepper stepper, uint64_t env_id):
        """Reset the environment and record the duration; return the raw result."""
        cdef int64_t ns
        puf_store_relaxed(self.activity, self.activity[0] | 1)
        self.begin()
        ns = puf_now_ns()
        result = stepper.restart()
        self.reset_ns = ns = puf_now_ns() - ns
        self.is_slow = ns >= SLOW_NS
        self.add(env_id, 1, 1e-9 * ns, 1)
        self.end(self.reset_limit_ns, "reset")
        return result

    cdef void add(self, uint64_t env_id, int kind, double seconds, uint64_t weight) noexcept:
        """Add a sample to the times of steps (0) or resets (1)."""
        cdef double weighted = weight * seconds
        cdef uint64_t index = env_id - self.first_env
        self.times[index, kind, 0] += weight
        self.times[index, kind, 1] += weighted
        self.times[index, kind, 2] += weighted * seconds
        if seconds > self.times[index, kind, 3]:
            self.times[index, kind, 3] = seconds

    cdef int note(self, Stepper stepper, uint64_t env_id, int64_t ns) except -1:
        """Record a step's duration and choose the next step to time (telemetry/timeline.py explains how)."""
        cdef int bucket, octave
        cdef uint64_t most
        ns = max(1, ns)
        self.add(env_id, 0, 1e-9 * ns, stepper.weight)
        octave = 63 - leading_zeros(<uint64_t>ns)
        bucket = 4 * octave + <int>((<uint64_t>ns << 2 >> octave) & 3)
        self.histogram[env_id - self.first_env, min(bucket, NUM_BUCKETS - 1)] += stepper.weight
        self.is_slow = ns >= SLOW_NS
        if ns >= HUNDRED_COSTS_NS:
            stepper.weight = 1
            return 0
        most = 2 * min(<uint64_t>MOST_LEFT_OUT, <uint64_t>(HUNDRED_COSTS_NS // ns))
        stepper.random_state = stepper.random_state * 1664525 + 1013904223
        stepper.left_out = (stepper.random_state >> 8) % <uint32_t>(most + 1)
        stepper.weight = stepper.left_out + 1
        return 0
