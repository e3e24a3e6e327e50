"""Record environments, replay the recordings on any machine, and compare each replay with its recording step by step.

    record("ocean/squared", "squared.npz")
    print(replay("squared.npz", backend="pool", num_workers=2, batch_size=2))

prints ``identical: 4 environments × 1,000 steps, on pool, 2 workers, batches of 2`` or, if there are differences, the
environment, step and field of the first difference. As a test of your own environment:

    def test_my_env_does_what_it_did():
        report = replay("tests/my_env.npz")
        assert report.identical, str(report)
"""

from pufferlib.recording.difference import Difference
from pufferlib.recording.files import Failure, Origin, Recording, Tape
from pufferlib.recording.recorder import record
from pufferlib.recording.replayer import Replay, replay

__all__ = ["Difference", "Failure", "Origin", "Recording", "Replay", "Tape", "record", "replay"]
