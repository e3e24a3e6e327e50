"""Environments that run as CUDA kernels, one `.cuh` and one `.py` of the same stem each, and what runs them.

tag_grid, tag_continuous, ocean_squared, classic_cartpole
                an environment each: its schema (.py), its kernel (.cuh), its twin in NumPy (references/ or ocean/)
schema          what an environment keeps on the device, declared for Python and CUDA at once
kernel.cuh      what all kernels share: groups of threads, THE autoreset on the device, rows; philox.cuh draws,
                trigonometry.cuh has sine and cosine that are NumPy's to the bit, for kernels that include it
policy.cuh      what chooses actions in front of a step: sampling.cuh of logits, layers.cuh (a small network) that makes
                them; exponentials.cuh has exp, log and tanh that are NumPy's to the bit
network         a torch.nn.Sequential as layers.cuh reads it
data            the data manager: arrays on the device, owned once; what crosses the bus is counted
functions       the function manager: kernels compiled for the host, kept, and played; how launches are laid out
device          the same for a CUDA device
sources         the programs that are compiled
checking        kernels played as a device would, on the host, with errors in words where threads would wait for ever
host.h          the same kernels on the host: as loops, as fibres that check barriers, as threads for sanitizers;
                host_main.h plays launches of them, one environment after another or many; host_threads.h has the
                threads that share a launch
nvrtc           what compiles kernels for a device, and says what they take, also where there is none
report          what there is for kernels on this machine, in words
references/     environments in NumPy to which kernels are equal, bit for bit
"""
