"""Environments that run as CUDA kernels, each a `.cuh` and a `.py` of the same stem, and the code that runs them.

tag_grid, tag_continuous, ocean_squared, classic_cartpole
                an environment each: its schema (.py), kernel (.cuh) and reference in NumPy (references/ or ocean/)
schema          declarations of an environment's arrays on the device, for Python and CUDA at once
kernel.cuh      the code that all kernels share: groups of threads, autoreset on the device, rows; philox.cuh draws
                random numbers; trigonometry.cuh has sine and cosine equal to NumPy's to the bit, for kernels that
                include it
policy.cuh      chooses actions before a step: sampling.cuh from logits, layers.cuh (a small network) computes logits;
                exponentials.cuh has exp, log and tanh equal to NumPy's to the bit
network         converts a torch.nn.Sequential for layers.cuh
data            the data manager: arrays on the device, and counts of the bytes copied to and from it
functions       the function manager: compiles kernels for the host, caches and plays them; lays out launches
device          the same for a CUDA device
sources         the programs that are compiled
checking        plays kernels on the host as a device would; raises an error where threads would wait for ever
host.h          runs kernels on the host: as loops, as fibres that check barriers, as threads for sanitizers;
                host_main.h plays launches, one environment after another or many side by side; host_threads.h has the
                threads that share a launch
nvrtc           compiles kernels for a device, and reports the resources they use, also on a machine without one
report          reports on the support for kernels on this machine
references/     environments in NumPy to which kernels are equal, bit for bit
"""
