"""Steps environments of several agents: PettingZoo's parallel ones and PufferEnvs.

Each class is the fast twin of a RowEnv, which is right: what it finds unusual (an agent that its twin has not checked; an
observation that its packer does not take; what is missing or unknown) it leaves to the twin, with nothing changed.
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
from pufferlib._native.infos cimport is_empty, copy_info
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
cdef object NOBODY = object()
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
        space = row_env.observation_space
        self.shape, self.dtype = (self.num, *space.shape), numpy.dtype(space.dtype)

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

    cdef Outcome take(self, object result, Rows *rows) except *:
        return ODD

    cdef Outcome take_reset(self, object result, Rows *rows) except *:
        return ODD

    cdef int add_end(self, dict told, double total_reward) except -1:
        """Add the statistics of the environment's episode, which is over with this step."""
        info = told.setdefault(None, {})
        info["env"] = True
        add_episode(info, total_reward, self.length, self.start_s)
        return 0

    cdef list labelled(self, dict told):
        """Return infos by place as a list, labelled; None if there are none."""
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

    cdef object seen(self, Rows *rows):
        observations = EMPTY(self.shape, self.dtype)
        memcpy(puf_data(observations), rows.observations, observations.nbytes)
        return observations

    cdef dict with_finals(self, dict firsts, dict lasts, Rows *rows, object observations):
        """Do as ``_with_finals`` of vectorization/worker.py; all infos are given away. Who ended has one in lasts."""
        cdef dict info, last
        for place, last in lasts.items():
            info = firsts.setdefault(place, {})
            if "episode" in last:
                info["episode"] = last["episode"]
            if "env" in last:
                info["env"] = last["env"]
            if place is not None and (rows.terminations[<Py_ssize_t>place] or rows.truncations[<Py_ssize_t>place]):
                final = observations[place]
                info["final_obs"] = final.copy() if final.ndim else final
            info["final_info"] = last
        return firsts


cdef int add_episode(dict info, double total_reward, int64_t length, double start_s) except -1:
    """Do as ``add_episode`` of emulation/infos.py."""
    if "episode" not in info:
        info["episode"] = {"r": total_reward, "l": length, "t": CLOCK() - start_s}
    return 0


cdef inline bint has_items(object told) noexcept:
    """Whether this is a dict, or one that makes what is missing, whose items can be read here."""
    return type(told) is dict or type(told) is DEFAULTDICT


cdef bint is_unflagged(object flags, object name) except? True:
    """Whether a flag is missing, or one that is False."""
    cdef bint flag
    cdef PyObject *found = PyDict_GetItemWithError(flags, name)
    return found == NULL or (read_flag(<object>found, &flag) and not flag)


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


cdef void put_first_outcome(Rows *rows, Py_ssize_t count) noexcept nogil:
    memset(rows.rewards, 0, count * (sizeof(double) if rows.wide_rewards else sizeof(float)))
    memset(rows.terminations, 0, count)
    memset(rows.truncations, 0, count)
    memset(rows.masks, 0, count)


# --------------------------------------------------------------------------------------- parallel environments

cdef enum:
    MOST_KINDS = 8  # of agents whose spaces are remembered, where names are made up


