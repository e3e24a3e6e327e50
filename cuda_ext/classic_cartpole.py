"""The schema of the classic/cartpole kernel; its NumPy reference, references/classic_cartpole.py, defines the rules.

On a device, each thread plays one environment; the host plays many at once with vector instructions. Use this kernel as
a template for kernels of other small environments with one agent.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="classic/cartpole",
    source=__file__.replace(".py", ".cuh"),
    reference="cuda_ext.references.classic_cartpole:ClassicCartpole",
    side_by_side=4,
    schema=Schema(
        parameters=(Parameter("max_episode_steps", "int32"),),
        fields=(
            Field("x", "float32", per="env"),  # of the cart, m
            Field("x_dot", "float32", per="env"),  # m/s
            Field("theta", "float32", per="env"),  # of the pole, rad, clockwise from upright
            Field("theta_dot", "float32", per="env"),  # rad/s
        ),
    ),
)
