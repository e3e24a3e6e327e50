"""A learner compiled from C++: PPO and A2C for small networks, without torch in the updates.

fused           the learner, for networks of torch that it copies weights from and to
device          the same on a device, by kernels; or on fibres of the host
library         the compiled functions and the structures that they take
inference       the arrays with which it acts on a batch of rows
actions.cuh     actions drawn from outputs and random numbers; for hosts and devices
losses.cuh      each row's losses and derivatives, advantages, and Adam's step for one weight; for hosts and devices
update.h        the arguments of an update, and the order in which gradients are summed
statistics.cuh  the statistics of a minibatch, and the constants of Adam's step; for hosts and devices
passes.cuh      loops over layers and rows, and tangent.cuh, the units' tanh; for hosts and devices
variant.h       products with vector instructions; main.h compiles it once for each instruction set, and exports the
                functions
device.cuh      products of a block's threads, and the kernels
"""
