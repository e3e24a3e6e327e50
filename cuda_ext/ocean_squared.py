"""ocean/squared as a kernel: the rules are in ocean/squared.py, its twin in NumPy. One thread plays one environment."""

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
            Field("row", "int32", per="env"),  # where the agent is
            Field("column", "int32", per="env"),
            Field("goal_cells", "bool", per="env", size="num_cells"),  # where the episode's targets are
            Field("left_cells", "bool", per="env", size="num_cells"),  # those not yet hit
        ),
    ),
)
