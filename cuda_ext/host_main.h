// What a library for the host exports of a kernel: HOST_KERNEL plays a launch, its environments spread over threads;
// HOST_KERNEL_DIGEST says what it was compiled from.
#include <thread>
#include <vector>

extern "C" __attribute__((visibility("default"))) void HOST_KERNEL(const Env* given, int num_threads) {
    const Env& env = *given;
    const auto share = [&env](int first, int last) {
        for (int index = first; index < last; ++index) play_all(env, index, true, Group{0}, nullptr, [](int) {});
    };
    std::vector<std::thread> helpers;
    const int most = num_threads < env.num_envs ? num_threads : env.num_envs;
    for (int k = 1; k < most; ++k) {
        const int first = (long long)env.num_envs * k / most, last = (long long)env.num_envs * (k + 1) / most;
        try {
            helpers.emplace_back(share, first, last);
        } catch (const std::exception&) {  // no more threads to be had
            share(first, last);
        }
    }
    share(0, most > 1 ? env.num_envs / most : env.num_envs);
    for (auto& each : helpers) each.join();
}

extern "C" __attribute__((visibility("default"))) const char* HOST_KERNEL_DIGEST() { return DIGEST; }
