"""The plain case of an evaluation's batch: count each environment's step, and copy its rows for the policy."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from pufferlib._native.arrays cimport puf_data, puf_descr, puf_dim, puf_is_array, puf_is_plain, puf_ndim

import numpy

__all__ = ["EpisodeRows"]

cdef object NDARRAY = numpy.ndarray
cdef object INT64 = numpy.dtype(numpy.int64)
cdef object FLOAT32 = numpy.dtype(numpy.float32)
cdef object BOOL = numpy.dtype(numpy.bool_)


cdef inline char *data_of(object array, object dtype, Py_ssize_t length) noexcept:
    """Return the memory of a plain array of this dtype and length; NULL for anything else."""
    if not puf_is_array(array, NDARRAY) or puf_descr(array) != <PyObject *>dtype or not puf_is_plain(array):
        return NULL
    return puf_data(array) if puf_ndim(array) > 0 and puf_dim(array, 0) == length else NULL


@cython.final
cdef class EpisodeRows:
    """Counts a batch's steps and returns, and adds its rows to a PolicyBatch, if the episodes of all of them go on.

    layer: the PolicyBatch. heights: int64, 0 for places at which no environment waits. episodes, seeds, steps, int64,
    and returns, float64 (num_envs, agents_per_env): by slot, of its current episode; an episode is negative for none.
    max_steps: the number of steps after which an episode is cut. All are plain arrays, which this keeps.
    """

    cdef object references, dtype
    cdef const int64_t *episodes
    cdef const int64_t *seeds
    cdef int64_t *steps
    cdef int64_t *heights
    cdef double *returns
    cdef int64_t num_envs, num_agents, num_places, max_steps
    cdef Py_ssize_t nbytes  # of an environment's observations
    cdef char *observations
    cdef float *rewards
    cdef char *masks
    cdef int64_t *env_ids
    cdef int64_t *placed_seeds
    cdef int64_t *placed_steps

    def __init__(self, layer, heights, episodes, seeds, steps, returns, int64_t max_steps):
        observations, rewards, masks, env_ids, _, placed_seeds, placed_steps = layer
        self.references = (layer, heights, episodes, seeds, steps, returns)
        self.heights = <int64_t *>puf_data(heights)
        self.num_envs, self.num_agents = returns.shape
        self.num_places, self.max_steps = len(env_ids), max_steps
        self.dtype, self.nbytes = observations.dtype, observations.nbytes // self.num_places
        self.episodes, self.seeds = <const int64_t *>puf_data(episodes), <const int64_t *>puf_data(seeds)
        self.steps, self.returns = <int64_t *>puf_data(steps), <double *>puf_data(returns)
        self.observations, self.rewards = puf_data(observations), <float *>puf_data(rewards)
        self.masks, self.env_ids = puf_data(masks), <int64_t *>puf_data(env_ids)
        self.placed_seeds = <int64_t *>puf_data(placed_seeds)
        self.placed_steps = <int64_t *>puf_data(placed_steps)

    def add(self, batch):
        """Count and add a batch's rows; return the number of environments that made a step.

        Returns -1 and changes nothing if an environment plays no episode, its episode ends or is to be cut, its place
        is taken, or an array is unusual.
        """
        cdef Py_ssize_t num, row, i, agent
        cdef int64_t slot, index, num_steps = 0
        cdef const char *observations
        cdef const float *rewards
        cdef const char *masks
        cdef const char *terminations
        cdef const char *truncations
        cdef const int64_t *env_ids
        cdef bint has_stepped
        ids = batch.env_ids
        if not puf_is_array(ids, NDARRAY) or puf_ndim(ids) != 1:
            return -1
        num = puf_dim(ids, 0)
        env_ids = <const int64_t *>data_of(ids, INT64, num)
        num *= self.num_agents
        rows = batch.observations
        if not puf_is_array(rows, NDARRAY) or rows.nbytes != puf_dim(ids, 0) * self.nbytes:
            return -1
        if puf_descr(rows) != <PyObject *>self.dtype and rows.dtype != self.dtype:
            return -1
        observations = data_of(rows, rows.dtype, num)
        rewards = <const float *>data_of(batch.rewards, FLOAT32, num)
        masks = data_of(batch.masks, BOOL, num)
        terminations, truncations = data_of(batch.terminations, BOOL, num), data_of(batch.truncations, BOOL, num)
        if not (env_ids and observations and rewards and masks and terminations and truncations):
            return -1
        for row in range(num):
            if terminations[row] or truncations[row]:
                return -1
        num //= self.num_agents
        for i in range(num):
            slot = env_ids[i]
            if slot < 0 or slot >= self.num_envs:
                break
            index = self.seeds[slot] % self.num_places
            if self.episodes[slot] < 0 or self.heights[index] or (
                self.steps[slot] + 1 >= self.max_steps
            ):
                break
            self.heights[index] = 1  # so that a second environment with this place is noticed
        else:
            i = num
        if i < num:
            while i > 0:
                i -= 1
                self.heights[self.seeds[env_ids[i]] % self.num_places] = 0
            return -1
        for i in range(num):
            slot = env_ids[i]
            index = self.seeds[slot] % self.num_places
            has_stepped = False
            for agent in range(self.num_agents):
                row = i * self.num_agents + agent
                if masks[row]:
                    has_stepped = True
                    self.returns[slot * self.num_agents + agent] += rewards[row]
            self.steps[slot] += has_stepped
            num_steps += has_stepped
            row, agent = i * self.num_agents, index * self.num_agents
            memcpy(self.observations + index * self.nbytes, observations + i * self.nbytes, self.nbytes)
            memcpy(self.rewards + agent, rewards + row, self.num_agents * sizeof(float))
            memcpy(self.masks + agent, masks + row, self.num_agents)
            self.env_ids[index] = slot
            self.placed_seeds[index], self.placed_steps[index] = self.seeds[slot], self.steps[slot]
        return num_steps
