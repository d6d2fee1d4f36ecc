"""Work that takes its time and may be stopped in between: it saves how far it came, says "resume me" with exit code 85,
and goes on from there when it runs again. Started with
`corral submit --preemptible --workdir examples -- python3 training.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

STEPS = 40
SAVED = Path(os.environ["CORRAL_CHECKPOINT_DIR"]) / "step"
stop = False


def told_to_stop(_signal: int, _frame: FrameType | None) -> None:
    global stop
    stop = True


def main() -> int:
    signal.signal(signal.SIGTERM, told_to_stop)
    step = int(SAVED.read_text()) if SAVED.exists() else 0
    print(f"attempt {os.environ['CORRAL_ATTEMPT']} begins at step {step}", flush=True)
    while step < STEPS:
        time.sleep(0.1)
        step += 1
        if stop:
            SAVED.write_text(str(step))
            notice = json.loads(Path(os.environ["CORRAL_STOP_FILE"]).read_text())
            print(f"saved at step {step}: {notice['reason']}, {notice['seconds_left']:.0f} s left", flush=True)
            return 85
    print(f"done after step {step}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
