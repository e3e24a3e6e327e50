"""The schema of the ocean/password kernel; ocean/password.py defines the rules.

On a device, each thread plays one environment.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="ocean/password",
    source=__file__.replace(".py", ".cuh"),
    reference="ocean.password:Password",
    schema=Schema(
        parameters=(Parameter("length", "int32"),),
        fields=(
            Field("password", "bool", per="launch", role="const"),  # (length,)
            Field("guesses", "bool", per="env", size="length"),  # False for those still to come
        ),
    ),
)
