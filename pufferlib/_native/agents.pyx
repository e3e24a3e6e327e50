"""Fast steps for multi-agent environments: PettingZoo's parallel environments and PufferEnvs.

Each class does the work of a RowEnv, which defines the behaviour. It leaves anything unusual (an agent that the RowEnv
has not checked, an observation that the packer refuses, missing or unknown names) to the RowEnv, changing nothing.
"""

cimport cython
from cpython.dict cimport PyDict_Contains, PyDict_Copy, PyDict_GetItemWithError, PyDict_Update
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from pufferlib._native.arrays cimport (
    puf_data, puf_descr, puf_dim, puf_is_array, puf_is_plain, puf_is_writeable, puf_ndim
)
from pufferlib._native.infos cimport copy_info, is_empty
from pufferlib._native.pack cimport MaskPacker, Packer, Unpacker, read_flag, read_reward

from collections import defaultdict
from time import perf_counter

import numpy

__all__ = ["NativeAgents", "ParallelAgents"]

cdef object NDARRAY = numpy.ndarray
cdef object INT64 = numpy.dtype(numpy.int64)
cdef object FLOAT32 = numpy.dtype(numpy.float32)
cdef object FLOAT64 = numpy.dtype(numpy.float64)
cdef object BOOL = numpy.dtype(numpy.bool_)
cdef object CLOCK = perf_counter
cdef object DEFAULTDICT = defaultdict
cdef object EMPTY = numpy.empty
cdef object VACANT = object()
cdef object COMMON = frozenset(("common", "__common__"))  # as in emulation/by_agent.py
cdef str ACTION_MASK = "action_mask"
cdef str OBSERVATION = "observation"
cdef str STATE = "state"


cdef class Agents:
    """A fast stepper of one multi-agent environment, for steps in which nothing unusual happens.

    row_env: the RowEnv that finishes unusual steps. env: the raw environment. copy_value: the function of
    emulation/infos.py.
    """

    def __init__(self, row_env, env_id, copy_value, env):
        self.row_env, self.env_id, self.copy_value, self.env = row_env, env_id, copy_value, env
        self.num = row_env.num_agents
        space = row_env.observation_space
        self.shape, self.dtype = (self.num, *space.shape), numpy.dtype(space.dtype)

    cdef int export_state(self) except -1:
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

    cdef Outcome take(self, object result, Rows *rows) except *:
        return UNUSUAL

    cdef Outcome take_reset(self, object result, Rows *rows) except *:
        return UNUSUAL

    cdef int add_end(self, dict infos_by_agent, double total_reward) except -1:
        """Add the statistics of the environment's episode, which ends with this step, to its infos."""
        info = infos_by_agent.setdefault(None, {})
        info["env"] = True
        add_episode(info, total_reward, self.length, self.start_s)
        return 0

    cdef list label_infos(self, dict infos_by_agent):
        """Return a list of the infos with their ids added, or None if there are no infos."""
        cdef list infos
        if not infos_by_agent:
            return None
        infos, self.agent_indices = [], list(infos_by_agent)
        for agent_index, info in infos_by_agent.items():
            (<dict>info)["env_id"] = self.env_id
            if agent_index is not None:
                (<dict>info)["agent_id"] = self.env_id * self.num + agent_index
            infos.append(info)
        return infos

    cdef object copy_observations(self, Rows *rows):
        observations = EMPTY(self.shape, self.dtype)
        memcpy(puf_data(observations), rows.observations, observations.nbytes)
        return observations

    cdef dict with_finals(self, dict firsts, dict lasts, Rows *rows, object observations):
        """Do the work of ``_with_finals`` in worker/worker.py, in the passed dicts. lasts: ended agents' last infos."""
        cdef dict info, last
        for agent_index, last in lasts.items():
            info = firsts.setdefault(agent_index, {})
            if "episode" in last:
                info["episode"] = last["episode"]
            if "env" in last:
                info["env"] = last["env"]
            if agent_index is not None and (
                rows.terminations[<Py_ssize_t>agent_index] or rows.truncations[<Py_ssize_t>agent_index]
            ):
                final = observations[agent_index]
                info["final_obs"] = final.copy() if final.ndim else final
            info["final_info"] = last
        return firsts


cdef int add_episode(dict info, double total_reward, int64_t length, double start_s) except -1:
    """Do the work of ``add_episode`` in emulation/infos.py."""
    if "episode" not in info:
        info["episode"] = {"r": total_reward, "l": length, "t": CLOCK() - start_s}
    return 0


cdef inline bint has_items(object mapping) noexcept:
    """Return whether a mapping is exactly a dict or defaultdict, whose items can be read here."""
    return type(mapping) is dict or type(mapping) is DEFAULTDICT


cdef bint is_unflagged(object flags, object name) except? True:
    """Return whether an agent's flag is missing or False."""
    cdef bint flag
    cdef PyObject *item = PyDict_GetItemWithError(flags, name)
    return item == NULL or (read_flag(<object>item, &flag) and not flag)


