// Finds nearest neighbours on a square: sorts agents by their cell of a grid, and searches the cells ring by ring.
//
// It works for the threads of a block, in shared memory, and for one thread of the host, but not for a group that is
// part of a warp (HAS_CELLS). The agents of a cell are in arbitrary order. To make a result independent of the order of
// threads, choose among agents by a unique key.
#pragma once

#define HAS_CELLS (GROUP_SIZE == 1 || GROUP_SIZE > 32)

#if HAS_CELLS
#if GROUP_SIZE == 1
#define OF_GROUP static thread_local
#else
#define OF_GROUP __shared__
#endif

struct Cells {
    // 12 bytes of shared memory per agent and 4 per cell: at most 28,804. Groups of up to 384 threads, which have one
    // agent per thread, need less.
    enum { MOST_AGENTS = GROUP_SIZE > 1 && GROUP_SIZE <= 384 ? GROUP_SIZE : 2048, MOST_ROWS = 32 };

    float *x, *y;               // of agents, cell by cell
    int* agent;                 // the indices of these agents
    int* first;                 // (num_rows, num_rows + 1): the first index of each cell; after a row's last, its end
    int* total;                 // the number of agents in all cells
    int num_rows;               // the number of rows of cells, and of cells per row
    float width, scale, slack;  // a cell's width; cells per unit of length; a bound on the rounding error of distances

    // Returns the row, or the column, of a coordinate; one outside the square belongs to a cell at the edge.
    __device__ __forceinline__ int index(float coordinate) const {
        const float scaled = coordinate * scale;
        return scaled >= (float)num_rows ? num_rows - 1 : scaled > 0.0f ? (int)scaled : 0;
    }
    __device__ __forceinline__ int* first_of(int row, int column) const { return first + row * (num_rows + 1) + column; }
};

// Returns cells for n agents, at most MOST_AGENTS, on a square from 0 to length. Each has agents_per_cell agents if all
// are spread evenly.
__device__ inline Cells cells_for(int n, float agents_per_cell, float length) {
    OF_GROUP float xs[Cells::MOST_AGENTS], ys[Cells::MOST_AGENTS];
    OF_GROUP int agents[Cells::MOST_AGENTS], firsts[Cells::MOST_ROWS * (Cells::MOST_ROWS + 1)], total;
    const int ideal = (int)sqrtf((float)n / agents_per_cell);
    const int num_rows = ideal < 1 ? 1 : ideal > Cells::MOST_ROWS ? (int)Cells::MOST_ROWS : ideal;
    return {xs, ys, agents, firsts, &total, num_rows, length / num_rows, num_rows / length, length * 1e-6f};
}

// Sorts the agents, of n, for which counts(agent) is true. x, y: coordinates, by agent. All threads of a group must
// call it, after they have finished reading the previous sort.
template <class Counts>
__device__ __forceinline__ void sort(const Cells& cells, const float* x, const float* y, int n, const Group& group,
                                     const Counts& counts) {
    const int num_rows = cells.num_rows;
    for (int k = group.rank; k < num_rows * (num_rows + 1); k += group.size) cells.first[k] = 0;
    if (group.rank == 0) *cells.total = 0;
    group.sync();
    for (int a = group.rank; a < n; a += group.size) {
        if (counts(a)) atomicAdd(cells.first_of(cells.index(y[a]), cells.index(x[a])) + 1, 1);
    }
    group.sync();
    for (int row = group.rank; row < num_rows; row += group.size) {  // rows lie in any order
        int* const first = cells.first_of(row, 0);
        int num = 0;
        for (int column = 1; column <= num_rows; ++column) num += first[column];
        int next = atomicAdd(cells.total, num);
        first[0] = next;
        for (int column = 1; column <= num_rows; ++column) {
            const int count = first[column];
            first[column] = next;  // the next agent of the cell before goes to it, so it ends as this cell's first
            next += count;
        }
    }
    group.sync();
    for (int a = group.rank; a < n; a += group.size) {
        if (!counts(a)) continue;
        const int k = atomicAdd(cells.first_of(cells.index(y[a]), cells.index(x[a])) + 1, 1);
        cells.x[k] = x[a];
        cells.y[k] = y[a];
        cells.agent[k] = a;
    }
    group.sync();
}

__device__ __forceinline__ float lesser(float one, float other) { return one < other ? one : other; }

// Calls visit(square, agent) for every agent whose squared distance from (x, y) is at most the float whose bits reach()
// returns, and for some others. reach may decrease with each visit.
template <class Visit, class Reach>
__device__ __forceinline__ void search(const Cells& cells, float x, float y, const Visit& visit, const Reach& reach) {
    const int num_rows = cells.num_rows, row = cells.index(y), column = cells.index(x);
    int unseen = *cells.total;
#pragma unroll 1
    for (int ring = 0;; ++ring) {
        const int left = column - ring, right = column + ring, low = row - ring, high = row + ring;
#pragma unroll 1
        for (int line = low < 0 ? 0 : low; line <= high && line < num_rows; ++line) {
            const bool full = line == low || line == high;  // otherwise only the two ends of the line
            const int step = full ? 2 * ring + 1 : 2 * ring;
#pragma unroll 1
            for (int from = left; from <= right; from += step) {
                const int to = full ? right : from;
                if (to < 0 || from >= num_rows) continue;
                int k = *cells.first_of(line, from < 0 ? 0 : from);
                const int end = *cells.first_of(line, (to < num_rows ? to : num_rows - 1) + 1);
                unseen -= end - k;
#pragma unroll 1
                for (; k < end; ++k) {
                    const float dx = cells.x[k] - x, dy = cells.y[k] - y;
                    visit(dx * dx + dy * dy, cells.agent[k]);
                }
            }
        }
        if (unseen == 0) return;
        // The least distance at which an agent beyond the ring may be, on the sides that have more cells.
        float beyond = 2.0f * cells.num_rows * cells.width;
        if (left > 0) beyond = lesser(beyond, x - left * cells.width);
        if (low > 0) beyond = lesser(beyond, y - low * cells.width);
        if (right + 1 < num_rows) beyond = lesser(beyond, (right + 1) * cells.width - x);
        if (high + 1 < num_rows) beyond = lesser(beyond, (high + 1) * cells.width - y);
        beyond = beyond * 0.999999f - cells.slack;
        if (beyond > 0.0f && __float_as_uint(beyond * beyond) > reach()) return;
    }
}
#endif