@cython.final
cdef class Seat:
    """An agent and its place, as ``rows.Seat`` has it."""

    cdef object name, place_object, read
    cdef object observed, acted  # the environment's spaces
    cdef dict leaves
    cdef Py_ssize_t place, num_clipped
    cdef Packer packer
    cdef Unpacker unpacker
    cdef MaskPacker masks
    cdef bint clips, takes_in
    cdef bint is_plain  # observations are packed as they come
    cdef int64_t *row_start
    cdef int64_t *last
    cdef int64_t *shift
    cdef object kept
    cdef char *chosen

    def __init__(self, name, place, packer, unpacker, read, clip, masks, takes_in, leaves, spaces):
        self.name, self.place, self.place_object, self.read = name, place, place, read
        self.observed, self.acted = spaces
        self.packer, self.unpacker, self.clips = packer, unpacker, clip is not None
        self.masks = None if masks is None else MaskPacker(*masks)
        self.takes_in, self.leaves = takes_in, leaves
        self.is_plain = masks is None and leaves is None
        if self.clips:
            self.num_clipped = len(clip.last)
            self.kept = [numpy.array(part, numpy.int64) for part in (*clip, clip.last)]
            self.row_start, self.last = <int64_t *>puf_data(self.kept[0]), <int64_t *>puf_data(self.kept[1])
            self.shift, self.chosen = <int64_t *>puf_data(self.kept[2]), puf_data(self.kept[3])

    cdef Seat moved(self, object name, Py_ssize_t place):
        """Return the seat of such an agent on another place."""
        cdef Seat seat = Seat.__new__(Seat)
        seat.name, seat.place, seat.place_object, seat.read = name, place, place, self.read
        seat.observed, seat.acted = self.observed, self.acted
        seat.packer, seat.unpacker, seat.clips = self.packer, self.unpacker, self.clips
        seat.masks, seat.takes_in, seat.leaves, seat.is_plain = self.masks, self.takes_in, self.leaves, self.is_plain
        seat.num_clipped, seat.kept, seat.row_start, seat.last = self.num_clipped, self.kept, self.row_start, self.last
        seat.shift, seat.chosen = self.shift, self.chosen
        return seat

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

    actions: the environment's rows of actions, an array a component. The others: as ``rows.FastAgents`` has them.
    """

    cdef list seats, listed
    cdef dict last
    cdef set ended, lingering
    cdef object changes  # the twin's count when these were taken from it
    cdef bint is_ahead  # they have changed since
    cdef bint has_begun  # and an episode has begun
    cdef list holders  # who had each place last, or NOBODY, where places change hands
    cdef dict known  # seats by name of all agents that the twin has checked, where they keep their spaces
    cdef list kinds  # else one for each pair of spaces
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
    cdef char *seated  # who lives, so acts in this step
    cdef char *acted  # whose action counts in a step in which agents come and go
    cdef char *shown  # whose observation is written
    cdef object kept

    def __init__(
        self, row_env, env_id, actions, own, env, returns, lengths, starts_s, keeps_spaces, keeps_places,
        extra_leaves, has_state, mask_in_info
    ):
        Agents.__init__(self, row_env, env_id, own, env)
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
        self.kept = (returns, lengths, starts_s, rewards, flags)
        self.returns, self.starts_s = <double *>puf_data(returns), <double *>puf_data(starts_s)
        self.lengths, self.rewards = <int64_t *>puf_data(lengths), <double *>puf_data(rewards)
        self.terminations = puf_data(flags)
        self.truncations, self.seated = self.terminations + self.num, self.terminations + 2 * self.num
        self.acted, self.shown = self.terminations + 3 * self.num, self.terminations + 4 * self.num
        self.seats, self.listed, self.last, self.ended, self.lingering = [], [], {}, set(), set()
        self.known, self.kinds = {}, []

    cdef int hold(self) except -1:
        cdef Seat seat
        Agents.hold(self)
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
        self.settle([Seat(*each) for each in seats])
        for seat in self.seats:
            self.learn(seat)
        if not self.keeps_places:
            self.hold_places()
        self.changes, self.is_ahead, self.has_begun = changes, False, False
        return 0

    cdef int settle(self, list seats) except -1:
        """Have these agents act in the next step."""
        cdef Seat seat
        self.seats = seats
        memset(self.rewards, 0, self.num * sizeof(double))
        memset(self.terminations, 0, 4 * self.num)  # and what follows them
        for seat in seats:
            self.seated[seat.place] = True
        return 0

    cdef int learn(self, Seat seat) except -1:
        """Remember an agent that the twin has checked, or one of its kind."""
        cdef Seat kind
        if self.keeps_spaces:
            self.known[seat.name] = seat
            return 0
        for kind in self.kinds:
            if kind.observed is seat.observed and kind.acted is seat.acted:
                self.kinds.remove(kind)  # its packer may be an older one
                break
        self.kinds = [seat, *self.kinds[:MOST_KINDS - 1]]
        return 0

    cdef int hold_places(self) except -1:
        """Note who had each place last."""
        self.holders = [NOBODY] * self.num
        for name, place in self.last.items():
            self.holders[place] = name
        return 0

    cdef Seat seat_of(self, object name, Py_ssize_t free):
        """Return the seat of an agent who comes, on a free place or its own; None if the twin has to seat it."""
        cdef PyObject *found
        cdef Seat seat
        if self.keeps_spaces:
            found = PyDict_GetItemWithError(self.known, name)
            if found == NULL:
                return None
            seat = <Seat>found
            if not (self.keeps_places or seat.place == free):
                seat = self.known[name] = seat.moved(name, free)
            return seat
        try:
            observed, acted = self.env.observation_space(name), self.env.action_space(name)
        except Exception:  # the twin asks, too
            return None
        for seat in self.kinds:
            if seat.observed is observed and seat.acted is acted:
                return seat.moved(name, free)
        return None

    cdef bint can_reset(self) except? True:
        return len(self.known) > 0 or len(self.kinds) > 0

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

    cdef Outcome take(self, object result, Rows *rows) except *:
        cdef Outcome outcome
        self.state = None
        outcome = self.take_dicts(result, rows)
        if outcome == ODD and self.state is not None:
            self.extra_leaves.hold(self.state)
        return outcome

    cdef Outcome take_dicts(self, object result, Rows *rows) except *:
        cdef object observations, rewards, terminations, truncations, infos
        cdef Py_ssize_t place
        cdef Py_ssize_t num_ended
        cdef dict told
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
        agents = self.env.agents
        if num_ended != 0 or not self.is_listed(agents):
            if not (type(agents) is list or type(agents) is tuple):
                return ODD
            return self.come_and_go(
                list(agents), observations, rewards, terminations, truncations, infos, num_ended >= 0, rows
            )
        if not self.are_known(rewards, terminations, truncations, self.last, True):
            return ODD
        told = self.told(infos, self.seats, self.last)
        if told is None or not self.write(self.seats, observations, infos, rows.observations):
            return ODD
        # Nothing can be unusual any more.
        self.by_place = told
        self.add_outcome(rows, self.seated)
        return GOES_ON

    cdef void add_outcome(self, Rows *rows, const char *acted) noexcept:
        """Write the outcome of a step, and add it to the episode's. acted: whose action counted."""
        cdef Py_ssize_t place
        self.total_reward += sum_of(self.rewards, self.num)
        self.length += 1
        for place in range(self.num):
            self.returns[place] += self.rewards[place]
            self.lengths[place] += acted[place]
        put_rewards(rows, self.rewards, self.num)
        memcpy(rows.terminations, self.terminations, self.num)
        memcpy(rows.truncations, self.truncations, self.num)
        memcpy(rows.masks, acted, self.num)

    cdef Outcome come_and_go(
        self, list listed, dict observations, object rewards, object terminations, object truncations, object infos,
        bint is_read, Rows *rows
    ) except *:
        """Do as ``PettingZooRows.take`` where agents end, come, or are listed in another order.

        listed: a copy of the environment's. is_read: whether ``read`` has found all outcomes.
        """
        cdef list left = [], stay = [], come = [], seen = [], names = []
        cdef set present = set(listed)
        cdef set lingering
        cdef dict told, living
        cdef dict last = self.last
        cdef Seat seat
        cdef Py_ssize_t place
        cdef int has_ended
        cdef double now_s
        if len(present) != len(listed):
            return ODD
        for seat in self.seats:
            place = seat.place
            is_listed = seat.name in present
            if is_read:
                has_ended = self.terminations[place] or self.truncations[place]
                self.acted[place] = True
            else:
                has_ended = self.read_end(seat, is_listed, observations, rewards, terminations, truncations)
                if has_ended < 0:
                    return ODD
            if not (has_ended or is_listed):
                has_ended = self.truncations[place] = True  # gone without a flag
            if has_ended:
                left.append(seat)
                names.append(seat.name)
            else:
                stay.append(seat)
            if not has_ended or observations.get(seat.name) is not None:
                seen.append(seat)
        lingering = (self.lingering.union(names) & present) if present else set()
        if len(present) != len(stay) + len(lingering):
            last = PyDict_Copy(last)
            if not self.take_up(come, listed, lingering, last, terminations, truncations):
                return ODD
        if not self.are_known(rewards, terminations, truncations, last, is_read):
            return ODD
        told = self.told(infos, self.seats, last)
        if told is None or not self.write(seen + come, observations, infos, rows.observations):
            return ODD
        # Nothing can be unusual any more.
        self.by_place = told
        self.add_outcome(rows, self.acted)
        for seat in left:
            place = seat.place
            add_episode(
                told.setdefault(seat.place_object, {}), self.returns[place], self.lengths[place], self.starts_s[place]
            )
        if not (stay or come):
            self.add_end(told, self.total_reward)
        self.ended.update(names)
        self.listed, self.last, self.lingering = listed, last, lingering
        if come:
            now_s = CLOCK()
            for seat in come:
                self.returns[seat.place], self.lengths[seat.place], self.starts_s[seat.place] = 0, 0, now_s
                if not self.keeps_places:
                    self.holders[seat.place] = seat.name
            living = {seat.name: seat for seat in stay + come}
            stay = [living[name] for name in listed if name in living]
        self.settle(stay)
        self.is_ahead = True
        return GOES_ON if stay else IS_OVER

    cdef int read_end(
        self, Seat seat, bint is_listed, dict observations, object rewards, object terminations, object truncations
    ) except -2:
        """Read the outcome of an agent of whom something is missing.

        Return whether a flag says that it has ended, -1 if something is unusual.
        """
        cdef bint terminated = False, truncated = False
        cdef Py_ssize_t place = seat.place
        cdef PyObject *found = PyDict_GetItemWithError(terminations, seat.name)
        if is_listed if found == NULL else not read_flag(<object>found, &terminated):
            return -1
        found = PyDict_GetItemWithError(truncations, seat.name)
        if is_listed if found == NULL else not read_flag(<object>found, &truncated):
            return -1
        self.terminations[place], self.truncations[place], self.rewards[place] = terminated, truncated, 0
        found = PyDict_GetItemWithError(rewards, seat.name)
        self.acted[place] = (
            found != NULL or is_listed or terminated or truncated or observations.get(seat.name) is not None
        )
        if self.acted[place] and (found == NULL or not read_reward(<object>found, &self.rewards[place])):
            return -1
        return terminated or truncated

    cdef bint take_up(
        self, list come, list listed, set lingering, dict last, object terminations, object truncations
    ) except? True:
        """Add the seats of agents that are new, and their places to ``last``; return False if one is unusual."""
        cdef Seat seat
        cdef Py_ssize_t free = 0
        for name in listed:
            if name in lingering or (PyDict_Contains(self.last, name) and name not in self.ended):
                continue
            if name in self.ended:
                return False
            if not (is_unflagged(terminations, name) and is_unflagged(truncations, name)):
                return False
            if not self.keeps_places:
                while free < self.num and self.seated[free]:
                    free += 1
                if free == self.num:
                    return False
            seat = self.seat_of(name, free)
            if seat is None:
                return False
            if not self.keeps_places:
                if self.holders[free] is not NOBODY:
                    del last[self.holders[free]]
                free += 1
            come.append(seat)
            last[name] = seat.place_object
        return True

    cdef Outcome take_reset(self, object result, Rows *rows) except *:
        cdef Outcome outcome
        self.state = None
        outcome = self.take_first(result, rows)
        if outcome == ODD and self.state is not None:
            self.extra_leaves.hold(self.state)
        return outcome

    cdef Outcome take_first(self, object result, Rows *rows) except *:
        cdef Py_ssize_t place
        cdef dict told
        cdef dict last = {}
        cdef object observations, infos
        cdef list listed
        cdef list seats = []
        cdef Seat seat
        if type(result) is not tuple or PyTuple_GET_SIZE(result) != 2:
            return ODD
        observations, infos = <tuple>result
        if type(observations) is not dict or not (infos is None or type(infos) is dict):
            return ODD
        if not self.look():
            return ODD
        agents = self.env.agents
        if not (type(agents) is list or type(agents) is tuple) or not 0 < len(agents) <= self.num:
            return ODD
        listed = list(agents)
        for name in listed:
            seat = self.seat_of(name, PyList_GET_SIZE(seats))
            if seat is None:
                return ODD
            seats.append(seat)
            last[name] = seat.place_object
        if len(last) != len(listed):
            return ODD
        told = self.told(infos, seats, last)
        if told is None or not self.write(seats, observations, infos, rows.observations):
            return ODD
        self.by_place = told
        self.listed, self.last, self.ended, self.lingering = listed, last, set(), set()
        self.settle(seats)
        if not self.keeps_places:
            self.hold_places()
        self.is_ahead = self.has_begun = True
        self.total_reward, self.length, self.start_s = 0, 0, CLOCK()
        memset(self.returns, 0, self.num * sizeof(double))
        memset(self.lengths, 0, self.num * sizeof(int64_t))
        for place in range(self.num):
            self.starts_s[place] = self.start_s
        return GOES_ON

    cdef bint look(self) except? True:
        """Take the environment's state, where observations have it; return False if it has none."""
        if self.has_state:
            try:
                self.state = self.env.state()
            except NotImplementedError:
                return False
        return True

    cdef bint is_listed(self, object agents) except? True:
        """Whether the environment's agents are the same as last time, in the same order."""
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

    cdef bint are_known(
        self, object rewards, object terminations, object truncations, dict last, bint all_found
    ) except? True:
        """Whether these have no names but of agents that live or have lived. all_found: those that acted are there."""
        cdef object told
        for told in (rewards, terminations, truncations):
            if not all_found or len(told) != PyList_GET_SIZE(self.seats):
                for name in told:
                    if not PyDict_Contains(last, name) and name not in self.ended:
                        return False
        return True

    cdef bint write(self, list seats, dict observations, object infos, char *rows) except? True:
        """Write the observations of agents, and zeros in the rows of others; return False if one is unusual."""
        cdef Seat seat
        cdef PyObject *found
        cdef object observation
        cdef char *row
        cdef Py_ssize_t place
        memset(self.shown, 0, self.num)
        for seat in seats:
            self.shown[seat.place] = True
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
        if PyList_GET_SIZE(seats) < self.num:
            for place in range(self.num):
                if not self.shown[place]:
                    memset(rows + place * self.row_nbytes, 0, self.row_nbytes)
        return True

    cdef dict extended(self, Seat seat, object observation, object infos):
        """Return an observation with the leaves extra_leaves it, as ``Agent.observed`` does; None if it is unusual."""
        cdef dict sample, whole
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
        if found != NULL and <object>found is not None:
            if type(<object>found) is not dict:
                return None
            found = PyDict_GetItemWithError(<object>found, ACTION_MASK)
        return seat.masks.packed(None if found == NULL else <object>found)

    cdef dict told(self, object infos, list seats, dict last):
        """Return the infos that tell something by place, as ``PettingZooRows._told`` does; None if one is unusual.

        seats, last: of those who are there, and whose place each has.
        """
        cdef dict told = {}
        cdef dict others = None
        cdef Py_ssize_t index = 0
        cdef PyObject *found
        cdef object place
        if infos is None:
            return told
        for name, info in (<dict>infos).items():
            if index < PyList_GET_SIZE(seats) and (<Seat>PyList_GET_ITEM(seats, index)).name is name:
                place = (<Seat>PyList_GET_ITEM(seats, index)).place_object
            else:
                found = PyDict_GetItemWithError(last, name)
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
                told[place] = copy_info(info, self.own)
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
    cdef object common_dtype  # of observations: NumPy's own that is equal to the space's
    cdef int ndim
    cdef Py_ssize_t[MOST_DIMENSIONS] dims
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
        self.common_dtype = numpy.dtype(self.dtype.str)
        self.ndim = len(self.shape) - 1
        for axis in range(min(self.ndim, MOST_DIMENSIONS)):
            self.dims[axis] = self.shape[axis + 1]
        self.row_nbytes = self.dtype.itemsize * numpy.prod(self.shape[1:], dtype=int)
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
            if puf_dim(observations, axis + 1) != self.dims[axis]:
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
                told[None] = copy_info(infos, self.own)
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
                told[place] = copy_info(info, self.own)
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

    cdef Outcome take(self, object result, Rows *rows) except *:
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
            return self.come_and_go(told, rows)
        for place in range(self.num):
            self.values[place] = self.reward(place)
            self.returns[place] += self.values[place]
        self.length += 1
        self.by_place = told
        memcpy(rows.observations, puf_data(self.observations), self.num * self.row_nbytes)
        put_rewards(rows, self.values, self.num)
        memset(rows.terminations, 0, self.num)
        memset(rows.truncations, 0, self.num)
        memset(rows.masks, 1, self.num)
        return GOES_ON

    cdef Outcome come_and_go(self, dict told, Rows *rows) except *:
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
        self.length += 1
        if not any_lives and any_acted:
            self.add_end(told, self.total_reward + sum_of(self.returns, self.num))
        for place in range(self.num):
            if alive[place] and not self.before[place]:
                self.values[num_spawned] = self.returns[place]
                num_spawned += 1
                self.returns[place], self.births[place], self.starts_s[place] = 0.0, self.length, CLOCK()
        if num_spawned:
            self.total_reward += sum_of(self.values, num_spawned)
        self.by_place = told
        return GOES_ON if any_lives else IS_OVER

    cdef Outcome take_reset(self, object result, Rows *rows) except *:
        cdef dict told
        cdef Py_ssize_t place
        cdef char *alive
        told = self.told_intact(result)
        if told is None:
            return ODD
        self.by_place = told
        self.total_reward, self.length, self.start_s = 0, 0, CLOCK()
        alive = puf_data(self.alive)
        memcpy(rows.observations, puf_data(self.observations), self.num * self.row_nbytes)
        for place in range(self.num):
            self.returns[place], self.births[place], self.starts_s[place] = 0.0, 0, self.start_s
            if not alive[place]:
                memset(rows.observations + place * self.row_nbytes, 0, self.row_nbytes)
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
