// The threads that play an environment together, and what they exchange.
#pragma once

#ifndef GROUP_SIZE
#define GROUP_SIZE 1
#endif
#ifndef TENSOR_CORES  // whether a network is computed by all lanes of a warp together, in bfloat16
#define TENSOR_CORES 0
#endif
#ifndef SITE  // the parameter by which host.h distinguishes barriers
#define SITE int caller = 0
#endif

// The threads that play an environment. Groups of a warp run in step: sync, any, sum and min wait for all groups of a
// warp. `only(false)` returns the group in which no thread has an agent to handle: a group that has nothing to do calls
// the same functions as its neighbours, to no effect. `together` returns whether a group of the warp passes true. A
// group that waits for no other returns itself, and the value.
struct Group {
    int rank;
#if GROUP_SIZE == 1
    static constexpr int size = 1;
    __device__ __forceinline__ void sync() const {}
    __device__ __forceinline__ bool any(bool value) const { return value; }
    __device__ __forceinline__ int sum(int value) const { return value; }
    __device__ __forceinline__ unsigned long long min(unsigned long long value) const { return value; }
#elif GROUP_SIZE <= 32
    static constexpr int size = GROUP_SIZE, NOBODY = 1 << 30;
    static constexpr unsigned lanes = (unsigned)((1ull << GROUP_SIZE) - 1);
    int first_lane;  // of the group
#if defined __CUDA_ARCH__ && !TENSOR_CORES
    // The lanes of all groups. A constant, or each barrier would cost dozens of cycles; threads that play nothing have
    // ended, and a barrier does not wait for these. With tensor cores they have not.
    static constexpr unsigned mask = (unsigned)((1ull << 32 / GROUP_SIZE * GROUP_SIZE) - 1);
#else
    unsigned mask;  // the lanes of the groups that play
#endif
    __device__ __forceinline__ void sync(SITE) const { __syncwarp(mask); }
    __device__ __forceinline__ bool any(bool value, SITE) const {
        return (__ballot_sync(mask, value) >> first_lane & lanes) != 0;
    }
    __device__ __forceinline__ bool together(bool value, SITE) const { return __ballot_sync(mask, value) != 0; }
    __device__ __forceinline__ Group only(bool value) const {
        Group group = *this;
        if (!value) group.rank = NOBODY;
        return group;
    }
    __device__ __forceinline__ bool is_idle() const { return rank == NOBODY; }
    __device__ __forceinline__ int sum(int value, SITE) const {
        int total = 0;
        if (!together(value != 0, caller)) return 0;
        for (int k = 0; k < size; ++k) total += __shfl_sync(mask, value, first_lane + k);
        return total;
    }
    __device__ __forceinline__ unsigned long long min(unsigned long long value, SITE) const {
        unsigned long long least = value;
        for (int k = 0; k < size; ++k) {
            const unsigned long long other = __shfl_sync(mask, value, first_lane + k);
            least = other < least ? other : least;
        }
        return least;
    }
#else
    static constexpr int size = GROUP_SIZE;
    unsigned long long* shared;  // one word of the block
    __device__ __forceinline__ void sync(SITE) const { __syncthreads(); }
    __device__ __forceinline__ bool any(bool value, SITE) const { return __syncthreads_or(value) != 0; }
    __device__ __forceinline__ int sum(int value, SITE) const {
        if (!any(value != 0, caller)) return 0;
        if (rank == 0) *shared = 0;
        sync(caller);
        if (value) atomicAdd((int*)shared, value);
        sync(caller);
        const int total = *(int*)shared;
        sync(caller);  // before a thread uses the word again
        return total;
    }
    __device__ __forceinline__ unsigned long long min(unsigned long long value, SITE) const {
        if (rank == 0) *shared = ~0ull;
        sync(caller);
        if (value != ~0ull) atomicMin(shared, value);
        sync(caller);
        const unsigned long long least = *shared;
        sync(caller);
        return least;
    }
#endif
#if GROUP_SIZE == 1 || GROUP_SIZE > 32
    __device__ __forceinline__ bool together(bool value) const { return value; }
    __device__ __forceinline__ Group only(bool) const { return *this; }
    __device__ __forceinline__ bool is_idle() const { return false; }
#endif
};
