"""Environments that run as CUDA kernels, and the code to run them.

Each environment has a `.cuh` and a `.py` file with the same stem.

tag_*, classic_*, economy_covid, ocean_*
                one environment each: its schema (.py), kernel (.cuh) and NumPy reference (references/ or ocean/)
schema          declares an environment's arrays on the device, for Python and CUDA at once
kernel.cuh      the code that all kernels share: autoreset on the device, actions, rows; group.cuh has the threads that
                play an environment together, device_main.cuh the function that a device runs, on_chip.cuh what it keeps
                on the chip; philox.cuh draws random numbers; trigonometry.cuh has sine and cosine
policy.cuh      chooses actions before a step: layers.cuh computes logits with a small network, sampling.cuh samples
                from logits; exponentials.cuh has exp, log and tanh
network         converts a torch.nn.Sequential for layers.cuh
learner/        a learner for small networks, compiled for the host: PPO and A2C without torch
data            the data manager: holds arrays on the device, and counts the bytes copied to and from it
functions       the function manager: compiles, caches and runs kernels on the host; chooses the layout of launches
device          compiles, caches and launches kernels on a CUDA device
launcher        launches a kernel on the host or a device, with its arguments
staging         decides what a launch keeps on the chip, and generates the code for it
sources         generates the programs that are compiled
checking        runs kernels on the host as a device would; raises an error if a barrier would block forever
host.h          runs kernels on the host: as loops, as fibres that check barriers, as threads for sanitizers;
                host_main.h runs launches, one environment after another or many side by side; host_threads.h has the
                threads that share a launch
machine_code    counts the instructions of compiled kernels
nvrtc           compiles kernels for a device and reports the resources that they use, even without a device
occupancy       computes how many blocks of a kernel fit on a multiprocessor
report          reports on this machine's support for kernels
references/     the environments and functions in NumPy that the kernels match, bit for bit
"""
