"""One suite per port, run against every implementation of it, ours and other people's.

A suite is a base class of tests. Derive a class from it in a test module, give it the fixture that the suite names,
and pytest runs the tests:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self): ...        # a fresh, empty ports.Store

Nothing here needs more of the implementation than its port; what it must refuse, it refuses with
`corral.store.Conflict`.
"""

from corral.testing.conformance.policies import OrderConformance, PlacementConformance
from corral.testing.conformance.store_ahead import AheadRules
from corral.testing.conformance.store_arrays import ArrayRules
from corral.testing.conformance.store_dependencies import DependencyRules
from corral.testing.conformance.store_groups import GroupRules
from corral.testing.conformance.store_moving import MovingRules
from corral.testing.conformance.store_nodes import NodeRules
from corral.testing.conformance.store_picture import PictureRules
from corral.testing.conformance.store_preemption import PreemptionRules
from corral.testing.conformance.store_promises import PromiseRules
from corral.testing.conformance.store_quotas import QuotaRules
from corral.testing.conformance.store_races import RaceRules
from corral.testing.conformance.store_room import RoomRules
from corral.testing.conformance.store_running import RunningRules
from corral.testing.conformance.store_sessions import SessionRules
from corral.testing.conformance.store_turns import TurnRules

__all__ = ["OrderConformance", "PlacementConformance", "StoreConformance"]


class StoreConformance(
    SessionRules,
    RoomRules,
    RunningRules,
    AheadRules,
    PromiseRules,
    NodeRules,
    GroupRules,
    DependencyRules,
    ArrayRules,
    PreemptionRules,
    MovingRules,
    QuotaRules,
    RaceRules,
    TurnRules,
    PictureRules,
):
    """What a `ports.Store` must do. Needs the fixture `store`: a fresh, empty one."""