cdef double sum_of(const double *values, Py_ssize_t count) noexcept nogil:
    """Sum numbers in the order that NumPy uses."""
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


cdef void put_first_outcome(Rows *rows, Py_ssize_t count) noexcept nogil:
    memset(rows.rewards, 0, count * (sizeof(double) if rows.wide_rewards else sizeof(float)))
    memset(rows.terminations, 0, count)
    memset(rows.truncations, 0, count)
    memset(rows.masks, 0, count)


# --------------------------------------------------------------------------------------- parallel environments

cdef enum:
    MOST_KINDS = 8  # of agents whose spaces are remembered, if names are new in each episode


@cython.final
cdef class Seat:
    """An agent and its row: the compiled counterpart of ``rows.Seat``."""

    cdef object name, index_object, read
    cdef object observation_space, action_space  # the environment's own objects
    cdef dict leaves
    cdef Py_ssize_t agent_index, num_clipped
    cdef Packer packer
    cdef Unpacker unpacker
    cdef MaskPacker masks
    cdef bint clips, takes_in
    cdef bint is_plain  # observations are packed without masks and leaves
    cdef int64_t *row_start
    cdef int64_t *last
    cdef int64_t *shift
    cdef object references
    cdef char *clipped

    def __init__(self, name, agent_index, packer, unpacker, read, clip, masks, takes_in, leaves, spaces):
        self.name, self.agent_index, self.index_object, self.read = name, agent_index, agent_index, read
        self.observation_space, self.action_space = spaces
        self.packer, self.unpacker, self.clips = packer, unpacker, clip is not None
        self.masks = None if masks is None else MaskPacker(*masks)
        self.takes_in, self.leaves = takes_in, leaves
        self.is_plain = masks is None and leaves is None
        if self.clips:
            self.num_clipped = len(clip.last)
            self.references = [numpy.array(part, numpy.int64) for part in (*clip, clip.last)]
            self.row_start, self.last = <int64_t *>puf_data(self.references[0]), <int64_t *>puf_data(self.references[1])
            self.shift, self.clipped = <int64_t *>puf_data(self.references[2]), puf_data(self.references[3])

    cdef Seat reseated(self, object name, Py_ssize_t agent_index):
        """Return a seat for an agent with the same spaces at another index."""
        cdef Seat seat = Seat.__new__(Seat)
        seat.name, seat.agent_index, seat.index_object, seat.read = name, agent_index, agent_index, self.read
        seat.observation_space, seat.action_space = self.observation_space, self.action_space
        seat.packer, seat.unpacker, seat.clips = self.packer, self.unpacker, self.clips
        seat.masks, seat.takes_in, seat.leaves, seat.is_plain = self.masks, self.takes_in, self.leaves, self.is_plain
        seat.num_clipped, seat.references = self.num_clipped, self.references
        seat.row_start, seat.last = self.row_start, self.last
        seat.shift, seat.clipped = self.shift, self.clipped
        return seat

    cdef object action(self, const char *discrete, const char *box):
        """Return the action that ``unpacker`` reads from a row of actions."""
        cdef Py_ssize_t i
        cdef const int64_t *values = <const int64_t *>discrete
        if self.clips:
            for i in range(self.num_clipped):
                (<int64_t *>self.clipped)[i] = min(max(values[i] - self.row_start[i], 0), self.last[i]) + self.shift[i]
            discrete = self.clipped if self.num_clipped else NULL
        return self.unpacker.unpack_at(discrete, box)


