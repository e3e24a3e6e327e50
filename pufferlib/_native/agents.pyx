"""Steps environments of several agents: PettingZoo's parallel ones and PufferEnvs.

Each class is the fast twin of a RowEnv, which is right: what it finds unusual (agents that come, or end one by one; an
observation that its packer does not take; what is missing or unknown) it leaves to the twin, with nothing changed.
"""

cimport cython
from cpython.dict cimport PyDict_Contains, PyDict_GetItemWithError, PyDict_Update
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from pufferlib._native.arrays cimport (
    puf_data, puf_descr, puf_dim, puf_is_array, puf_is_plain, puf_is_writeable, puf_ndim
)
from pufferlib._native.infos cimport is_empty, owned
from pufferlib._native.pack cimport Packer, Unpacker, read_flag, read_reward

from collections import defaultdict
from time import perf_counter

import numpy

__all__ = ["NativeAgents", "ParallelAgents"]

cdef object NDARRAY = numpy.ndarray
cdef object INT8 = numpy.dtype(numpy.int8)
cdef object INT64 = numpy.dtype(numpy.int64)
cdef object FLOAT32 = numpy.dtype(numpy.float32)
cdef object FLOAT64 = numpy.dtype(numpy.float64)
cdef object BOOL = numpy.dtype(numpy.bool_)
cdef object CLOCK = perf_counter
cdef object DEFAULTDICT = defaultdict
cdef object COMMON = frozenset(("common", "__common__"))  # as in emulation/by_agent.py
cdef str ACTION_MASK = "action_mask"
cdef str OBSERVATION = "observation"
cdef str STATE = "state"


cdef class Agents:
    """Steps one environment of several agents, as long as nothing out of the ordinary happens.

    row_env: the RowEnv of which this is the fast twin. env: the raw environment. own: as in emulation/infos.py.
    """

    def __init__(self, row_env, env_id, own, env):
        self.row_env, self.env_id, self.own, self.env = row_env, env_id, own, env
        self.num = row_env.num_agents

    cdef int hold(self) except -1:
        self.row_env.totals = (self.total_reward, self.length, self.start_s)
        return 0

    cdef int resume(self) except -1:
        self.total_reward, self.length, self.start_s = self.row_env.totals
        return 0

    cdef bint can_reset(self) except? True:
        return False

    cdef bint can_step(self) except? True:
        return False

    cdef object step(self):
        raise NotImplementedError

    cdef object reset(self):
        raise NotImplementedError

    cdef Outcome take(self, object result, Rows *rows, bint ends) except *:
        return ODD

    cdef Outcome take_reset(self, object result, Rows *rows) except *:
        return ODD

    cdef int add_end(self, dict told, double total_reward) except -1:
        """Add the statistics of the environment's episode, which is over with this step."""
        info = told.setdefault(None, {})
        info["env"] = True
        add_episode(info, total_reward, self.length + 1, self.start_s)
        return 0

    cdef list labelled(self, dict told):
        """Return infos by place as a list; None if there are none."""
        cdef list infos
        if not told:
            return None
        infos, self.places = [], list(told)
        for place, info in told.items():
            (<dict>info)["env_id"] = self.env_id
            if place is not None:
                (<dict>info)["agent_id"] = self.env_id * self.num + place
            infos.append(info)
        return infos


cdef int add_episode(dict info, double total_reward, int64_t length, double start_s) except -1:
    """Do as ``add_episode`` of emulation/infos.py."""
    if "episode" not in info:
        info["episode"] = {"r": total_reward, "l": length, "t": CLOCK() - start_s}
    return 0


cdef inline bint has_items(object told) noexcept:
    """Whether this is a dict, or one that makes what is missing, whose items can be read here."""
    return type(told) is dict or type(told) is DEFAULTDICT


cdef double sum_of(const double *values, Py_ssize_t count) noexcept nogil:
    """Add numbers in the order in which NumPy adds those of an array."""
    cdef double[8] sums
    cdef double total = 0
    cdef Py_ssize_t i, j
    cdef Py_ssize_t half
    if count < 8:
        for i in range(count):
            total += values[i]
        return total
    if count > 128:
        half = count // 2
        half -= half % 8
        return sum_of(values, half) + sum_of(values + half, count - half)
    memcpy(sums, values, sizeof(sums))
    for i in range(8, count - count % 8, 8):
        for j in range(8):
            sums[j] += values[i + j]
    total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))
    for i in range(count - count % 8, count):
        total += values[i]
    return total


