"""The schema of the ocean/stochastic kernel; ocean/stochastic.py defines the rules.

On a device, each thread plays one environment.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="ocean/stochastic",
    source=__file__.replace(".py", ".cuh"),
    reference="ocean.stochastic:Stochastic",
    schema=Schema(
        parameters=(Parameter("horizon", "int32"),),
        fields=(
            Field("p", "float64", per="launch", role="const"),  # one number
            Field("num_zeros", "int32", per="env"),  # steps of the episode in which action 0 was played
        ),
    ),
)