@cython.final
cdef class ParallelAgents(Agents):
    """The fast stepper of PettingZooRows.

    actions: the environment's rows of actions, one array per component. Other arguments: see ``rows.FastAgents``.
    """

    cdef list seats, listed
    cdef dict last
    cdef set ended, lingering
    cdef object changes  # the RowEnv's count when the seats were read from it
    cdef bint is_ahead  # the seats have changed since
    cdef bint has_begun  # and an episode has started
    cdef list occupants  # the last agent of each index, or VACANT, where indices are reused
    cdef dict checked_seats  # by name: all agents that the RowEnv has checked, where they keep their spaces
    cdef list kinds  # else one seat for each pair of spaces
    cdef object extra_leaves, state
    cdef bint keeps_spaces, keeps_places, has_state, mask_in_info
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
    cdef char *seated  # by agent: whether it is alive, and so acts in this step
    cdef char *acted  # by agent: whether its action counts in a step in which agents come and go
    cdef char *is_observed  # by agent: whether its observation is written
    cdef object references

    def __init__(
        self, row_env, env_id, actions, copy_value, env, returns, lengths, starts_s, keeps_spaces, keeps_places,
        extra_leaves, has_state, mask_in_info
    ):
        Agents.__init__(self, row_env, env_id, copy_value, env)
        self.keeps_spaces, self.keeps_places = keeps_spaces, keeps_places
        self.extra_leaves, self.has_state, self.mask_in_info = extra_leaves, has_state, mask_in_info
        self.actions = tuple(actions)
        for component in actions:
            if component.dtype == INT64:
                self.discrete, self.discrete_nbytes = puf_data(component), component.nbytes // self.num
            else:
                self.box, self.box_nbytes = puf_data(component), component.nbytes // self.num
        self.row_nbytes = self.dtype.itemsize * numpy.prod(self.shape[1:], dtype=int)
        rewards, flags = numpy.zeros(self.num), numpy.zeros((5, self.num), bool)
        self.references = (returns, lengths, starts_s, rewards, flags)
        self.returns, self.starts_s = <double *>puf_data(returns), <double *>puf_data(starts_s)
        self.lengths, self.rewards = <int64_t *>puf_data(lengths), <double *>puf_data(rewards)
        self.terminations = puf_data(flags)
        self.truncations, self.seated = self.terminations + self.num, self.terminations + 2 * self.num
        self.acted, self.is_observed = self.terminations + 3 * self.num, self.terminations + 4 * self.num
        self.seats, self.listed, self.last, self.ended, self.lingering = [], [], {}, set(), set()
        self.checked_seats, self.kinds = {}, []

    cdef int export_state(self) except -1:
        cdef Seat seat
        Agents.export_state(self)
        if self.is_ahead:
            living = [seat.name for seat in self.seats]
            self.row_env.take_seating(living, self.listed, self.last, self.ended, self.lingering, self.has_begun)
            self.is_ahead = self.has_begun = False
        return 0

    cdef int resume(self) except -1:
        cdef Seat seat
        Agents.resume(self)
        changes = self.row_env.changes
        if changes == self.changes:
            return 0
        seats, self.listed, self.last, self.ended, self.lingering = self.row_env.seating()
        self.set_seats([Seat(*fields) for fields in seats])
        for seat in self.seats:
            self.remember_seat(seat)
        if not self.keeps_places:
            self.record_occupants()
        self.changes, self.is_ahead, self.has_begun = changes, False, False
        return 0

    cdef int set_seats(self, list seats) except -1:
        """Set the agents that act in the next step."""
        cdef Seat seat
        self.seats = seats
        memset(self.rewards, 0, self.num * sizeof(double))
        memset(self.terminations, 0, 4 * self.num)  # and the truncations, seated and acted after them
        for seat in seats:
            self.seated[seat.agent_index] = True
        return 0

    cdef int remember_seat(self, Seat seat) except -1:
        """Remember an agent that the RowEnv has checked, or its pair of spaces."""
        cdef Seat kind
        if self.keeps_spaces:
            self.checked_seats[seat.name] = seat
            return 0
        for kind in self.kinds:
            if kind.observation_space is seat.observation_space and kind.action_space is seat.action_space:
                self.kinds.remove(kind)  # its packer may be an older one
                break
        self.kinds = [seat, *self.kinds[:MOST_KINDS - 1]]
        return 0

    cdef int record_occupants(self) except -1:
        """Record the last agent of each index."""
        self.occupants = [VACANT] * self.num
        for name, agent_index in self.last.items():
            self.occupants[agent_index] = name
        return 0

    cdef Seat seat_of(self, object name, Py_ssize_t free_index):
        """Return the seat of a new agent, at free_index or its fixed index; None if the RowEnv must seat it."""
        cdef PyObject *item
        cdef Seat seat
        if self.keeps_spaces:
            item = PyDict_GetItemWithError(self.checked_seats, name)
            if item == NULL:
                return None
            seat = <Seat>item
            if not (self.keeps_places or seat.agent_index == free_index):
                seat = self.checked_seats[name] = seat.reseated(name, free_index)
            return seat
        try:
            observation_space, action_space = self.env.observation_space(name), self.env.action_space(name)
        except Exception:  # the RowEnv asks again, and raises
            return None
        for seat in self.kinds:
            if seat.observation_space is observation_space and seat.action_space is action_space:
                return seat.reseated(name, free_index)
        return None

    cdef bint can_reset(self) except? True:
        return len(self.checked_seats) > 0 or len(self.kinds) > 0

    cdef bint can_step(self) except? True:
        return len(self.seats) > 0

    cdef object reset(self):
        return self.env.reset()

    cdef object step(self):
        cdef Seat seat
        cdef dict actions = {}
        for seat in self.seats:
            actions[seat.name] = self.action(seat)
        return self.env.step(actions)  # looked up, as in the RowEnv: some environments replace it

    cdef object action(self, Seat seat):
        if seat.unpacker is not None:
            return seat.action(
                NULL if self.discrete == NULL else self.discrete + seat.agent_index * self.discrete_nbytes,
                NULL if self.box == NULL else self.box + seat.agent_index * self.box_nbytes,
            )
        if len(self.actions) == 1:
            return seat.read(self.actions[0][seat.agent_index])
        return seat.read((self.actions[0][seat.agent_index], self.actions[1][seat.agent_index]))

    cdef Outcome take(self, object result, Rows *rows) except *:
        cdef Outcome outcome
        self.state = None
        outcome = self.take_dicts(result, rows)
        if outcome == UNUSUAL and self.state is not None:
            self.extra_leaves.hold(self.state)
        return outcome

    cdef Outcome take_dicts(self, object result, Rows *rows) except *:
        cdef object observations, rewards, terminations, truncations, infos
        cdef Py_ssize_t agent_index
        cdef Py_ssize_t num_ended
        cdef dict infos_by_agent
        if type(result) is list:
            result = tuple(result)
        if type(result) is not tuple or PyTuple_GET_SIZE(result) != 5:
            return UNUSUAL
        observations, rewards, terminations, truncations, infos = <tuple>result
        if not (
            type(observations) is dict and has_items(rewards) and has_items(terminations)
            and has_items(truncations) and (infos is None or type(infos) is dict)
        ):
            return UNUSUAL
        if not self.read_state():
            return UNUSUAL
        num_ended = self.read(rewards, terminations, truncations)
        agents = self.env.agents
        if num_ended != 0 or not self.is_listed(agents):
            if not (type(agents) is list or type(agents) is tuple):
                return UNUSUAL
            return self.come_and_go(
                list(agents), observations, rewards, terminations, truncations, infos, num_ended >= 0, rows
            )
        if not self.are_agents(rewards, terminations, truncations, self.last, True):
            return UNUSUAL
        infos_by_agent = self.read_infos(infos, self.seats, self.last)
        if infos_by_agent is None or not self.write(self.seats, observations, infos, rows.observations):
            return UNUSUAL
        # Nothing can be unusual any more.
        self.infos_by_agent = infos_by_agent
        self.add_outcome(rows, self.seated)
        return GOES_ON

    cdef void add_outcome(self, Rows *rows, const char *acted) noexcept:
        """Write a step's outcome and add it to the episode's totals. acted: whether each agent's action counted."""
        cdef Py_ssize_t agent_index
        self.total_reward += sum_of(self.rewards, self.num)
        self.length += 1
        for agent_index in range(self.num):
            self.returns[agent_index] += self.rewards[agent_index]
            self.lengths[agent_index] += acted[agent_index]
        put_rewards(rows, self.rewards, self.num)
        memcpy(rows.terminations, self.terminations, self.num)
        memcpy(rows.truncations, self.truncations, self.num)
        memcpy(rows.masks, acted, self.num)

    cdef Outcome come_and_go(
        self, list listed, dict observations, object rewards, object terminations, object truncations, object infos,
        bint is_read, Rows *rows
    ) except *:
        """Do the work of ``PettingZooRows.take`` if agents end, appear, or are listed in another order.

        listed: a copy of the environment's list. is_read: whether ``read`` has read all outcomes.
        """
        cdef list leaving = [], staying = [], joining = [], observed = [], names = []
        cdef set present = set(listed)
        cdef set lingering
        cdef dict infos_by_agent, living
        cdef dict last = self.last
        cdef Seat seat
        cdef Py_ssize_t agent_index
        cdef int has_ended
        cdef double now_s
        if len(present) != len(listed):
            return UNUSUAL
        for seat in self.seats:
            agent_index = seat.agent_index
            is_listed = seat.name in present
            if is_read:
                has_ended = self.terminations[agent_index] or self.truncations[agent_index]
                self.acted[agent_index] = True
            else:
                has_ended = self.read_end(seat, is_listed, observations, rewards, terminations, truncations)
                if has_ended < 0:
                    return UNUSUAL
            if not (has_ended or is_listed):
                has_ended = self.truncations[agent_index] = True  # gone without a flag
            if has_ended:
                leaving.append(seat)
                names.append(seat.name)
            else:
                staying.append(seat)
            if not has_ended or observations.get(seat.name) is not None:
                observed.append(seat)
        lingering = (self.lingering.union(names) & present) if present else set()
        if len(present) != len(staying) + len(lingering):
            last = PyDict_Copy(last)
            if not self.seat_new_agents(joining, listed, lingering, last, terminations, truncations):
                return UNUSUAL
        if not self.are_agents(rewards, terminations, truncations, last, is_read):
            return UNUSUAL
        infos_by_agent = self.read_infos(infos, self.seats, last)
        if infos_by_agent is None or not self.write(observed + joining, observations, infos, rows.observations):
            return UNUSUAL
        # Nothing can be unusual any more.
        self.infos_by_agent = infos_by_agent
        self.add_outcome(rows, self.acted)
        for seat in leaving:
            agent_index = seat.agent_index
            add_episode(
                infos_by_agent.setdefault(seat.index_object, {}), self.returns[agent_index],
                self.lengths[agent_index], self.starts_s[agent_index],
            )
        if not (staying or joining):
            self.add_end(infos_by_agent, self.total_reward)
        self.ended.update(names)
        self.listed, self.last, self.lingering = listed, last, lingering
        if joining:
            now_s = CLOCK()
            for seat in joining:
                self.returns[seat.agent_index], self.lengths[seat.agent_index] = 0, 0
                self.starts_s[seat.agent_index] = now_s
                if not self.keeps_places:
                    self.occupants[seat.agent_index] = seat.name
            living = {seat.name: seat for seat in staying + joining}
            staying = [living[name] for name in listed if name in living]
        self.set_seats(staying)
        self.is_ahead = True
        return GOES_ON if staying else IS_OVER

    cdef int read_end(
        self, Seat seat, bint is_listed, dict observations, object rewards, object terminations, object truncations
    ) except -2:
        """Read the outcome of an agent with missing entries.

        Return 1 if one of its flags marks its end, 0 if not, and -1 if something is unusual.
        """
        cdef bint terminated = False, truncated = False
        cdef Py_ssize_t agent_index = seat.agent_index
        cdef PyObject *item = PyDict_GetItemWithError(terminations, seat.name)
        if is_listed if item == NULL else not read_flag(<object>item, &terminated):
            return -1
        item = PyDict_GetItemWithError(truncations, seat.name)
        if is_listed if item == NULL else not read_flag(<object>item, &truncated):
            return -1
        self.terminations[agent_index], self.truncations[agent_index] = terminated, truncated
        self.rewards[agent_index] = 0
        item = PyDict_GetItemWithError(rewards, seat.name)
        self.acted[agent_index] = (
            item != NULL or is_listed or terminated or truncated or observations.get(seat.name) is not None
        )
        if self.acted[agent_index] and (item == NULL or not read_reward(<object>item, &self.rewards[agent_index])):
            return -1
        return terminated or truncated

    cdef bint seat_new_agents(
        self, list joining, list listed, set lingering, dict last, object terminations, object truncations
    ) except? True:
        """Append the seats of new agents to joining, and their indices to last; return False if one is unusual."""
        cdef Seat seat
        cdef Py_ssize_t free_index = 0
        for name in listed:
            if name in lingering or (PyDict_Contains(self.last, name) and name not in self.ended):
                continue
            if name in self.ended:
                return False
            if not (is_unflagged(terminations, name) and is_unflagged(truncations, name)):
                return False
            if not self.keeps_places:
                while free_index < self.num and self.seated[free_index]:
                    free_index += 1
                if free_index == self.num:
                    return False
            seat = self.seat_of(name, free_index)
            if seat is None:
                return False
            if not self.keeps_places:
                if self.occupants[free_index] is not VACANT:
                    del last[self.occupants[free_index]]
                free_index += 1
            joining.append(seat)
            last[name] = seat.index_object
        return True

    cdef Outcome take_reset(self, object result, Rows *rows) except *:
        cdef Outcome outcome
        self.state = None
        outcome = self.take_first(result, rows)
        if outcome == UNUSUAL and self.state is not None:
            self.extra_leaves.hold(self.state)
        return outcome

    cdef Outcome take_first(self, object result, Rows *rows) except *:
        cdef Py_ssize_t agent_index
        cdef dict infos_by_agent
        cdef dict last = {}
        cdef object observations, infos
        cdef list listed
        cdef list seats = []
        cdef Seat seat
        if type(result) is not tuple or PyTuple_GET_SIZE(result) != 2:
            return UNUSUAL
        observations, infos = <tuple>result
        if type(observations) is not dict or not (infos is None or type(infos) is dict):
            return UNUSUAL
        if not self.read_state():
            return UNUSUAL
        agents = self.env.agents
        if not (type(agents) is list or type(agents) is tuple) or not 0 < len(agents) <= self.num:
            return UNUSUAL
        listed = list(agents)
        for name in listed:
            seat = self.seat_of(name, PyList_GET_SIZE(seats))
            if seat is None:
                return UNUSUAL
            seats.append(seat)
            last[name] = seat.index_object
        if len(last) != len(listed):
            return UNUSUAL
        infos_by_agent = self.read_infos(infos, seats, last)
        if infos_by_agent is None or not self.write(seats, observations, infos, rows.observations):
            return UNUSUAL
        self.infos_by_agent = infos_by_agent
        self.listed, self.last, self.ended, self.lingering = listed, last, set(), set()
        self.set_seats(seats)
        if not self.keeps_places:
            self.record_occupants()
        self.is_ahead = self.has_begun = True
        self.total_reward, self.length, self.start_s = 0, 0, CLOCK()
        memset(self.returns, 0, self.num * sizeof(double))
        memset(self.lengths, 0, self.num * sizeof(int64_t))
        for agent_index in range(self.num):
            self.starts_s[agent_index] = self.start_s
        return GOES_ON

    cdef bint read_state(self) except? True:
        """Read the environment's state if observations include it; return False if it has none."""
        if self.has_state:
            try:
                self.state = self.env.state()
            except NotImplementedError:
                return False
        return True

    cdef bint is_listed(self, object agents) except? True:
        """Return whether the environment lists the same agents as before, in the same order."""
        cdef Py_ssize_t i
        if type(agents) is tuple:
            agents = list(agents)
        if type(agents) is not list:
            return False
        if PyList_GET_SIZE(agents) != PyList_GET_SIZE(self.listed):
            return False
        for i in range(PyList_GET_SIZE(self.listed)):
            if PyList_GET_ITEM(agents, i) != PyList_GET_ITEM(self.listed, i):
                return agents == self.listed
        return True

    cdef Py_ssize_t read(self, object rewards, object terminations, object truncations) except? -1:
        """Read the outcomes of all seats; return the number that ended, or -1 if something is unusual."""
        cdef Seat seat
        cdef bint terminated, truncated
        cdef PyObject *item
        cdef Py_ssize_t num_ended = 0
        for seat in self.seats:
            item = PyDict_GetItemWithError(rewards, seat.name)
            if item == NULL or not read_reward(<object>item, &self.rewards[seat.agent_index]):
                return -1
            item = PyDict_GetItemWithError(terminations, seat.name)
            if item == NULL or not read_flag(<object>item, &terminated):
                return -1
            item = PyDict_GetItemWithError(truncations, seat.name)
            if item == NULL or not read_flag(<object>item, &truncated):
                return -1
            self.terminations[seat.agent_index], self.truncations[seat.agent_index] = terminated, truncated
            num_ended += terminated or truncated
        return num_ended

    cdef bint are_agents(
        self, object rewards, object terminations, object truncations, dict last, bint all_present
    ) except? True:
        """Return whether the keys of all three dicts are this episode's agents.

        all_present: whether every acting agent is known to have an entry in each dict.
        """
        cdef object by_agent
        for by_agent in (rewards, terminations, truncations):
            if not all_present or len(by_agent) != PyList_GET_SIZE(self.seats):
                for name in by_agent:
                    if not PyDict_Contains(last, name) and name not in self.ended:
                        return False
        return True

    cdef bint write(self, list seats, dict observations, object infos, char *rows) except? True:
        """Write the observations of seats, and zeros into the other rows; return False if one is unusual."""
        cdef Seat seat
        cdef PyObject *item
        cdef object observation
        cdef char *row
        cdef Py_ssize_t agent_index
        memset(self.is_observed, 0, self.num)
        for seat in seats:
            self.is_observed[seat.agent_index] = True
            item = PyDict_GetItemWithError(observations, seat.name)
            if item == NULL or <object>item is None:
                return False
            observation = <object>item
            if not seat.is_plain:
                observation = self.extended(seat, observation, infos)
                if observation is None:
                    return False
            row = rows + seat.agent_index * self.row_nbytes
            if not seat.packer.pack_at(observation, row):
                return False
            if seat.packer.nbytes < self.row_nbytes:
                memset(row + seat.packer.nbytes, 0, self.row_nbytes - seat.packer.nbytes)
        if PyList_GET_SIZE(seats) < self.num:
            for agent_index in range(self.num):
                if not self.is_observed[agent_index]:
                    memset(rows + agent_index * self.row_nbytes, 0, self.row_nbytes)
        return True

    cdef dict extended(self, Seat seat, object observation, object infos):
        """Return an observation with its extra leaves, as ``Agent.observed`` does; None if it is unusual."""
        cdef dict sample, leaves
        if seat.masks is not None:
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
        leaves = {}
        if self.has_state:
            leaves[STATE] = self.state
        PyDict_Update(leaves, seat.leaves)
        PyDict_Update(leaves, sample)
        return leaves

    cdef object mask(self, Seat seat, object infos):
        """Return the action mask in an agent's info; None if it is unusual."""
        cdef PyObject *item = NULL
        if infos is not None:
            item = PyDict_GetItemWithError(infos, seat.name)
        if item != NULL and <object>item is not None:
            if type(<object>item) is not dict:
                return None
            item = PyDict_GetItemWithError(<object>item, ACTION_MASK)
        return seat.masks.packed(None if item == NULL else <object>item)

    cdef dict read_infos(self, object infos, list seats, dict last):
        """Return the non-empty infos by agent index, as PettingZooRows does; None if one is unusual.

        seats: the seats of this step's agents. last: agent indices by name.
        """
        cdef dict infos_by_agent = {}
        cdef dict common_infos = None
        cdef Py_ssize_t index = 0
        cdef PyObject *item
        cdef object agent_index
        if infos is None:
            return infos_by_agent
        for name, info in (<dict>infos).items():
            if index < PyList_GET_SIZE(seats) and (<Seat>PyList_GET_ITEM(seats, index)).name is name:
                agent_index = (<Seat>PyList_GET_ITEM(seats, index)).index_object
            else:
                item = PyDict_GetItemWithError(last, name)
                agent_index = None if item == NULL else <object>item
            index += 1
            if agent_index is None:
                if name not in COMMON and not isinstance(info, (str, int, float)):
                    return None  # the RowEnv decides where it belongs
                if not is_empty(info):
                    common_infos = {} if common_infos is None else common_infos
                    common_infos[name] = self.copy_value(info)
            elif not is_empty(info):
                if type(info) is not dict:
                    return None
                if self.mask_in_info and ACTION_MASK in <dict>info:
                    if len(<dict>info) == 1:
                        continue
                    info = {key: value for key, value in (<dict>info).items() if key != ACTION_MASK}
                infos_by_agent[agent_index] = copy_info(info, self.copy_value)
        if common_infos is not None:
            infos_by_agent[None] = common_infos
        return infos_by_agent


