// What a launch keeps on the chip: the state of its environments over all of its steps, and the rows of a step.
//
// staging.py generates, from a schema, a struct Env whose arrays are on the chip, and the functions that load and store
// them. An element that only one thread uses is in a register of that thread (Register). The other elements are in
// shared memory (STAGED, InBlock). What does not fit stays in the device's memory.
#pragma once

#ifndef STAGED  // an array of a block
#define STAGED(type, name, size) __shared__ __align__(16) type name[size]
#endif

// Stands for an array of which a thread uses one element, which it keeps.
template <class T> struct Register {
    mutable T value;
    __device__ __forceinline__ T& operator[](int) const { return value; }
    __device__ __forceinline__ T* operator+(int) const { return &value; }
};

// Stands for an array of which a block keeps a part, from the element `first` on.
template <class T> struct InBlock {
    T* elements;
    int first;
    __device__ __forceinline__ T& operator[](int index) const { return elements[index - first]; }
    __device__ __forceinline__ T* operator+(int index) const { return elements + (index - first); }
};

// Copies numbers; thread k of num_threads copies each num_threads-th group of as many as Vector holds.
template <class Vector>
__device__ __forceinline__ void copy_as(float* target, const float* source, int count, int thread, int num_threads) {
    constexpr int width = sizeof(Vector) / sizeof(float);
#pragma unroll 1  // a warp takes a few rounds; to unroll them, it would have to divide
    for (int k = thread; k < count / width; k += num_threads) ((Vector*)target)[k] = ((const Vector*)source)[k];
#pragma unroll 1
    for (int k = count / width * width + thread; k < count; k += num_threads) target[k] = source[k];
}

// Copies an array on the chip, aligned to 16 bytes, to the device's memory, in units as large as the target's
// alignment.
__device__ __forceinline__ void copy_rows(float* target, const float* source, int count, int thread, int num_threads) {
    if (((size_t)target & 15) == 0) {
        copy_as<float4>(target, source, count, thread, num_threads);
    } else {
        copy_as<float>(target, source, count, thread, num_threads);
    }
}
