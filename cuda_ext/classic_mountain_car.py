"""The schema of the classic/mountain_car kernel; its NumPy reference, references/classic_mountain_car.py.

On a device, each thread plays one environment; the host plays many at once with vector instructions.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="classic/mountain_car",
    source=__file__.replace(".py", ".cuh"),
    reference="cuda_ext.references.classic_mountain_car:ClassicMountainCar",
    side_by_side=2,
    schema=Schema(
        parameters=(Parameter("max_episode_steps", "int32"),),
        fields=(
            Field("position", "float32", per="env"),
            Field("velocity", "float32", per="env"),  # change of position per step
        ),
    ),
)
