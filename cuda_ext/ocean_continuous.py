"""The schema of the ocean/continuous kernel; ocean/continuous.py defines the rules.

On a device, each thread plays one environment.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="ocean/continuous",
    source=__file__.replace(".py", ".cuh"),
    reference="ocean.continuous:Continuous",
    schema=Schema(
        parameters=(
            Parameter("discrete", "int32", constant=True),  # whether actions are choices of four pushes
            Parameter("num_axes", "int32", constant=True),  # 2: right and up
        ),
        fields=(
            Field("position", "float32", per="env", size="num_axes"),
            Field("velocity", "float32", per="env", size="num_axes"),
            Field("target", "float32", per="env", size="num_axes"),
        ),
    ),
)
