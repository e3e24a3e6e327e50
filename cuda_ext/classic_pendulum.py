"""The schema of the classic/pendulum kernel; its NumPy reference, references/classic_pendulum.py.

On a device, each thread plays one environment.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="classic/pendulum",
    source=__file__.replace(".py", ".cuh"),
    reference="cuda_ext.references.classic_pendulum:ClassicPendulum",
    schema=Schema(
        parameters=(Parameter("max_episode_steps", "int32"),),
        fields=(
            Field("theta", "float32", per="env"),  # angle from straight up
            Field("theta_dot", "float32", per="env"),  # per second
        ),
    ),
)
