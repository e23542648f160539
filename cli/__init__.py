"""The operator's command. The core that it runs is the layer's, which is put on the path where it is not installed."""

import sys
from pathlib import Path

LAYER = str(Path(__file__).resolve().parents[1] / "layers" / "autojoin")
if LAYER not in sys.path:
    sys.path.insert(0, LAYER)
