"""The schema of the ocean/bandit kernel; ocean/bandit.py defines the rules.

On a device, each thread plays one environment.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="ocean/bandit",
    source=__file__.replace(".py", ".cuh"),
    reference="ocean.bandit:Bandit",
    schema=Schema(
        parameters=(Parameter("num_actions", "int32"), Parameter("best_arm", "int32")),
        fields=(
            Field("reward_scale", "float64", per="launch", role="const"),  # one number
            Field("reward_noise", "float64", per="launch", role="const"),  # one number
            Field("noise", "float64", per="env"),  # of the episode's reward
        ),
    ),
)
