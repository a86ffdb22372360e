"""Draw a PNG with matplotlib: the same numbers result in the same bytes with one version of it.

Fonts come with matplotlib, and neither a user's style nor the date enters the file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# matplotlib writes a font cache when it is imported. The temporary folder of a stage is its own, and goes with it.
os.environ["MPLCONFIGDIR"] = str(Path(tempfile.gettempdir(), "matplotlib"))

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text


@contextmanager
def png_figure(path: Path, width: float, height: float) -> Iterator[Figure]:
    """Yield an empty figure, *width* x *height* inches at 100 dots each; what is drawn on it is written to *path*."""
    with mpl.rc_context():
        mpl.rcdefaults()
        figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        for text in figure.findobj(Text):
            font = FontProperties(fname=str(Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")))
            font.set_size(text.get_fontsize())
            text.set_fontproperties(font)
        figure.savefig(path, format="png", metadata={"Software": None})