# --------------------------------------------------------------------------------------------------- PufferEnvs

cdef enum:
    MOST_DIMENSIONS = 8


@cython.final
cdef class NativeAgents(Agents):
    """The fast stepper of NativeRows. actions: see ParallelAgents. Other arguments: see ``rows.FastRows``."""

    cdef object actions
    cdef object observations, rewards, terminations, truncations, alive  # the environment's, in this step
    cdef bint is_settled  # the one-time checks were made
    cdef bint wide  # rewards are float64
    cdef object common_dtype  # of observations: NumPy's singleton equal to the space's
    cdef int ndim
    cdef Py_ssize_t[MOST_DIMENSIONS] dims
    cdef Py_ssize_t row_nbytes
    cdef double *returns
    cdef double *starts_s
    cdef int64_t *births
    cdef char *alive_before  # by agent: whether it acts in this step
    cdef object alive_before_array, references
    cdef double *values  # scratch memory, (num_agents,)

    def __init__(self, row_env, env_id, actions, copy_value, env, returns, births, starts_s):
        cdef int axis
        Agents.__init__(self, row_env, env_id, copy_value, env)
        (self.actions,) = actions
        self.common_dtype = numpy.dtype(self.dtype.str)
        self.ndim = len(self.shape) - 1
        for axis in range(min(self.ndim, MOST_DIMENSIONS)):
            self.dims[axis] = self.shape[axis + 1]
        self.row_nbytes = self.dtype.itemsize * numpy.prod(self.shape[1:], dtype=int)
        self.alive_before_array, values = numpy.zeros(self.num, bool), numpy.zeros(self.num)
        self.references = (returns, births, starts_s, values)
        self.alive_before, self.values = puf_data(self.alive_before_array), <double *>puf_data(values)
        self.returns, self.starts_s = <double *>puf_data(returns), <double *>puf_data(starts_s)
        self.births = <int64_t *>puf_data(births)

    cdef int export_state(self) except -1:
        Agents.export_state(self)
        self.row_env.before = None if all_true(self.alive_before, self.num) else self.alive_before_array.copy()
        return 0

    cdef bint can_reset(self) except? True:
        if not self.is_settled:
            self.is_settled = self.row_env.settled
        return self.is_settled and self.can_step()

    cdef bint can_step(self) except? True:
        """Read the environment's buffers; return whether they have the expected shapes and dtypes."""
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
        memcpy(self.alive_before, puf_data(self.alive), self.num)
        self.clear()
        return self.env.step(self.actions)  # looked up, as in the RowEnv: some environments replace it

    cdef bint is_intact(self) except? True:
        """Return whether the environment still has its buffers, and observations of the space's dtype and shape."""
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
        if (
            puf_descr(observations) != <PyObject *>self.common_dtype
            and puf_descr(observations) != <PyObject *>self.dtype
        ):
            return False
        if puf_ndim(observations) != self.ndim + 1 or not puf_is_plain(observations):
            return False
        if puf_dim(observations, 0) != self.num:
            return False
        for axis in range(self.ndim):
            if puf_dim(observations, axis + 1) != self.dims[axis]:
                return False
        return True

    cdef dict read_infos(self, object infos):
        """Return the non-empty infos by agent index, as NativeRows does; None if they are unusual."""
        cdef dict infos_by_agent = {}
        cdef Py_ssize_t agent_index
        if infos is None:
            return infos_by_agent
        if type(infos) is dict:
            if infos:
                infos_by_agent[None] = copy_info(infos, self.copy_value)
            return infos_by_agent
        if type(infos) is tuple:
            infos = list(infos)
        if type(infos) is not list:
            return None
        if PyList_GET_SIZE(infos) == 0:
            return infos_by_agent
        if PyList_GET_SIZE(infos) != self.num:
            return None
        for agent_index in range(self.num):
            info = (<list>infos)[agent_index]
            if not is_empty(info):
                if type(info) is not dict:
                    return None
                infos_by_agent[agent_index] = copy_info(info, self.copy_value)
        return infos_by_agent

    cdef dict read_intact_infos(self, object infos):
        """Do the work of ``read_infos``, but also return None if the environment has replaced its buffers."""
        cdef dict infos_by_agent = self.read_infos(infos) if self.is_intact() else None
        if infos_by_agent and not self.is_intact():  # copying infos may run other code
            return None
        return infos_by_agent

    cdef double reward(self, Py_ssize_t agent_index) noexcept:
        if self.wide:
            return (<double *>puf_data(self.rewards))[agent_index]
        return (<float *>puf_data(self.rewards))[agent_index]

    cdef Outcome take(self, object result, Rows *rows) except *:
        cdef dict infos_by_agent
        cdef Py_ssize_t agent_index
        cdef unsigned char unusual = 0
        cdef char *terminations
        cdef char *truncations
        cdef char *alive
        infos_by_agent = self.read_intact_infos(result)
        if infos_by_agent is None:
            return UNUSUAL
        terminations, truncations = puf_data(self.terminations), puf_data(self.truncations)
        alive = puf_data(self.alive)
        for agent_index in range(self.num):
            unusual |= (terminations[agent_index] | truncations[agent_index]) != 0
            unusual |= (alive[agent_index] == 0) | (self.alive_before[agent_index] == 0)
        if unusual:
            return self.come_and_go(infos_by_agent, rows)
        for agent_index in range(self.num):
            self.values[agent_index] = self.reward(agent_index)
            self.returns[agent_index] += self.values[agent_index]
        self.length += 1
        self.infos_by_agent = infos_by_agent
        memcpy(rows.observations, puf_data(self.observations), self.num * self.row_nbytes)
        put_rewards(rows, self.values, self.num)
        memset(rows.terminations, 0, self.num)
        memset(rows.truncations, 0, self.num)
        memset(rows.masks, 1, self.num)
        return GOES_ON

    cdef Outcome come_and_go(self, dict infos_by_agent, Rows *rows) except *:
        """Do the work of ``NativeRows._come_and_go``."""
        cdef char *terminations = puf_data(self.terminations)
        cdef char *truncations = puf_data(self.truncations)
        cdef char *alive = puf_data(self.alive)
        cdef Py_ssize_t agent_index
        cdef Py_ssize_t num_spawned = 0
        cdef bint acted, terminated, truncated, lives
        cdef bint any_acted = False, any_lives = False
        for agent_index in range(self.num):
            acted = self.alive_before[agent_index] != 0
            lives = alive[agent_index] != 0 and terminations[agent_index] == 0 and truncations[agent_index] == 0
            any_acted |= acted
            any_lives |= lives
        memcpy(rows.observations, puf_data(self.observations), self.num * self.row_nbytes)
        for agent_index in range(self.num):
            acted = self.alive_before[agent_index] != 0
            terminated, truncated = acted and terminations[agent_index] != 0, acted and truncations[agent_index] != 0
            lives = alive[agent_index] != 0 and terminations[agent_index] == 0 and truncations[agent_index] == 0
            alive[agent_index] = lives
            self.values[agent_index] = self.reward(agent_index) if acted else 0.0
            self.returns[agent_index] += self.values[agent_index]
            rows.terminations[agent_index] = terminated
            rows.truncations[agent_index] = truncated or (acted and not lives and not terminated)  # gone without a flag
            rows.masks[agent_index] = acted
            if not acted and not lives:
                memset(rows.observations + agent_index * self.row_nbytes, 0, self.row_nbytes)
            if acted and not lives:
                add_episode(
                    infos_by_agent.setdefault(agent_index, {}), self.returns[agent_index],
                    self.length + 1 - self.births[agent_index], self.starts_s[agent_index],
                )
        put_rewards(rows, self.values, self.num)
        self.length += 1
        if not any_lives and any_acted:
            self.add_end(infos_by_agent, self.total_reward + sum_of(self.returns, self.num))
        for agent_index in range(self.num):
            if alive[agent_index] and not self.alive_before[agent_index]:
                self.values[num_spawned] = self.returns[agent_index]
                num_spawned += 1
                self.returns[agent_index], self.births[agent_index], self.starts_s[agent_index] = (
                    0.0, self.length, CLOCK()
                )
        if num_spawned:
            self.total_reward += sum_of(self.values, num_spawned)
        self.infos_by_agent = infos_by_agent
        return GOES_ON if any_lives else IS_OVER

    cdef Outcome take_reset(self, object result, Rows *rows) except *:
        cdef dict infos_by_agent
        cdef Py_ssize_t agent_index
        cdef char *alive
        infos_by_agent = self.read_intact_infos(result)
        if infos_by_agent is None:
            return UNUSUAL
        self.infos_by_agent = infos_by_agent
        self.total_reward, self.length, self.start_s = 0, 0, CLOCK()
        alive = puf_data(self.alive)
        memcpy(rows.observations, puf_data(self.observations), self.num * self.row_nbytes)
        for agent_index in range(self.num):
            self.returns[agent_index], self.births[agent_index], self.starts_s[agent_index] = 0.0, 0, self.start_s
            if not alive[agent_index]:
                memset(rows.observations + agent_index * self.row_nbytes, 0, self.row_nbytes)
        return GOES_ON


cdef bint is_batch(object array, object dtype, Py_ssize_t size):
    """Return whether an object is a writeable plain array with ``size`` elements of a dtype."""
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
