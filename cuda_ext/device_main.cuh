// The function that a device runs: it gives each group an environment, keeps its state on the chip while the launch
// plays it, and writes the rows of each step.
#pragma once

#if GROUP_SIZE <= 32
constexpr int GROUPS_PER_WARP = 32 / GROUP_SIZE, WARPS = BLOCK_SIZE / 32;
#else
constexpr int GROUPS_PER_WARP = 1, WARPS = 1;  // the block counts as one warp
#endif
// The blocks that fit on a multiprocessor at least, which limits the registers of a thread: the compiler would take
// more than it needs. With 768 threads there are 80, which suffice for blocks of 128 threads; larger blocks would spill
// some, as would networks, and economy/covid with its 64 threads a block.
#ifdef HAS_NETWORK
constexpr int RESIDENT_THREADS = TENSOR_CORES ? 256 : 512;
#else
constexpr int RESIDENT_THREADS = BLOCK_SIZE == 128 ? 768 : 640;
#endif
constexpr int RESIDENT_BLOCKS = RESIDENT_THREADS < BLOCK_SIZE ? 1 : RESIDENT_THREADS / BLOCK_SIZE;
#if TILE
STAGED(float, tiles, WARPS * TILE);
#endif

// Rows that are on the chip during a step, and then written to memory.
struct OnChip {
    Env& env;
    const Arguments& launch;
    const Group& group;
    int env_in_block;  // the number of the group in its block
    int group_in_warp;
    int num_neighbours;  // groups of the warp that play
    float* tile;         // of the warp
    bool plays;          // whether the thread has agents

    __device__ __forceinline__ float* observations(float* in_memory) const {
        return TILE ? tile + group_in_warp * env.num_agents * env.observation_size : in_memory;
    }
    __device__ __forceinline__ void begin_step(int row) const { stage_rows(env, env_in_block, row); }

    // Writes the rows of a step. slot: of the group's environment.
    __device__ __forceinline__ void end_step(int slot, bool continues) const {
        write_rows(env, launch, slot * env.num_agents, group.rank);
#if TILE
        const int size = env.num_agents * env.observation_size;
        const int thread = group_in_warp * GROUP_SIZE + group.rank, num_threads = num_neighbours * GROUP_SIZE;
        if (GROUP_SIZE <= 32 && env.by_env && env.env_ids != nullptr) {  // the rows of neighbours are not adjacent
            copy_as<float>(env.observations + (size_t)slot * size, observations(nullptr), size, group.rank, GROUP_SIZE);
            return;
        }
        // Other groups have just waited, and wait again before the next observations.
        if (GROUP_SIZE == 1) sync_warp();
        const int first = slot - group_in_warp;
        copy_rows(env.observations + (size_t)first * size, tile, num_neighbours * size, thread, num_threads);
        if (GROUP_SIZE == 1 && continues) sync_warp();
#endif
    }

    __device__ __forceinline__ void sync_warp() const {
#if defined __CUDA_ARCH__ && !TENSOR_CORES
        __syncwarp();
#else
        __syncwarp(~0u >> (32 - num_neighbours));
#endif
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, RESIDENT_BLOCKS) CUDA_KERNEL(const Arguments launch) {
#if NUM_WEIGHTS
    __shared__ __align__(16) float weights[NUM_WEIGHTS];
    for (int k = threadIdx.x; k < NUM_WEIGHTS; k += blockDim.x) weights[k] = launch.policy_network[k];
    __syncthreads();
#else
    const float* const weights = launch.policy_network;
#endif
#if GROUP_SIZE <= 32
    const int warp = threadIdx.x / 32, warp_lane = threadIdx.x % 32, number = warp_lane / GROUP_SIZE;
    const int first_lane = number * GROUP_SIZE;
    const int first = (blockIdx.x * (blockDim.x / 32) + warp) * GROUPS_PER_WARP;  // of the warp
    const bool plays = number < GROUPS_PER_WARP && first + number < launch.num_envs;
    // Tensor cores need all lanes of a warp: those that play nothing compute rows of its first group once more.
    if (TENSOR_CORES ? first >= launch.num_envs : !plays) return;
    const int group_in_warp = plays ? number : 0;
    const int left = launch.num_envs - first, num_neighbours = left < GROUPS_PER_WARP ? left : GROUPS_PER_WARP;
#if GROUP_SIZE == 1
    const Group group = {0};
#elif defined __CUDA_ARCH__ && !TENSOR_CORES
    const Group group = {warp_lane - first_lane, first_lane};
#else
    const Group group = {warp_lane - first_lane, first_lane, ~0u >> (32 - num_neighbours * GROUP_SIZE)};
#endif
#else
    __shared__ unsigned long long word;
    const int warp = 0, group_in_warp = 0, first = blockIdx.x, num_neighbours = 1;
    const bool plays = true;
    const Group group = {(int)threadIdx.x, &word};
#endif
#ifdef __CUDA_ARCH__
    __builtin_assume(group.rank >= 0 && group.rank < group.size);  // a loop over group.size agents repeats nothing
#endif
    const int index = first + group_in_warp, env_in_block = warp * GROUPS_PER_WARP + group_in_warp;
    const int e = launch.env_ids == nullptr ? launch.first_env + index : launch.env_ids[index];
    Env env(launch, e);
    // A step waits before its first use of what other threads load.
    if (plays) load(env, launch, e, env_in_block, group.rank);
#if TILE
    float* const tile = tiles + warp * TILE;
#else
    float* const tile = nullptr;
#endif
    const OnChip rows = {env, launch, group, env_in_block, group_in_warp, num_neighbours, tile, plays};
    play_all<1>(env, index, 1, group, rows, weights);
    if (env.num_steps == 0 || !plays) return;
    group.sync();
    store(env, launch, e, group.rank);
}
