// Philox4x32-10: random words that are a function of agent, time and purpose; no state is kept between two draws.
//
// It equals pufferlib/util/philox.py bit for bit: key (seed, purpose), counter (agent, step, episode, block). It is
// plain C++ except for two keywords, which a program for the host must define as macros.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

struct Words {
  unsigned w[4];
};

// Returns four words, each uniform over 0 to 2**32 - 1. Blocks 1, 2 and so on give four more each.
__device__ __forceinline__ Words philox(unsigned seed, unsigned episode, unsigned step, unsigned agent,
                                        unsigned purpose, unsigned block = 0) {
  unsigned k0 = seed, k1 = purpose;
  unsigned c0 = agent, c1 = step, c2 = episode, c3 = block;
  for (int round = 0; round < 10; round++) {
    const unsigned long long first = 0xD2511F53ull * c0, second = 0xCD9E8D57ull * c2;
    c0 = (unsigned)(second >> 32) ^ c1 ^ k0;
    c1 = (unsigned)second;
    c2 = (unsigned)(first >> 32) ^ c3 ^ k1;
    c3 = (unsigned)first;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Returns a number from 0 to n - 1. The relative difference of probabilities is below n / 2**32.
__device__ __forceinline__ unsigned below(unsigned word, unsigned n) {
  return (unsigned)(((unsigned long long)word * n) >> 32);
}

// Returns a multiple of 2**-24 in [0, 1).
__device__ __forceinline__ float uniform(unsigned word) { return (float)(word >> 8) * 5.9604644775390625e-8f; }