cdef inline void put_rewards(Rows *rows, const double *rewards, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    if rows.wide_rewards:
        memcpy(rows.rewards, rewards, count * sizeof(double))
    else:
        for i in range(count):
            (<float *>rows.rewards)[i] = <float>rewards[i]


cdef inline void put_first_outcome(Rows *rows, Py_ssize_t count) noexcept nogil:
    """Write the outcome of a reset."""
    memset(rows.rewards, 0, count * (sizeof(double) if rows.wide_rewards else sizeof(float)))
    memset(rows.terminations, 0, count)
    memset(rows.truncations, 0, count)
    memset(rows.masks, 0, count)


# --------------------------------------------------------------------------------------- parallel environments

@cython.final
cdef class Seat:
    """An agent and its place, as ``rows.Seat`` has it."""

    cdef object name, place_object, read, allowed, action_space
    cdef dict leaves
    cdef Py_ssize_t place, num_clipped, choices
    cdef Packer packer
    cdef Unpacker unpacker
    cdef bint clips, masked, takes_in
    cdef bint is_plain  # observations are packed as they come
    cdef int64_t *row_start
    cdef int64_t *last
    cdef int64_t *shift
    cdef object kept
    cdef char *chosen

    def __init__(
        self, name, place, packer, unpacker, read, clip, masked, allowed, choices, action_space, takes_in, leaves
    ):
        self.name, self.place, self.place_object, self.read = name, place, place, read
        self.packer, self.unpacker, self.clips = packer, unpacker, clip is not None
        self.masked, self.allowed, self.choices, self.action_space = masked, allowed, choices, action_space
        self.takes_in, self.leaves = takes_in, leaves
        self.is_plain = not masked and leaves is None
        if self.clips:
            self.num_clipped = len(clip.last)
            self.kept = [numpy.array(part, numpy.int64) for part in (*clip, clip.last)]
            self.row_start, self.last = <int64_t *>puf_data(self.kept[0]), <int64_t *>puf_data(self.kept[1])
            self.shift, self.chosen = <int64_t *>puf_data(self.kept[2]), puf_data(self.kept[3])

    cdef object action(self, const char *discrete, const char *box):
        """Return the action in a row of actions, of which ``unpacker`` reads at least a part."""
        cdef Py_ssize_t i
        cdef const int64_t *values = <const int64_t *>discrete
        if self.clips:
            for i in range(self.num_clipped):
                (<int64_t *>self.chosen)[i] = min(max(values[i] - self.row_start[i], 0), self.last[i]) + self.shift[i]
            discrete = self.chosen if self.num_clipped else NULL
        return self.unpacker.unpack_at(discrete, box)


@cython.final
cdef class ParallelAgents(Agents):
    """The fast twin of PettingZooRows.

    actions: the environment's rows of actions, an array a component. pack_mask: as in emulation/action_masks.py. The
    others: as ``rows.FastAgents`` has them.
    """

    cdef list seats, listed
    cdef dict last
    cdef bint opens
    cdef object changes  # which seating it is
    cdef object beside, state, pack_mask
    cdef bint resets, has_state, mask_in_info
    cdef tuple actions
    cdef char *discrete
    cdef char *box
    cdef Py_ssize_t discrete_nbytes, box_nbytes  # of a row
    cdef Py_ssize_t row_nbytes  # of an observation
    cdef double *returns
    cdef double *starts_s
    cdef int64_t *lengths
    cdef double *rewards  # of this step
    cdef char *terminations
    cdef char *truncations
    cdef char *seated  # who acts in this step
    cdef object kept

    def __init__(
        self, row_env, env_id, actions, own, pack_mask, env, returns, lengths, starts_s, resets, beside, has_state,
        mask_in_info
    ):
        Agents.__init__(self, row_env, env_id, own, env)
        self.pack_mask, self.resets, self.mask_in_info = pack_mask, resets, mask_in_info
        self.beside, self.has_state = beside, has_state
        self.actions = tuple(actions)
        for component in actions:
            if component.dtype == INT64:
                self.discrete, self.discrete_nbytes = puf_data(component), component.nbytes // self.num
            else:
                self.box, self.box_nbytes = puf_data(component), component.nbytes // self.num
        space = row_env.observation_space
        self.row_nbytes = numpy.dtype(space.dtype).itemsize * numpy.prod(space.shape, dtype=int)
        rewards, flags = numpy.zeros(self.num), numpy.zeros((3, self.num), bool)
        self.kept = (returns, lengths, starts_s, rewards, flags)
        self.returns, self.starts_s = <double *>puf_data(returns), <double *>puf_data(starts_s)
        self.lengths, self.rewards = <int64_t *>puf_data(lengths), <double *>puf_data(rewards)
        self.terminations = puf_data(flags)
        self.truncations, self.seated = self.terminations + self.num, self.terminations + 2 * self.num
        self.seats, self.listed, self.last = [], [], {}

    cdef int resume(self) except -1:
        cdef Seat seat
        Agents.resume(self)
        changes = self.row_env.changes
        if changes == self.changes:
            return 0
        seats, self.listed, self.last, self.opens = self.row_env.seating()
        self.seats = [Seat(*each) for each in seats]
        memset(self.rewards, 0, self.num * sizeof(double))
        memset(self.terminations, 0, 3 * self.num)
        for seat in self.seats:
            self.seated[seat.place] = True
        self.changes = changes
        return 0

    cdef bint can_reset(self) except? True:
        # Then the episode was over here, with the agents that it began with, who have been settled: see ``resume``.
        return self.resets and self.row_env.changes == self.changes

    cdef bint can_step(self) except? True:
        return len(self.seats) > 0

    cdef object reset(self):
        return self.env.reset()

    cdef object step(self):
        cdef Seat seat
        cdef dict chosen = {}
        for seat in self.seats:
            chosen[seat.name] = self.action(seat)
        return self.env.step(chosen)  # looked up, as its plain twin does: some replace it

    cdef object action(self, Seat seat):
        if seat.unpacker is not None:
            return seat.action(
                NULL if self.discrete == NULL else self.discrete + seat.place * self.discrete_nbytes,
                NULL if self.box == NULL else self.box + seat.place * self.box_nbytes,
            )
        if len(self.actions) == 1:
            return seat.read(self.actions[0][seat.place])
        return seat.read((self.actions[0][seat.place], self.actions[1][seat.place]))

    cdef Outcome take(self, object result, Rows *rows, bint ends) except *:
        cdef Outcome outcome
        self.state = None
        outcome = self.take_dicts(result, rows, ends)
        if outcome == ODD and self.state is not None:
            self.beside.hold(self.state)
        return outcome

    cdef Outcome take_dicts(self, object result, Rows *rows, bint ends) except *:
        cdef object observations, rewards, terminations, truncations, infos
        cdef Seat seat
        cdef Py_ssize_t place
        cdef Py_ssize_t num_ended
        cdef dict told
        cdef double total
        if type(result) is list:
            result = tuple(result)
        if type(result) is not tuple or PyTuple_GET_SIZE(result) != 5:
            return ODD
        observations, rewards, terminations, truncations, infos = <tuple>result
        if not (
            type(observations) is dict and has_items(rewards) and has_items(terminations)
            and has_items(truncations) and (infos is None or type(infos) is dict)
        ):
            return ODD
        if not self.look():
            return ODD
        num_ended = self.read(rewards, terminations, truncations)
        if num_ended < 0 or not self.are_known(rewards, terminations, truncations):
            return ODD
        if num_ended == 0:
            if not self.is_listed(self.env.agents, False):
                return ODD
        elif not (num_ended == len(self.seats) and ends and self.opens and self.is_listed(self.env.agents, True)):
            return ODD
        told = self.told(infos)
        if told is None or not self.write(observations, infos, rows.observations):
            return ODD
        # Nothing can be unusual any more.
        total = self.total_reward + sum_of(self.rewards, self.num)
        if num_ended:
            for seat in self.seats:
                place = seat.place
                add_episode(
                    told.setdefault(seat.place_object, {}), self.returns[place] + self.rewards[place],
                    self.lengths[place] + 1, self.starts_s[place],
                )
            self.add_end(told, total)
        self.infos = self.labelled(told)
        self.total_reward = total
        self.length += 1
        for place in range(self.num):
            self.returns[place] += self.rewards[place]
            self.lengths[place] += self.seated[place]
        put_rewards(rows, self.rewards, self.num)
        memcpy(rows.terminations, self.terminations, self.num)
        memcpy(rows.truncations, self.truncations, self.num)
        memcpy(rows.masks, self.seated, self.num)
        return IS_OVER if num_ended else GOES_ON

    cdef Outcome take_reset(self, object result, Rows *rows) except *:
        cdef Outcome outcome
        self.state = None
        outcome = self.take_first(result, rows)
        if outcome == ODD and self.state is not None:
            self.beside.hold(self.state)
        return outcome

    cdef Outcome take_first(self, object result, Rows *rows) except *:
        cdef Py_ssize_t place
        cdef dict told
        cdef object observations, infos
        if type(result) is not tuple or PyTuple_GET_SIZE(result) != 2:
            return ODD
        observations, infos = <tuple>result
        if type(observations) is not dict or not (infos is None or type(infos) is dict):
            return ODD
        if not self.look() or not self.is_listed(self.env.agents, False):
            return ODD
        told = self.told(infos)
        if told is None or not self.write(observations, infos, rows.observations):
            return ODD
        self.infos = self.labelled(told)
        self.total_reward, self.length, self.start_s = 0, 0, CLOCK()
        memset(self.returns, 0, self.num * sizeof(double))
        memset(self.lengths, 0, self.num * sizeof(int64_t))
        for place in range(self.num):
            self.starts_s[place] = self.start_s
        put_first_outcome(rows, self.num)
        return GOES_ON

    cdef bint look(self) except? True:
        """Take the environment's state, where observations have it; return False if it has none."""
        if self.has_state:
            try:
                self.state = self.env.state()
            except NotImplementedError:
                return False
        return True

    cdef bint is_listed(self, object agents, bint or_empty) except? True:
        """Whether the environment's agents are the same as last time, in the same order, or there are none left."""
        cdef Py_ssize_t i
        if type(agents) is tuple:
            agents = list(agents)
        if type(agents) is not list:
            return False
        if PyList_GET_SIZE(agents) == 0 and or_empty:
            return True
        if PyList_GET_SIZE(agents) != PyList_GET_SIZE(self.listed):
            return False
        for i in range(PyList_GET_SIZE(self.listed)):
            if PyList_GET_ITEM(agents, i) != PyList_GET_ITEM(self.listed, i):
                return agents == self.listed
        return True

    cdef Py_ssize_t read(self, object rewards, object terminations, object truncations) except? -1:
        """Read the outcome of each agent; return how many ended, -1 if something is unusual."""
        cdef Seat seat
        cdef bint terminated, truncated
        cdef PyObject *found
        cdef Py_ssize_t num_ended = 0
        for seat in self.seats:
            found = PyDict_GetItemWithError(rewards, seat.name)
            if found == NULL or not read_reward(<object>found, &self.rewards[seat.place]):
                return -1
            found = PyDict_GetItemWithError(terminations, seat.name)
            if found == NULL or not read_flag(<object>found, &terminated):
                return -1
            found = PyDict_GetItemWithError(truncations, seat.name)
            if found == NULL or not read_flag(<object>found, &truncated):
                return -1
            self.terminations[seat.place], self.truncations[seat.place] = terminated, truncated
            num_ended += terminated or truncated
        return num_ended

    cdef bint are_known(self, object rewards, object terminations, object truncations) except? True:
        """Whether these have no names but of agents that live or have lived; those that live have been found."""
        cdef object told
        for told in (rewards, terminations, truncations):
            if len(told) != PyList_GET_SIZE(self.seats):
                for name in told:
                    if not PyDict_Contains(self.last, name):
                        return False
        return True

    cdef bint write(self, dict observations, object infos, char *rows) except? True:
        """Write the observations of all agents, and zeros in the rows of others; return False if one is unusual."""
        cdef Seat seat
        cdef PyObject *found
        cdef object observation
        cdef char *row
        cdef Py_ssize_t place
        for seat in self.seats:
            found = PyDict_GetItemWithError(observations, seat.name)
            if found == NULL or <object>found is None:
                return False
            observation = <object>found
            if not seat.is_plain:
                observation = self.extended(seat, observation, infos)
                if observation is None:
                    return False
            row = rows + seat.place * self.row_nbytes
            if not seat.packer.pack_at(observation, row):
                return False
            if seat.packer.nbytes < self.row_nbytes:
                memset(row + seat.packer.nbytes, 0, self.row_nbytes - seat.packer.nbytes)
        if PyList_GET_SIZE(self.seats) < self.num:
            for place in range(self.num):
                if not self.seated[place]:
                    memset(rows + place * self.row_nbytes, 0, self.row_nbytes)
        return True

    cdef dict extended(self, Seat seat, object observation, object infos):
        """Return an observation with the leaves beside it, as ``Agent.observed`` does; None if it is unusual."""
        cdef dict sample, whole
        if seat.masked:
            mask = self.mask(seat, infos)
            if mask is None:
                return None
            sample = {OBSERVATION: observation, ACTION_MASK: mask}
        elif not seat.takes_in:
            sample = {OBSERVATION: observation}
        elif type(observation) is dict:
            sample = observation
        else:
            return None
        if seat.leaves is None:
            return sample
        whole = {}
        if self.has_state:
            whole[STATE] = self.state
        PyDict_Update(whole, seat.leaves)
        PyDict_Update(whole, sample)
        return whole

    cdef object mask(self, Seat seat, object infos):
        """Return the action mask in an agent's info; None if it is unusual."""
        cdef PyObject *found = NULL
        if infos is not None:
            found = PyDict_GetItemWithError(infos, seat.name)
        if found == NULL or <object>found is None:
            return seat.allowed
        if type(<object>found) is not dict:
            return None
        found = PyDict_GetItemWithError(<object>found, ACTION_MASK)
        if found == NULL or <object>found is None:
            return seat.allowed
        mask = <object>found
        try:
            if seat.choices and puf_is_array(mask, NDARRAY) and puf_ndim(mask) == 1 and puf_dim(mask, 0) == seat.choices:
                return mask if puf_descr(mask) == <PyObject *>INT8 else mask.astype(INT8)
            return self.pack_mask(seat.action_space, mask)
        except Exception:  # its twin says what is wrong
            return None

    cdef dict told(self, object infos):
        """Return the infos that tell something by place, as ``PettingZooRows._told`` does; None if one is unusual."""
        cdef dict told = {}
        cdef dict others = None
        cdef Py_ssize_t index = 0
        cdef PyObject *found
        cdef object place
        if infos is None:
            return told
        for name, info in (<dict>infos).items():
            if index < PyList_GET_SIZE(self.seats) and (<Seat>PyList_GET_ITEM(self.seats, index)).name is name:
                place = (<Seat>PyList_GET_ITEM(self.seats, index)).place_object
            else:
                found = PyDict_GetItemWithError(self.last, name)
                place = None if found == NULL else <object>found
            index += 1
            if place is None:
                if name not in COMMON and not isinstance(info, (str, int, float)):
                    return None  # its twin knows whose it is
                if not is_empty(info):
                    others = {} if others is None else others
                    others[name] = self.own(info)
            elif not is_empty(info):
                if type(info) is not dict:
                    return None
                if self.mask_in_info and ACTION_MASK in <dict>info:
                    if len(<dict>info) == 1:
                        continue
                    info = {key: value for key, value in (<dict>info).items() if key != ACTION_MASK}
                told[place] = owned(info, self.own)
        if others is not None:
            told[None] = others
        return told


# --------------------------------------------------------------------------------------------------- PufferEnvs

cdef enum:
    MOST_DIMENSIONS = 8


@cython.final
cdef class NativeAgents(Agents):
    """The fast twin of NativeRows. actions: as ParallelAgents; the others: as ``rows.FastRows`` has them."""

    cdef object actions
    cdef object observations, rewards, terminations, truncations, alive  # the environment's, in this step
    cdef bint settled  # what is checked once has been checked
    cdef bint wide  # rewards are float64
    cdef object dtype, common_dtype  # of observations: the space's, and NumPy's own that is equal to it
    cdef int ndim
    cdef Py_ssize_t[MOST_DIMENSIONS] shape
    cdef Py_ssize_t row_nbytes
    cdef double *returns
    cdef double *starts_s
    cdef int64_t *births
    cdef char *before  # who acts in this step
    cdef object before_array, kept
    cdef double *values  # room for as many numbers as there are places

    def __init__(self, row_env, env_id, actions, own, env, returns, births, starts_s):
        cdef int axis
        Agents.__init__(self, row_env, env_id, own, env)
        (self.actions,) = actions
        space = row_env.observation_space
        self.dtype = numpy.dtype(space.dtype)
        self.common_dtype = numpy.dtype(self.dtype.str)
        self.ndim = len(space.shape)
        for axis in range(min(self.ndim, MOST_DIMENSIONS)):
            self.shape[axis] = space.shape[axis]
        self.row_nbytes = self.dtype.itemsize * numpy.prod(space.shape, dtype=int)
        self.before_array, values = numpy.zeros(self.num, bool), numpy.zeros(self.num)
        self.kept = (returns, births, starts_s, values)
        self.before, self.values = puf_data(self.before_array), <double *>puf_data(values)
        self.returns, self.starts_s = <double *>puf_data(returns), <double *>puf_data(starts_s)
        self.births = <int64_t *>puf_data(births)

    cdef int hold(self) except -1:
        Agents.hold(self)
        self.row_env.before = None if all_true(self.before, self.num) else self.before_array.copy()
        return 0

    cdef bint can_reset(self) except? True:
        if not self.settled:
            self.settled = self.row_env.settled
        return self.settled and self.can_step()

    cdef bint can_step(self) except? True:
        """Look at the environment's buffers; return whether they are as they should be."""
        env = self.env
        self.rewards, self.terminations, self.truncations = env.rewards, env.terminations, env.truncations
        self.alive = env.alive
        return self.ndim <= MOST_DIMENSIONS and self.are_buffers()

    cdef bint are_buffers(self):
        self.wide = is_batch(self.rewards, FLOAT64, self.num)
        return (
            (self.wide or is_batch(self.rewards, FLOAT32, self.num)) and is_batch(self.terminations, BOOL, self.num)
            and is_batch(self.truncations, BOOL, self.num) and is_batch(self.alive, BOOL, self.num)
        )

    cdef void clear(self):
        memset(puf_data(self.rewards), 0, self.num * (sizeof(double) if self.wide else sizeof(float)))
        memset(puf_data(self.terminations), 0, self.num)
        memset(puf_data(self.truncations), 0, self.num)

    cdef object reset(self):
        self.clear()
        memset(puf_data(self.alive), 1, self.num)
        return self.env.reset(seed=None, options=None)

    cdef object step(self):
        memcpy(self.before, puf_data(self.alive), self.num)
        self.clear()
        return self.env.step(self.actions)  # looked up, as its plain twin does: some replace it

    cdef bint is_intact(self) except? True:
        """Whether the environment has kept its buffers, and its observations are as its space has them."""
        cdef object observations = self.env.observations
        cdef bint wide = self.wide
        cdef int axis
        if not (
            self.env.rewards is self.rewards and self.env.terminations is self.terminations
            and self.env.truncations is self.truncations and self.env.alive is self.alive
            and self.are_buffers()  # the same arrays may have been resized in place
            and wide == self.wide and puf_is_array(observations, NDARRAY)
        ):
            return False
        self.observations = observations
        if puf_descr(observations) != <PyObject *>self.common_dtype and puf_descr(observations) != <PyObject *>self.dtype:
            return False
        if puf_ndim(observations) != self.ndim + 1 or not puf_is_plain(observations):
            return False
        if puf_dim(observations, 0) != self.num:
            return False
        for axis in range(self.ndim):
            if puf_dim(observations, axis + 1) != self.shape[axis]:
                return False
        return True

    cdef dict told(self, object infos):
        """Return the infos that tell something by place, as ``told_apart`` does; None if they are unusual."""
        cdef dict told = {}
        cdef Py_ssize_t place
        if infos is None:
            return told
        if type(infos) is dict:
            if infos:
                told[None] = owned(infos, self.own)
            return told
        if type(infos) is tuple:
            infos = list(infos)
        if type(infos) is not list:
            return None
        if PyList_GET_SIZE(infos) == 0:
            return told
        if PyList_GET_SIZE(infos) != self.num:
            return None
        for place in range(self.num):
            info = (<list>infos)[place]
            if not is_empty(info):
                if type(info) is not dict:
                    return None
                told[place] = owned(info, self.own)
        return told

    cdef dict told_intact(self, object infos):
        """Return what ``told`` does, None also where the environment has not kept its buffers."""
        cdef dict told = self.told(infos) if self.is_intact() else None
        if told and not self.is_intact():  # to copy infos may run other code
            return None
        return told

    cdef double reward(self, Py_ssize_t place) noexcept:
        if self.wide:
            return (<double *>puf_data(self.rewards))[place]
        return (<float *>puf_data(self.rewards))[place]

    cdef Outcome take(self, object result, Rows *rows, bint ends) except *:
        cdef dict told
        cdef Py_ssize_t place
        cdef unsigned char unusual = 0
        cdef char *terminations
        cdef char *truncations
        cdef char *alive
        told = self.told_intact(result)
        if told is None:
            return ODD
        terminations, truncations = puf_data(self.terminations), puf_data(self.truncations)
        alive = puf_data(self.alive)
        for place in range(self.num):
            unusual |= (terminations[place] | truncations[place]) != 0
            unusual |= (alive[place] == 0) | (self.before[place] == 0)
        if unusual:
            return self.come_and_go(told, rows, ends)
        for place in range(self.num):
            self.values[place] = self.reward(place)
            self.returns[place] += self.values[place]
        self.length += 1
        self.infos = self.labelled(told)
        memcpy(rows.observations, puf_data(self.observations), self.num * self.row_nbytes)
        put_rewards(rows, self.values, self.num)
        memset(rows.terminations, 0, self.num)
        memset(rows.truncations, 0, self.num)
        memset(rows.masks, 1, self.num)
        return GOES_ON

    cdef Outcome come_and_go(self, dict told, Rows *rows, bint ends) except *:
        """Do as ``NativeRows._come_and_go``."""
        cdef char *terminations = puf_data(self.terminations)
        cdef char *truncations = puf_data(self.truncations)
        cdef char *alive = puf_data(self.alive)
        cdef Py_ssize_t place
        cdef Py_ssize_t num_spawned = 0
        cdef bint acted, terminated, truncated, lives
        cdef bint any_acted = False, any_lives = False
        for place in range(self.num):
            acted = self.before[place] != 0
            lives = alive[place] != 0 and terminations[place] == 0 and truncations[place] == 0
            any_acted |= acted
            any_lives |= lives
        if not any_lives and not ends:
            return ODD
        memcpy(rows.observations, puf_data(self.observations), self.num * self.row_nbytes)
        for place in range(self.num):
            acted = self.before[place] != 0
            terminated, truncated = acted and terminations[place] != 0, acted and truncations[place] != 0
            lives = alive[place] != 0 and terminations[place] == 0 and truncations[place] == 0
            alive[place] = lives
            self.values[place] = self.reward(place) if acted else 0.0
            self.returns[place] += self.values[place]
            rows.terminations[place] = terminated
            rows.truncations[place] = truncated or (acted and not lives and not terminated)  # gone without a flag
            rows.masks[place] = acted
            if not acted and not lives:
                memset(rows.observations + place * self.row_nbytes, 0, self.row_nbytes)
            if acted and not lives:
                add_episode(
                    told.setdefault(place, {}), self.returns[place], self.length + 1 - self.births[place],
                    self.starts_s[place],
                )
        put_rewards(rows, self.values, self.num)
        if not any_lives and any_acted:
            self.add_end(told, self.total_reward + sum_of(self.returns, self.num))
        self.length += 1
        for place in range(self.num):
            if alive[place] and not self.before[place]:
                self.values[num_spawned] = self.returns[place]
                num_spawned += 1
                self.returns[place], self.births[place], self.starts_s[place] = 0.0, self.length, CLOCK()
        if num_spawned:
            self.total_reward += sum_of(self.values, num_spawned)
        self.infos = self.labelled(told)
        return GOES_ON if any_lives else IS_OVER

    cdef Outcome take_reset(self, object result, Rows *rows) except *:
        cdef dict told
        cdef Py_ssize_t place
        cdef char *alive
        told = self.told_intact(result)
        if told is None:
            return ODD
        self.infos = self.labelled(told)
        self.total_reward, self.length, self.start_s = 0, 0, CLOCK()
        alive = puf_data(self.alive)
        memcpy(rows.observations, puf_data(self.observations), self.num * self.row_nbytes)
        for place in range(self.num):
            self.returns[place], self.births[place], self.starts_s[place] = 0.0, 0, self.start_s
            if not alive[place]:
                memset(rows.observations + place * self.row_nbytes, 0, self.row_nbytes)
        put_first_outcome(rows, self.num)
        return GOES_ON


cdef bint is_batch(object array, object dtype, Py_ssize_t size):
    """Whether this is an array of so many elements of a dtype that may be written."""
    return (
        puf_is_array(array, NDARRAY) and puf_descr(array) == <PyObject *>dtype and puf_ndim(array) == 1
        and puf_dim(array, 0) == size and puf_is_plain(array) and puf_is_writeable(array)
    )


cdef bint all_true(const char *flags, Py_ssize_t count) noexcept:
    cdef Py_ssize_t i
    for i in range(count):
        if not flags[i]:
            return False
    return True
