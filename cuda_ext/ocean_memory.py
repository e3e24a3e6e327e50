"""The schema of the ocean/memory kernel; ocean/memory.py defines the rules.

On a device, each thread plays one environment.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="ocean/memory",
    source=__file__.replace(".py", ".cuh"),
    reference="ocean.memory:Memory",
    schema=Schema(
        parameters=(Parameter("length", "int32"), Parameter("delay", "int32")),
        fields=(
            Field("bits", "bool", per="env", size="length"),
            Field("answers", "bool", per="env", size="length"),  # False for those still to come
        ),
    ),
)
