"""The schema of the ocean/squared kernel; ocean/squared.py defines the rules.

On a device, each thread plays one environment.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="ocean/squared",
    source=__file__.replace(".py", ".cuh"),
    reference="ocean.squared:Squared",
    schema=Schema(
        parameters=(
            Parameter("distance", "int32", constant=True),
            Parameter("num_targets", "int32", constant=True),
            Parameter("num_cells", "int32", constant=True),
        ),
        fields=(
            Field("row", "int32", per="env"),  # the agent's
            Field("column", "int32", per="env"),
            Field("goal_cells", "bool", per="env", size="num_cells"),  # whether a cell is a target of the episode
            Field("left_cells", "bool", per="env", size="num_cells"),  # whether it is a target not yet hit
        ),
    ),
)
