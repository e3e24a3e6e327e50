"""The schema of the classic/acrobot kernel; its NumPy reference, references/classic_acrobot.py.

On a device, each thread plays one environment. The host plays one after another: with vector instructions it would play
faster, but compiling would take four times as long.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="classic/acrobot",
    source=__file__.replace(".py", ".cuh"),
    reference="cuda_ext.references.classic_acrobot:ClassicAcrobot",
    schema=Schema(
        parameters=(Parameter("max_episode_steps", "int32"),),
        fields=(
            Field("theta1", "float32", per="env"),  # angle of the first link from straight down
            Field("theta2", "float32", per="env"),  # angle of the second link from the first
            Field("theta1_dot", "float32", per="env"),  # per second
            Field("theta2_dot", "float32", per="env"),
        ),
    ),
)
